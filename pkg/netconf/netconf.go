// Package netconf reads network configurations, the backend's part included, and makes those of Windows nodes.
package netconf

import (
	"fmt"
	"slices"
	"strings"

	"flannel/backend"
	"flannel/pkg/conf"
	"flannel/subnet"
)

// Backends are those that Backend.Type may name.
type Backends []backend.Kind

// Parse validates a raw network configuration for an operating system (runtime.GOOS), the backend's part included: all
// problems at once. The strings are warnings.
func (b Backends) Parse(os string, raw []byte) (subnet.Config, backend.Maker, []string, error) {
	config, root := subnet.ParseConfig(raw)
	object := root.Object("Backend")
	var maker backend.Maker
	var names []string
	for _, kind := range b {
		names = append(names, kind.Name)
		if kind.Name == config.Backend {
			maker = kind.Parse(object, os)
			if slices.Contains(kind.V4Only, os) {
				config.V6 = withoutIPv6(root, config, os)
			}
		}
	}
	if maker == nil {
		what := "is missing"
		if config.Backend != "" {
			what = fmt.Sprintf("%.40q is none that this flanneld has", config.Backend)
		}
		object.Problem("Type", "%s; use one of: %s", what, strings.Join(names, ", "))
		return config, nil, nil, root.Err() // no warnings: nobody has read the backend's keys
	}
	return config, maker, root.Warnings(), root.Err()
}

// withoutIPv6 is for a backend that has no IPv6 on this system: the node joins a dual-stack cluster with IPv4 alone, as
// a node of an IPv4 cluster would. Where there is no IPv4, it cannot join.
func withoutIPv6(root *conf.Object, c subnet.Config, os string) subnet.Network {
	switch {
	case !c.V6.On():
	case c.V4.On():
		root.Warn("EnableIPv6", "%s has no IPv6 in %s: this node and its pods have IPv4 alone", os, c.Backend)
	default:
		root.Problem("EnableIPv4", "false, and %s has no IPv6 in %s: set it to true and give a Network, or use host-gw", os, c.Backend)
	}
	return subnet.Network{}
}
