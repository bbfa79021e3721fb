package dataplane

import "net/netip"

// blackholeMetric makes a blackhole lose against the connected route that the pods' bridge has for the same prefix (0, and
// 256 for IPv6), and against any that an operator adds.
const blackholeMetric = 1 << 16

// kernelRoute is a route of the main table as a message describes it.
type kernelRoute struct {
	key      routeKey
	hop      hop
	protocol uint8
	nexthop  uint32 // ID of its nexthop object, 0 if it has none
}

// Protocol numbers of rtnetlink: who made a route. 70 is ours, and free in iproute2's list.
const (
	protocolBoot = 3
	protocolOurs = 70
)

// ours tells whether a route may be changed and deleted: it carries our protocol number, or has exactly the shape of
// flannel's: the protocol "boot" that a route gets when nobody says otherwise, the usual metric, a destination inside
// the pod network and a gateway (through a tunnel of ours: the destination's own base address, onlink).
func (r kernelRoute) ours(networks []netip.Prefix, tunnels map[int]bool) bool {
	if r.protocol == protocolOurs {
		return true
	}
	if r.protocol != protocolBoot || r.key.Metric != defaultMetric(r.key.Dst.Addr()) || r.hop.Odd {
		return false
	}
	if tunnels[r.hop.Index] && r.hop.Onlink && r.hop.Via == r.key.Dst.Addr() {
		return true
	}
	return (r.hop.Via.IsValid() || r.hop.Blackhole) && inside(r.key.Dst, networks)
}
