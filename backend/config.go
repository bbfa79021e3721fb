package backend

import (
	"fmt"
	"slices"
	"strings"

	"flannel/pkg/conf"
	"flannel/subnet"
)

// flannelsDefault is the backend of a configuration that names none.
const flannelsDefault = "udp"

// ParseConfig parses and validates a raw network configuration for an operating system
// (a value of runtime.GOOS). The error has all problems; the strings are warnings.
// After an error, the Config contains what was valid, and the Maker must not be
// used. The Maker has the rest of the checks, which depend on the node.
//
// Two packages read one JSON document: subnet the keys at the top, the backend those
// of the object Backend. conf records which keys were read. Warnings must come last,
// because it reports the others as unknown.
func ParseConfig(os string, raw []byte) (subnet.Config, Maker, []string, error) {
	config, root := subnet.ParseConfig(raw)
	object := root.Object("Backend")
	if config.Backend == "" {
		config.Backend = flannelsDefault
		root.Warn("Backend.Type", "is missing, which means %s, as with flannel; vxlan and host-gw are several times faster, so set one of them, or %[1]s to keep it", flannelsDefault)
	}
	kind := KindOf(config.Backend)
	if kind.Parse == nil {
		object.Problem("Type", "%s; use one of: %s", unsupported(config.Backend, kind), strings.Join(supported(), ", "))
		return config, nil, nil, root.Err() // no warnings: the backend's keys were not parsed and would all be unknown
	}
	maker := kind.Parse(object, os)
	// Only now is it known whether the backend has IPv6 here. The configuration
	// does not change by that, only this node's view of it.
	if slices.Contains(kind.V4Only, os) {
		config.V4Only = config.V6.On() // IPv6 is configured, and off here
		withoutIPv6(root, &config, os)
	}
	return config, maker, root.Warnings(), root.Err()
}

// unsupported says why there is no backend of a name. kind is that of the name.
func unsupported(name string, kind Kind) string {
	if kind.Refused != "" {
		return fmt.Sprintf("%s is not supported: %s", name, kind.Refused)
	}
	return fmt.Sprintf("unknown backend %.40q", name)
}

// supported returns the values of Backend.Type that can be used.
func supported() (names []string) {
	for _, kind := range Kinds() {
		if kind.Refused == "" {
			names = append(names, kind.Name)
		}
	}
	return names
}

// withoutIPv6 handles a backend that does not support IPv6 on this system. In a
// dual-stack cluster, the node uses only IPv4. In a cluster without IPv4 that is a
// problem. withoutIPv6 turns IPv6 off in c.
func withoutIPv6(root *conf.Object, c *subnet.Config, os string) {
	switch {
	case !c.V6.On():
	case c.V4.On():
		root.Warn("EnableIPv6", "%s does not support IPv6 on %s: this node and its pods have only IPv4", c.Backend, os)
	default:
		root.Problem("EnableIPv4", "false, and %s does not support IPv6 on %s: set it to true and set Network, or use host-gw", c.Backend, os)
	}
	c.V6 = subnet.Network{}
}
