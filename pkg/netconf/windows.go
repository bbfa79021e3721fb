package netconf

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"

	"flannel/pkg/file"
	"flannel/subnet"
)

// modes are the backends by the names that scripts for Windows nodes have for them.
var modes = map[string]json.RawMessage{
	"overlay":  json.RawMessage(`{"Type": "vxlan", "VNI": 4096, "Port": 4789}`),
	"l2bridge": json.RawMessage(`{"Type": "host-gw"}`),
}

// Compose makes the configuration of a Windows node for a mode, which is a name of --network-mode, and pod networks, one
// of each family at most.
func (b Backends) Compose(mode string, cluster []netip.Prefix) ([]byte, error) {
	backend, ok := modes[strings.ToLower(mode)] // PowerShell's ValidateSet lets any case through
	if !ok {
		return nil, fmt.Errorf("--network-mode: %.40q is neither overlay nor l2bridge", mode)
	}
	conf := map[string]any{"Backend": backend, "EnableIPv4": false}
	for _, p := range cluster {
		network, enable := "Network", "EnableIPv4"
		if p.Addr().Is6() {
			network, enable = "IPv6Network", "EnableIPv6"
		}
		if _, twice := conf[network]; twice {
			return nil, fmt.Errorf("--cluster-cidr: %s is the second of its family; give one of each at most", p)
		}
		conf[network], conf[enable] = p, true
	}
	raw, err := json.MarshalIndent(conf, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write the network configuration: %w", err)
	}
	if _, _, _, err = b.Parse("windows", raw); err != nil {
		return nil, err
	}
	return append(raw, '\n'), nil
}

// Written is what Put did.
type Written struct {
	Path    string   `json:"path"`
	Result  string   `json:"result,omitempty"`  // "written", "kept"
	Differs []string `json:"differs,omitempty"` // what the one that was kept has otherwise than asked for
}

// Put writes the configuration of a Windows node to path. One that is there already is kept.
func (b Backends) Put(path string, want []byte) (Written, error) {
	done := Written{Path: path}
	is, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err = file.Put(path, want, 0o644); err == nil {
			done.Result = "written"
		}
	case err == nil:
		done.Result = "kept"
		if done.Differs, err = b.differences(is, want); err != nil {
			err = fmt.Errorf("%s: %w", path, err)
		}
	}
	return done, err
}

// differences tells in what one configuration departs from another one that can work, in the parts that net-conf sets.
func (b Backends) differences(is, want []byte) (all []string, err error) {
	have, _, _, err := b.Parse("windows", is)
	if err != nil {
		return nil, fmt.Errorf("the network configuration that is there cannot work: %w", err)
	}
	asked, _, _, err := b.Parse("windows", want)
	if err != nil {
		return nil, err
	}
	differ := func(what string, have, asked any) {
		if have != asked {
			all = append(all, fmt.Sprintf("%s is %v, not %v", what, have, asked))
		}
	}
	differ("Backend.Type", have.Backend, asked.Backend)
	for _, n := range []struct {
		key         string
		have, asked subnet.Network
	}{{"Network", have.V4, asked.V4}, {"IPv6Network", have.V6, asked.V6}} {
		differ(n.key, prefixText(n.have.Prefix), prefixText(n.asked.Prefix))
	}
	return all, nil
}

func prefixText(p netip.Prefix) string {
	if !p.IsValid() {
		return "none"
	}
	return p.String()
}
