package daemon

import (
	"fmt"
	"net/netip"
	"slices"

	"flannel/subnet"
)

// tunnelSources returns the addresses from which other nodes may get packets of this
// node's tunnel, without the public IPs: those that the operator has given, and the
// underlay's own address if another one is published.
func (n *node) tunnelSources(given []netip.Addr) (sources []netip.Addr, warnings []string) {
	for _, a := range given {
		if err := n.config.CheckSource(a); err != nil {
			warnings = append(warnings, fmt.Sprintf("--tunnel-source is ignored: %v", err))
			continue
		}
		sources = append(sources, a)
	}
	if len(given) > 0 && n.config.Backend != "vxlan" {
		warnings = append(warnings, fmt.Sprintf("--tunnel-source has no effect with the backend %s; list the addresses in GuardSources", n.config.Backend))
	}
	for _, family := range []struct {
		own, public netip.Addr
		overwritten bool
	}{{n.host.link.V4, n.host.link.PublicV4, n.host.operator.Overwritten4}, {n.host.link.V6, n.host.link.PublicV6, n.host.operator.Overwritten6}} {
		other := family.own != family.public || family.overwritten
		if other && n.config.CheckSource(family.own) == nil && !slices.Contains(sources, family.own) && len(sources) < subnet.MaxSources {
			sources = append(sources, family.own)
		}
	}
	return sources, warnings
}
