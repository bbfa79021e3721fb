package underlay

import (
	"net/netip"
	"slices"
)

// Addrs returns the addresses that the node has, in order and each once, whichever interface they are on and whether it
// is up. Those that every node has (loopback, link-local) are not among them, nor those that another node may have
// (tentative).
func (s Snapshot) Addrs() []netip.Addr {
	var all []netip.Addr
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
