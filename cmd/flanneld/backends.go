package main

import (
	"fmt"
	"runtime"
	"slices"
	"strings"

	"flannel/backend"
	"flannel/backend/alloc"
	"flannel/backend/hostgw"
	"flannel/backend/vxlan"
	"flannel/pkg/conf"
	"flannel/subnet"
)

// backends is the table of what Backend.Type may name. A new backend is one package and one line here.
func backends() []backend.Kind {
	return []backend.Kind{vxlan.Kind(), hostgw.Kind(), alloc.Kind()}
}

// parseConfig validates a raw network configuration, the backend's part included: all problems at once.
func parseConfig(raw []byte) (subnet.Config, backend.Maker, []string, error) {
	return parseConfigFor(runtime.GOOS, raw)
}

func parseConfigFor(os string, raw []byte) (subnet.Config, backend.Maker, []string, error) {
	config, root := subnet.ParseConfig(raw)
	object := root.Object("Backend")
	var maker backend.Maker
	var names []string
	for _, kind := range backends() {
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
