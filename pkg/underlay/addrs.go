package underlay

import (
	"net/netip"
	"slices"
)

// Addrs are addresses of this node, of all of its interfaces, in order and each once. An Addrs is never changed.
type Addrs []netip.Addr

// Addrs returns those that the node has, whichever interface they are on and whether it is up. Those that every node
// has (loopback, link-local) are not in it, nor those that another node may have (tentative).
func (s Snapshot) Addrs() Addrs {
	var all Addrs
	for _, in := range s.Interfaces {
		for _, a := range in.Addrs {
			if !a.IP.IsLoopback() && !a.IP.IsLinkLocalUnicast() && !a.Tentative {
				all = append(all, a.IP)
			}
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// Has reports whether the node has an address.
func (a Addrs) Has(ip netip.Addr) bool {
	_, found := slices.BinarySearchFunc(a, ip, netip.Addr.Compare)
	return found
}
