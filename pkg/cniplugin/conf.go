package cniplugin

import (
	"cmp"
	"encoding/json"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
)

const (
	defaultSubnetFile = "/run/flannel/subnet.env"
	defaultDataDir    = "/var/lib/cni/flannel"
)

// object is a JSON object whose values are passed on as they are.
type object map[string]json.RawMessage

// key finds a key the way the plugins' JSON decoders do: without regard to case.
func (o object) key(name string) (key string, ok bool) {
	if _, ok := o[name]; ok {
		return name, true
	}
	for k := range o {
		if strings.EqualFold(k, name) {
			return k, true
		}
	}
	return name, false
}

func (o object) has(name string) bool { _, ok := o.key(name); return ok }

// text is the string that a key has, "" if it has none.
func (o object) text(name string) (s string) {
	key, _ := o.key(name)
	if json.Unmarshal(o[key], &s) != nil {
		return ""
	}
	return s
}

func (o object) set(name string, value any) {
	o[name] = encode(value)
}

func (o object) setDefault(name string, value any) {
	if !o.has(name) {
		o.set(name, value)
	}
}

// encode marshals values that cannot fail to be marshalled.
func encode(value any) json.RawMessage {
	text, err := json.Marshal(value)
	if err != nil {
		return json.RawMessage("null")
	}
	return text
}

// conf is the configuration that the runtime passes.
type conf struct {
	CNIVersion    string          `json:"cniVersion"`
	Name          string          `json:"name"`
	SubnetFile    string          `json:"subnetFile"`
	DataDir       string          `json:"dataDir"`
	IPAM          object          `json:"ipam"`
	Delegate      object          `json:"delegate"`
	RuntimeConfig json.RawMessage `json:"runtimeConfig"`
	PrevResult    json.RawMessage `json:"prevResult"`

	// For GC. The second name is that of an early draft of CNI 1.1, which runtimes still send beside the first.
	Valid      *[]types.GCAttachment `json:"cni.dev/valid-attachments"`
	ValidDraft *[]types.GCAttachment `json:"cni.dev/attachments"`
}

func parseConf(raw []byte) (*conf, error) {
	c := &conf{}
	if err := json.Unmarshal(raw, c); err != nil {
		return nil, cniError(types.ErrDecodingFailure, "network configuration: %w", err)
	}
	c.SubnetFile = filepath.FromSlash(cmp.Or(c.SubnetFile, defaultSubnetFile))
	c.DataDir = filepath.FromSlash(cmp.Or(c.DataDir, defaultDataDir))
	return c, nil
}

// version is the version of CNI that the runtime speaks; the specification has 0.1.0 where none is named.
func (c *conf) version() string { return cmp.Or(c.CNIVersion, "0.1.0") }

func isJSON(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }

// attachment returns where the configuration of a pod's interface is saved. Windows' runtimes may name the sandbox that
// a container shares: the sandbox is what has the network.
func (c *conf) attachment(system string, args *skel.CmdArgs) (attachment, error) {
	id := args.ContainerID
	if system == "windows" {
		if sandbox, ok := strings.CutPrefix(args.Netns, "container:"); ok {
			id = sandbox
		}
	}
	if id == "" || id != filepath.Base(id) || strings.HasPrefix(id, ".") || strings.ContainsAny(id, `/\:@`) {
		return attachment{}, cniError(types.ErrInvalidEnvironmentVariables, "container ID %q cannot be a file's name", id)
	}
	if strings.ContainsAny(args.IfName, `/\`) {
		return attachment{}, cniError(types.ErrInvalidEnvironmentVariables, "interface %q cannot be a part of a file's name", args.IfName)
	}
	return attachment{dir: c.DataDir, id: id, ifName: args.IfName, network: c.Name}, nil
}
