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
// the others with the reason. All nodes decide alike, because they compare the same leases in the same order. The cost
// depends on the number of peers in conflicts only. Update calls it when a peer that may be in a conflict was added or
// removed. plan.go explains unusual sizes, and the indexes of a Plan (claimants).
//
// The peers are visited in the order of comparePrecedence. Each is rejected if it
//  1. claims a tunnel end (a VTEP's MAC address) that is derived from the subnet of another peer,
//  2. claims a resource that a peer before it has got, or
//  3. has a subnet of unusual size that overlaps a subnet of a peer that is used.
//
// Otherwise it gets its resources. A rejected peer gets none, so it cannot cause the rejection of a later one.
//
// Example, in a network with subnets of length /24, in the order in which the peers are visited:
//
//	lease  Since  subnet         VtepMAC  result
//	A      10     10.5.50.0/24   m1       used
//	B      20     10.5.60.0/24   m1       rejected by 2: A has m1
//	D      30     10.5.60.0/24   m4       used: B is rejected, so it has not got the subnet
//	C      5      10.5.60.0/22   m3       rejected by 3: it overlaps the subnet of D; it is the oldest lease, but comes last
//	                                      because of its size
//
// If m1 were derived from the subnet of B, then A would be rejected by 1 although its lease is older, B would be used, and
// D would be rejected by 2.
func (p *Plan) resolveConflicts() (conflicting map[*peer]string) {
	if len(p.claimants) == 0 && len(p.unusual) == 0 {
		return nil
	}
	parties := maps.Clone(p.unusual)
	derivedBy := map[resource]*peer{} // for contested tunnel ends: the first peer from whose subnet they are derived
	for r, claimants := range p.claimants {
		for _, peer := range claimants {
			parties[peer] = struct{}{}
			if p.derives(peer, r) && (derivedBy[r] == nil || comparePrecedence(peer, derivedBy[r]) < 0) {
				derivedBy[r] = peer
			}
		}
	}
	conflicting = map[*peer]string{}
	owners := map[resource]*peer{} // of contested resources
	var used ownedSubnets          // nil until a peer with a subnet of unusual size is visited
	for _, peer := range slices.SortedFunc(maps.Keys(parties), comparePrecedence) {
		reason := cmp.Or(p.conflictWithDerived(peer, derivedBy), conflictWithOwner(peer, owners))
		if reason == "" && peer.unusual {
			if used == nil {
				used = p.usualSubnets(conflicting) // complete: these peers were visited before
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
		if peer.unusual {
			used = used.with(peer)
		}
	}
	return conflicting
}

// comparePrecedence orders peers by who gets a contested resource. A peer with subnets of the usual size comes before
// one with a subnet of unusual size. Among these the older lease comes first, so that a new lease cannot displace an
// existing one; among leases of the same age the order of subnet.Compare decides.
func comparePrecedence(a, b *peer) int {
	return cmp.Or(falseFirst(a.unusual, b.unusual), cmp.Compare(a.lease.Since, b.lease.Since), comparePeers(a, b))
}

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

// derives reports whether r is a tunnel end that is derived from a subnet of the peer. Subnets of unusual size do not
// count: an IPv6 network has so many of them that for any MAC address there is a subnet from which it is derived.
func (p *Plan) derives(peer *peer, r resource) bool {
	return !peer.unusual && slices.ContainsFunc(peer.paths, func(path *dataplane.Path) bool {
		return tunnelEnd(path) == r && p.backend.Derived(path)
	})
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

// ownedSubnets are the subnets of the peers that are used, IPv4 first, sorted by address. No two of them overlap. Only
// peers with a subnet of unusual size are compared with them.
type ownedSubnets []ownedSubnet

// ownedSubnet is a subnet of a peer that is used.
type ownedSubnet struct {
	subnet netip.Prefix
	owner  *peer
}

// usualSubnets returns the subnets of the peers that have subnets of the usual size only, without those in conflicting.
func (p *Plan) usualSubnets(conflicting map[*peer]string) ownedSubnets {
	subnets := make(ownedSubnets, 0, p.peers.Len())
	for _, peer := range p.peers.All() {
		if peer.unusual || conflicting[peer] != "" {
			continue
		}
		for _, path := range peer.paths {
			subnets = append(subnets, ownedSubnet{path.Dst, peer})
		}
	}
	slices.SortFunc(subnets, func(a, b ownedSubnet) int { return a.subnet.Addr().Compare(b.subnet.Addr()) })
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
