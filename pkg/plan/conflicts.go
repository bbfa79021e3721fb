package plan

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"flannel/pkg/dataplane"
)

// resolveConflicts decides which of the peers that claim the same resource, or overlapping subnets, are used, and returns
// the others with the reason. All nodes decide alike, because they compare the same leases in the same order; only with etcd,
// and where subnets of different sizes overlap, does the order depend on this node's size (see overlapping). The cost depends
// on the number of peers in conflicts, and with subnets of unusual size on that of all peers. Update calls it when a peer that
// may be in a conflict was added or removed. plan.go explains unusual sizes, and the indexes of a Plan (claimants).
//
// The peers are visited in the order of comparePrecedence, those in overlapping after all others. Each is rejected if it
//  1. claims a tunnel end (a VTEP's MAC address) that is derived from the subnet of another peer,
//  2. claims a resource that a peer before it has got, or
//  3. is in overlapping, and a subnet of it overlaps a subnet of a peer that is used.
//
// Otherwise it gets its resources. A peer that is rejected here gets none, so it cannot cause the rejection of a later one.
//
// Example with etcd, in a network with subnets of length /24, in the order in which the peers are visited:
//
//	lease  Since  subnet         VtepMAC  result
//	A      10     10.5.50.0/24   m1       used
//	B      20     10.5.60.0/24   m1       rejected by 2: A has m1
//	D      30     10.5.60.0/24   m4       used: B is rejected, so it has not got the subnet
//	C      5      10.5.60.0/22   m3       rejected by 3: it overlaps the subnet of D; it is the oldest lease, but comes last
//	                                      because its size is unusual and it overlaps others
//
// If m1 were derived from the subnet of B, then A would be rejected by 1 although its lease is older, B would be used, and
// D would be rejected by 2.
//
// In Kubernetes, B, C and D are all in overlapping, and visited by age: C is used, and the other two are rejected.
func (p *Plan) resolveConflicts() (conflicting map[*peer]string) {
	if len(p.claimants) == 0 && len(p.unusual) == 0 {
		return nil
	}
	sorted := p.sortedSubnets()
	parties := p.overlapping(sorted)
	last := maps.Clone(parties)
	order := func(a, b *peer) int { return cmp.Or(falseFirst(last[a], last[b]), comparePrecedence(a, b)) }
	derivedBy := map[resource]*peer{} // for contested tunnel ends: the first peer from whose subnet they are derived
	for r, claimants := range p.claimants {
		for _, peer := range claimants {
			parties[peer] = true
			if p.derives(peer, r) && (derivedBy[r] == nil || order(peer, derivedBy[r]) < 0) {
				derivedBy[r] = peer
			}
		}
	}
	conflicting = map[*peer]string{}
	owners := map[resource]*peer{} // of contested resources
	var used ownedSubnets          // nil until a peer in overlapping is visited
	for _, peer := range slices.SortedFunc(maps.Keys(parties), order) {
		reason := cmp.Or(p.conflictWithDerived(peer, derivedBy), conflictWithOwner(peer, owners))
		if reason == "" && last[peer] {
			if used == nil { // all peers that are not in overlapping were visited before
				used = slices.DeleteFunc(sorted, func(s ownedSubnet) bool { return last[s.owner] || conflicting[s.owner] != "" })
			}
			reason = used.overlap(peer)
		}
		if reason != "" {
			conflicting[peer] = reason
			continue
		}
		for r := range peer.claims() {
			if p.claimants[r] != nil { // contested; nobody asks for the owners of others
				owners[r] = peer
			}
		}
		if last[peer] {
			used = used.with(peer)
		}
	}
	return conflicting
}

// comparePrecedence orders peers by who gets a contested resource. The older lease comes first, so that a new lease cannot
// displace an existing one; among leases of the same age the order of subnet.Compare decides. The size of a subnet does not
// count: nodes with subnets of different sizes, such as after a change of the cluster's node CIDR mask, must decide alike.
func comparePrecedence(a, b *peer) int {
	return cmp.Or(cmp.Compare(a.lease.Since, b.lease.Since), comparePeers(a, b))
}

// overlapping returns the peers with a subnet that overlaps another peer's, and is not equal to it. Unless the cluster assigns
// the subnets, these are only the peers whose overlapping subnet is of unusual size. resolveConflicts visits them last, however
// old their leases are: otherwise one lease with a large subnet could get many peers rejected. A cluster may assign a subnet
// around that of another node: after the node CIDR mask was reduced from /25 to /24, kube-controller-manager assigns a /24
// again if one of its halves is released. Then the age decides, because the size would decide differently on each node. Equal
// subnets are resources, about which the age decides, too. sorted is the result of sortedSubnets.
func (p *Plan) overlapping(sorted ownedSubnets) map[*peer]bool {
	overlaps := map[netip.Prefix]bool{}
	var outer netip.Prefix // the last subnet that is not inside another one
	for _, s := range sorted {
		switch {
		case !outer.Overlaps(s.subnet):
			outer = s.subnet
		case outer != s.subnet:
			overlaps[outer], overlaps[s.subnet] = true, true
		}
	}
	peers := map[*peer]bool{}
	for _, s := range sorted {
		if overlaps[s.subnet] && (p.cfg.Assigned || !p.isUsual(s.subnet)) {
			peers[s.owner] = true
		}
	}
	return peers
}

// isUsual reports whether a subnet is of the usual size (see Plan).
func (p *Plan) isUsual(s netip.Prefix) bool { return s.Bits() == p.cfg.NetworkOf(s.Addr()).SubnetLen }

// falseFirst orders false before true.
func falseFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// derives reports whether r is a tunnel end that is derived from a subnet of the peer.
func (p *Plan) derives(peer *peer, r resource) bool {
	return slices.ContainsFunc(peer.paths, func(path *dataplane.Path) bool { return tunnelEnd(path) == r && p.derived(path) })
}

// derived reports whether the tunnel end of a path is derived from the path's subnet. Unless the cluster assigns the subnets,
// those of unusual size that are much smaller than the network do not count: an IPv6 network has so many of them that for any
// MAC address (46 bits are derived) there is a subnet from which it is derived.
func (p *Plan) derived(path *dataplane.Path) bool {
	few := p.cfg.Assigned || path.Dst.Bits() <= p.cfg.NetworkOf(path.Dst.Addr()).Prefix.Bits()+24
	return (few || p.isUsual(path.Dst)) && p.backend.Derived(path)
}

// conflictWithDerived returns a reason if the peer claims a tunnel end (a VTEP's MAC address) that is derived from the
// subnet of another peer, and not from its own. The age of the lease does not matter: otherwise a compromised node could
// displace every node with a younger lease.
func (p *Plan) conflictWithDerived(peer *peer, derivedBy map[resource]*peer) string {
	for r := range peer.claims() {
		if owner := derivedBy[r]; owner != nil && !p.derives(peer, r) {
			return fmt.Sprintf("%s is derived from the subnet of %s", r.end, owner.lease.Name)
		}
	}
	return ""
}

// conflictWithOwner returns a reason if the peer claims a resource that has an owner.
func conflictWithOwner(peer *peer, owners map[resource]*peer) string {
	for r := range peer.claims() {
		owner, owned := owners[r]
		switch {
		case !owned:
		case r.subnet.IsValid():
			return fmt.Sprintf("subnet %s is in use by %s", r.subnet, owner.lease.Name)
		default:
			return fmt.Sprintf("%s is in use by %s", r.end, owner.lease.Name)
		}
	}
	return ""
}

// ownedSubnets are subnets of peers, IPv4 first, sorted by address and length. The methods with and overlap are for those
// of the peers that are used, of which no two overlap.
type ownedSubnets []ownedSubnet

// ownedSubnet is a subnet of a peer.
type ownedSubnet struct {
	subnet netip.Prefix
	owner  *peer
}

// sortedSubnets returns the subnets of all valid peers; nil if all are of the usual size, and so equal or disjoint.
func (p *Plan) sortedSubnets() ownedSubnets {
	if len(p.unusual) == 0 {
		return nil
	}
	subnets := make(ownedSubnets, 0, p.peers.Len())
	for _, peer := range p.peers.All() {
		for _, path := range peer.paths {
			subnets = append(subnets, ownedSubnet{path.Dst, peer})
		}
	}
	slices.SortFunc(subnets, func(a, b ownedSubnet) int { return a.subnet.Compare(b.subnet) })
	return subnets
}

// with returns the list with the subnets of the peer inserted.
func (o ownedSubnets) with(peer *peer) ownedSubnets {
	for _, path := range peer.paths {
		o = slices.Insert(o, o.position(path.Dst), ownedSubnet{path.Dst, peer})
	}
	return o
}

// position returns the index at which s is, or would be inserted.
func (o ownedSubnets) position(s netip.Prefix) int {
	i, _ := slices.BinarySearchFunc(o, s.Addr(), func(e ownedSubnet, a netip.Addr) int { return e.subnet.Addr().Compare(a) })
	return i
}

// overlap returns a reason if a subnet of the peer overlaps one in the list. Since the list is sorted and has no overlaps,
// it is enough to look at the subnet at its position and at the one before.
func (o ownedSubnets) overlap(peer *peer) string {
	for _, path := range peer.paths {
		i := o.position(path.Dst)
		for _, other := range o[max(i-1, 0):min(i+1, len(o))] {
			if other.subnet.Overlaps(path.Dst) {
				return fmt.Sprintf("subnet %s overlaps %s of %s", path.Dst, other.subnet, other.owner.lease.Name)
			}
		}
	}
	return ""
}
