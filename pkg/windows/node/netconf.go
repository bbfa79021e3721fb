package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"

	"flannel/backend"
	"flannel/pkg/file"
)

// networkModes are the backends by the names that scripts for Windows nodes use, the
// values of the flag --network-mode. The VNI is the smallest, and the port the only one,
// that all versions of Windows support.
var networkModes = map[string]json.RawMessage{
	"overlay":  json.RawMessage(`{"Type": "vxlan", "VNI": 4096, "Port": 4789}`),
	"l2bridge": json.RawMessage(`{"Type": "host-gw"}`),
}

// ComposeNetConf returns the network configuration (flannel's net-conf.json) of a Windows node
// for a value of --network-mode and at most one pod network of each family. ParseConfig has
// validated it, as the daemon on Windows does. The commands prepare, net-conf and node start
// call it.
func ComposeNetConf(mode string, cluster []netip.Prefix) ([]byte, error) {
	chosen, ok := networkModes[strings.ToLower(mode)] // PowerShell's ValidateSet ignores case
	if !ok {
		return nil, fmt.Errorf("--network-mode: unknown mode %.40q; use overlay or l2bridge", mode)
	}
	// EnableIPv4 defaults to true, so it must be present to be off.
	conf := map[string]any{"Backend": chosen, "EnableIPv4": false}
	for _, p := range cluster {
		network, enable := "Network", "EnableIPv4"
		if p.Addr().Is6() {
			network, enable = "IPv6Network", "EnableIPv6"
		}
		if _, twice := conf[network]; twice {
			return nil, fmt.Errorf("--cluster-cidr: %s is the second of its family; set at most one of each", p)
		}
		conf[network], conf[enable] = p, true
	}
	raw, err := json.MarshalIndent(conf, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode the network configuration: %w", err)
	}
	// Not every combination of flags is possible: an overlay has no IPv6 alone.
	if _, _, _, err = backend.ParseConfig("windows", raw); err != nil {
		return nil, err
	}
	return append(raw, '\n'), nil
}

// NetConfOutcome is what PutNetConf did.
type NetConfOutcome struct {
	Path    string   `json:"path"`
	Result  string   `json:"result,omitempty"`  // "written", "kept"; empty if it could not be read or written
	Differs []string `json:"differs,omitempty"` // how the kept file differs from the requested configuration
}

// PutNetConf writes the network configuration of a Windows node, which ComposeNetConf
// made, to path. It keeps an existing file, which may have settings of the cluster that the flags
// cannot express, and reports how it differs. It returns an error if the existing
// file is invalid or cannot be read; then Result is "kept" or "".
func PutNetConf(path string, want []byte) (NetConfOutcome, error) {
	done := NetConfOutcome{Path: path}
	existing, err := file.ReadTrusted(path)
	switch { // any other error of reading is returned as it is: the file is not touched
	case errors.Is(err, fs.ErrNotExist):
		if _, err = file.Put(path, want, 0o644); err == nil {
			done.Result = "written"
		}
	case err == nil:
		done.Result = "kept"
		if done.Differs, err = netConfDifferences(existing, want); err != nil {
			err = fmt.Errorf("%s: %w", path, err)
		}
	}
	return done, err
}

// netConfDifferences describes how the existing configuration differs from the requested
// one in the keys that ComposeNetConf sets, except the backend's own.
func netConfDifferences(existing, want []byte) (differences []string, err error) {
	have, _, _, err := backend.ParseConfig("windows", existing)
	if err != nil {
		return nil, fmt.Errorf("the existing network configuration is invalid: %w", err)
	}
	requested, _, _, err := backend.ParseConfig("windows", want)
	if err != nil {
		return nil, err
	}
	compare := func(key string, have, requested any) {
		if have != requested {
			differences = append(differences, fmt.Sprintf("%s is %v, not %v", key, have, requested))
		}
	}
	compare("Backend.Type", have.Backend, requested.Backend)
	compare("Network", prefixText(have.V4.Prefix), prefixText(requested.V4.Prefix))
	compare("IPv6Network", prefixText(have.V6.Prefix), prefixText(requested.V6.Prefix))
	return differences, nil
}

// prefixText formats a network for a message; the zero Prefix means that the family
// is off.
func prefixText(p netip.Prefix) string {
	if !p.IsValid() {
		return "none"
	}
	return p.String()
}
