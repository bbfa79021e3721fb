package underlay

import (
	"net/netip"
	"slices"
)

// Addrs returns the addresses of all interfaces, up or down, sorted and without
// duplicates. It omits loopback and link-local addresses, which every node has,
// and tentative ones, which another node may have.
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
