package linux

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"flannel/pkg/dataplane"
)

// Routes that belong to no peer: to the whole pod network, or to this node's own part of
// it. For the network 10.244.0.0/16 and the own subnet 10.244.1.0/24:
//
//	TUN        10.244.0.0/16 dev flannel0 scope link
//	WireGuard  10.244.0.0/16 dev flannel-wg scope link metric 65536
//	           10.244.1.0/24 dev flannel-wg scope link metric 65536
//	IPsec      blackhole 10.244.1.0/24 metric 65536
//	all, with State.Blackholes
//	           blackhole 10.244.1.0/24 metric 65536
//
// To a TUN device, one route leads for all peers. With WireGuard and IPsec, what no other
// route takes must not leave by the host's default route, unencrypted. With WireGuard, the
// route to the network takes packets to a subnet of no peer. The route to the own subnet
// takes what was decrypted for a node that has no pods yet, and so no bridge. WireGuard
// drops these packets, as no peer has such an allowed IP. Unlike with a blackhole, the kernel
// answers packets whose hop limit is over, such as probes. The metric, lastMetric, makes
// the routes lose against those of the pods' bridge.
//
// If the network contains the address of a node, there may be other hosts with such
// addresses, which are reached by the default route. Then WireGuard has no route to the
// network. (With IPsec, policies drop what has no peer.)

// addNetworkRoutes makes the table of routes want these routes, and tries to add them
// before there is a peer from which packets could be decrypted. Apply calls it after begin and
// before it wants the paths.
func (d *Driver) addNetworkRoutes(ctx context.Context, s dataplane.State) {
	want := d.networkRoutesOf(s)
	if maps.Equal(want, d.rows.network) {
		return
	}
	for key := range d.rows.network {
		d.routes.Drop(key)
	}
	for key, h := range want {
		d.routes.Want(key, h)
	}
	d.rows.network = want
	// What fails is tried again by this pass, after the peers; then the pass returns the error.
	_ = dataplane.Tables{d.nexthops, d.routes}.Add(ctx, d.opts)
}

// networkRoutesOf returns the routes that the state wants and that lead to no peer.
func (d *Driver) networkRoutesOf(s dataplane.State) map[routeKey]hop {
	want := map[routeKey]hop{}
	for _, dev := range d.desired {
		if k, err := d.kindOf(dev); err == nil {
			k.networkRoutes(want, dev, d.links[dev.Name], s)
		}
	}
	addBlackholes(want, s.Blackholes)
	return want
}

// addBlackholes adds routes that drop what no other route to these subnets takes.
func addBlackholes(want map[routeKey]hop, subnets []netip.Prefix) {
	for _, p := range subnets {
		want[routeKey{p, lastMetric}] = hop{Blackhole: true}
	}
}

// withoutNodes returns the networks that contain no address of a node.
func withoutNodes(s dataplane.State) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(s.Networks), func(n netip.Prefix) bool {
		return slices.ContainsFunc(s.Underlay, func(p netip.Prefix) bool { return p.IsSingleIP() && n.Contains(p.Addr()) }) ||
			slices.ContainsFunc(s.Paths, func(p *dataplane.Path) bool { return n.Contains(p.Via) })
	})
}
