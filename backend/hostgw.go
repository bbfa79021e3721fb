package backend

import (
	"fmt"
	"net/netip"
	"slices"

	"flannel/pkg/conf"
	"flannel/pkg/dataplane"
	"flannel/subnet"
)

// hostgw is the host-gw backend on Linux: peers are the gateways to their subnets. It
// has no tunnel and no overhead; all nodes must be on one link.
type hostgw struct{ plain }

// parseHostGW implements Kind.Parse.
func parseHostGW(o *conf.Object, os string) Maker {
	var name, dns string // of the HNS network, on Windows only
	if os == "windows" {
		name, dns = networkName(o, "cbr0"), dnsServers(o)
	} else {
		// One configuration serves the nodes of both systems.
		o.Ignore("Name", "DNSServerList")
	}
	return func(n Node) (Backend, []string, error) {
		// Packets of pods are sent unchanged, so pods get the underlay's MTU. Both
		// families share it; with IPv6, its higher minimum applies.
		if low := dataplane.MinMTU(n.V6); n.Underlay.MTU < low {
			return nil, nil, fmt.Errorf("the MTU of %s is %d: pods need at least %d; raise it", n.Underlay.Name, n.Underlay.MTU, low)
		}
		h := hostgw{plain{Node: n, Name: "host-gw"}}
		if os == "windows" {
			return bridge{h, name, dns}, h.warnings(), nil
		}
		return h, h.warnings(), nil
	}
}

// warnings warns of a dual stack in which IPv6 is likely to cut off IPv4, as in a cloud that
// gives each host an IPv6 address of length 128 by DHCP, and announces no network on the link.
func (h hostgw) warnings() []string {
	own := h.Underlay.V6.WithZone("")
	if !h.V4 || !h.V6 || !own.IsValid() ||
		slices.ContainsFunc(h.Underlay.OnLink, func(p netip.Prefix) bool { return p.Contains(own) && !p.IsSingleIP() }) {
		return nil
	}
	return []string{fmt.Sprintf("host-gw: no network on the link of %s contains its IPv6 address %s. Peers with IPv6 are rejected, also for IPv4, "+
		"if their IPv6 addresses are not on the link either: disable IPv6, or use another backend", h.Underlay.Name, own)}
}

// Paths implements Backend. A peer that is on our link in only one of the
// families that both use is rejected as a whole.
func (h hostgw) Paths(peer *subnet.Lease) ([]*dataplane.Path, error) {
	var paths []*dataplane.Path
	for e := range h.shared(peer) {
		path, err := h.direct(e)
		if err != nil {
			return nil, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// Wire returns Echo false: no device of ours has an address of the subnet, and the
// bridge of the pods, which has its second address, exists only on nodes with pods. The
// peer is the next hop of a packet, so a hop limit of 1 ends at its kernel.
func (h hostgw) Wire() Wire {
	return Wire{Name: "host-gw", Paths: true, Bridges: true, Hops: 1}
}
