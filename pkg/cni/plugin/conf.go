package plugin

import (
	"cmp"
	"encoding/json"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
)

// Where files are if the network configuration does not say so.
const (
	defaultSubnetFile = "/run/flannel/subnet.env"
	defaultDataDir    = "/var/lib/cni/flannel"
)

// object is a JSON object. Values that the plugin does not change are passed on
// unmodified.
type object map[string]json.RawMessage

// key finds a key case-insensitively, as encoding/json does in the delegates.
// It returns the key as it is spelled in the object, or name if it is missing.
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

// has reports whether a key is present, also with the value null.
func (o object) has(name string) bool { _, ok := o.key(name); return ok }

// text returns the value of a key if it is a string, "" otherwise.
func (o object) text(name string) (s string) {
	key, _ := o.key(name)
	if json.Unmarshal(o[key], &s) != nil {
		return ""
	}
	return s
}

// set sets a key in exactly this spelling; a key in another one stays. o must not be nil.
func (o object) set(name string, value any) {
	o[name] = encode(value)
}

// setDefault sets a key unless it is present.
func (o object) setDefault(name string, value any) {
	if !o.has(name) {
		o.set(name, value)
	}
}

// encode marshals a value of a type for which json.Marshal cannot fail.
func encode(value any) json.RawMessage {
	text, err := json.Marshal(value)
	if err != nil {
		return json.RawMessage("null")
	}
	return text
}

// conf is the network configuration that the runtime passes on stdin.
type conf struct {
	CNIVersion    string          `json:"cniVersion"`
	Name          string          `json:"name"`          // of the network
	SubnetFile    string          `json:"subnetFile"`    // that flanneld writes
	DataDir       string          `json:"dataDir"`       // where ADD saves the delegate's configuration, for DEL
	IPAM          object          `json:"ipam"`          // of the delegate, completed by newDelegate; not used on Windows
	Delegate      object          `json:"delegate"`      // further keys of the delegate's configuration
	RuntimeConfig json.RawMessage `json:"runtimeConfig"` // passed on to the delegate
	PrevResult    json.RawMessage `json:"prevResult"`    // with CHECK and DEL: the result of ADD

	// Only for GC: the attachments that exist. nil: the key is missing, so that nothing may be
	// deleted. The key of ValidDraft is from a draft of CNI 1.1; runtimes still send it in
	// addition to the final one, which counts if both are there.
	Valid      validList `json:"cni.dev/valid-attachments"`
	ValidDraft validList `json:"cni.dev/attachments"`
}

// validList is the runtime's list of the attachments that exist. It is nil only if the key is missing.
type validList []types.GCAttachment

// UnmarshalJSON implements json.Unmarshaler. null is an empty list: libcni marshals a nil
// slice if the network has no pods.
func (v *validList) UnmarshalJSON(raw []byte) error {
	var list []types.GCAttachment
	err := json.Unmarshal(raw, &list)
	*v = append(validList{}, list...)
	return err
}

// parseConf parses the network configuration, and fills in the default paths.
func parseConf(raw []byte) (*conf, error) {
	c := &conf{}
	if err := json.Unmarshal(raw, c); err != nil {
		return nil, cniError(types.ErrDecodingFailure, "network configuration: %w", err)
	}
	c.SubnetFile = filepath.FromSlash(cmp.Or(c.SubnetFile, defaultSubnetFile))
	c.DataDir = filepath.FromSlash(cmp.Or(c.DataDir, defaultDataDir))
	return c, nil
}

// version returns the CNI version of the configuration. The specification
// defines 0.1.0 as the default.
func (c *conf) version() string { return cmp.Or(c.CNIVersion, "0.1.0") }

// isSet reports whether a value is present and not null.
func isSet(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }

// attachment returns where the configuration of a pod's interface is saved. Files are named
// ID or ID@INTERFACE (type attachment), so that an ID has no '@'; on Windows, ':' would lead
// to another drive or stream. The name of the network is only compared and hashed, and the
// pod is for messages.
//
// Docker on Windows calls the plugin for each container of a pod. CNI_NETNS is
// "container:ID" then, with the ID of the sandbox container, which owns the
// network. The file is named after the sandbox.
func (c *conf) attachment(system string, args *skel.CmdArgs) (attachment, error) {
	id := args.ContainerID
	if system == "windows" {
		if sandbox, ok := strings.CutPrefix(args.Netns, "container:"); ok {
			id = sandbox
		}
	}
	if id == "" || id != filepath.Base(id) || strings.HasPrefix(id, ".") || strings.ContainsAny(id, `/\:@`) {
		return attachment{}, cniError(types.ErrInvalidEnvironmentVariables, "container ID %q is not valid as a file name", id)
	}
	if strings.ContainsAny(args.IfName, `/\`) {
		return attachment{}, cniError(types.ErrInvalidEnvironmentVariables, "interface name %q is not valid in a file name", args.IfName)
	}
	return attachment{dir: c.DataDir, id: id, ifName: args.IfName, network: c.Name, pod: podOf(args.Args)}, nil
}

// podOf returns the namespace and the name of the pod in CNI_ARGS ("K=V;K=V"), with a
// slash between them, "" if the runtime has not given them.
func podOf(args string) string {
	values := map[string]string{}
	for pair := range strings.SplitSeq(args, ";") {
		key, value, _ := strings.Cut(pair, "=")
		values[key] = value
	}
	if values["K8S_POD_NAMESPACE"] == "" || values["K8S_POD_NAME"] == "" {
		return ""
	}
	return values["K8S_POD_NAMESPACE"] + "/" + values["K8S_POD_NAME"]
}
