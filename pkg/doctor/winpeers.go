package doctor

import (
	"net/netip"
	"slices"

	"flannel/pkg/status"
)

// peerPolicies finds missing policies, and stale ones, which send packets to a
// node that no longer has the subnet.
func peerPolicies(s Snapshot) Finding {
	network, _, _ := s.hns()
	if missing, stale := s.comparePeers(network.Remote); missing+stale > 0 {
		return fail("flanneld corrects this within minutes. If not, restart it and see its log for error codes of "+
			"HNS (0x803b…).",
			"%d policies are missing, %d are stale", missing, stale)
	}
	return ok("%d policies", len(network.Remote))
}

// comparePeers returns how many routes are missing, and how many belong to no
// peer. Peers that are up to date have their routes, retained ones too; a peer
// in the state Behind may have one.
func (s Snapshot) comparePeers(routes []PeerRoute) (missing, stale int) {
	have := map[PeerRoute]bool{}
	for _, r := range routes {
		have[r] = true
	}
	for _, p := range s.report().Peers {
		hasRoutes := p.State == status.UpToDate || p.State == status.RetainedPeer
		for i := range min(len(p.Subnets), len(p.PublicIPs)) {
			key := PeerRoute{p.Subnets[i], p.PublicIPs[i]}
			if hasRoutes && !have[key] {
				missing++
			}
			if hasRoutes || p.State == status.Behind {
				delete(have, key)
			}
		}
	}
	return missing, len(have)
}

// peerRoutes is for host-gw what peerPolicies is for an overlay. It ignores
// routes to other networks than the pods'.
func peerRoutes(s Snapshot) Finding {
	networks := s.podNetworks()
	routes := slices.DeleteFunc(slices.Clone(s.Windows.Routes.Value), func(r PeerRoute) bool {
		return !slices.ContainsFunc(networks, func(p netip.Prefix) bool {
			return p.Bits() < r.Subnet.Bits() && p.Contains(r.Subnet.Addr())
		})
	})
	if missing, stale := s.comparePeers(routes); missing+stale > 0 {
		return fail("flanneld corrects this within seconds. If not, see flanneld status. Remove persistent routes "+
			"that someone else added (route print; route delete).",
			"%d routes are missing, %d are stale", missing, stale)
	}
	return ok("%d routes", len(routes))
}
