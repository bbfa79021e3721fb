package plan

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"flannel/pkg/dataplane"
	"flannel/subnet"
)

// resolveConflicts decides between those who are in each other's way, alike on every node, and says why the others lose.
// Only they are looked at, and only when one of them comes or goes: a thousand conflicts do not make the change of a peer
// that has none more expensive.
func (p *Plan) resolveConflicts() map[*peer]string {
	if len(p.rivals) == 0 && len(p.odd) == 0 {
		return nil
	}
	parties := maps.Clone(p.odd)
	derived := map[claim]*peer{} // of VTEP addresses that several claim, one from whose subnet it is derived
	for c, all := range p.rivals {
		for _, one := range all {
			parties[one] = struct{}{}
			if p.derives(one, c) && (derived[c] == nil || precedence(one, derived[c]) < 0) {
				derived[c] = one
			}
		}
	}
	lost := map[*peer]string{}
	owners := map[claim]*peer{} // of what several claim
	others := spaces{plan: p, lost: lost}
	for _, one := range slices.SortedFunc(maps.Keys(parties), precedence) {
		reason := cmp.Or(p.usurps(one, derived), beaten(one, owners))
		if reason == "" && one.odd {
			reason = others.overlap(one)
		}
		if reason != "" {
			lost[one] = reason
			continue
		}
		for c := range one.claims() {
			if p.rivals[c] != nil {
				owners[c] = one
			}
		}
		if one.odd {
			others.take(one)
		}
	}
	return lost
}

// precedence: a subnet of the usual size goes before one of another size, and the older lease before the younger, so
// that who comes later with another's address does not drive it out. Of the same age, the order of the leases counts.
func precedence(a, b *peer) int {
	if a.odd != b.odd {
		if b.odd {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(a.lease.Since, b.lease.Since), subnet.Compare(a.lease, b.lease))
}

// derives reports whether c is a VTEP address that is derived from a subnet of the peer's. With a subnet of an odd size
// it does not count: there are so many of them in an IPv6 network that some subnet has any address that one looks for.
func (p *Plan) derives(one *peer, c claim) bool {
	return p.tunnel != nil && !one.odd && slices.ContainsFunc(one.paths, func(path *dataplane.Path) bool {
		return vtep(path) == c && p.tunnel.Derived(path)
	})
}

// usurps finds a VTEP address that the peer claims although it is derived from another's subnet. However old the lease
// is, such a claim never counts: else a node that was broken into could drive out each node that is younger.
func (p *Plan) usurps(one *peer, derived map[claim]*peer) string {
	for c := range one.claims() {
		if owner := derived[c]; owner != nil && !p.derives(one, c) {
			return fmt.Sprintf("its VtepMAC %s is that of %s, from whose subnet it is derived", c.mac, owner.lease.Name)
		}
	}
	return ""
}

// beaten finds what of one's claims one with precedence has.
func beaten(one *peer, owners map[claim]*peer) string {
	for c := range one.claims() {
		other, taken := owners[c]
		switch {
		case !taken:
		case c.subnet.IsValid():
			return fmt.Sprintf("its subnet %s is also that of %s", c.subnet, other.lease.Name)
		default:
			return fmt.Sprintf("its VtepMAC %s is also that of %s", c.mac, other.lease.Name)
		}
	}
	return ""
}

// spaces are the subnets that are given away, in order. Only a subnet of another size can overlap without being the
// same: they are made when there is one.
type spaces struct {
	plan   *Plan
	lost   map[*peer]string // complete for subnets of the usual size by the time of the first overlap
	usual  [2]space         // IPv4, IPv6
	filled [2]bool
	odd    [2]space
}

// space is a list of subnets that do not overlap, in order.
type space []given

type given struct {
	subnet netip.Prefix
	to     *peer
}

func family(s netip.Prefix) int {
	if s.Addr().Is6() {
		return 1
	}
	return 0
}

// overlap finds a subnet that is given away and overlaps one of one's.
func (s *spaces) overlap(one *peer) string {
	for _, path := range one.paths {
		f := family(path.Dst)
		s.fill(f)
		for _, in := range []space{s.usual[f], s.odd[f]} {
			if other, found := in.find(path.Dst); found {
				return fmt.Sprintf("its subnet %s overlaps %s of %s", path.Dst, other.subnet, other.to.lease.Name)
			}
		}
	}
	return ""
}

func (s *spaces) take(one *peer) {
	for _, path := range one.paths {
		in := &s.odd[family(path.Dst)]
		*in = slices.Insert(*in, in.position(path.Dst), given{path.Dst, one})
	}
}

func (s *spaces) fill(f int) {
	if s.filled[f] {
		return
	}
	s.filled[f] = true
	all := make(space, 0, len(s.plan.peers))
	for _, one := range s.plan.peers {
		if one.odd || s.lost[one] != "" {
			continue
		}
		for _, path := range one.paths {
			if family(path.Dst) == f {
				all = append(all, given{path.Dst, one})
			}
		}
	}
	order := func(a, b given) int { return a.subnet.Addr().Compare(b.subnet.Addr()) }
	if !slices.IsSortedFunc(all, order) { // leases are in the order of their IPv4 subnets
		slices.SortFunc(all, order)
	}
	s.usual[f] = all
}

// position is where a subnet is, or would be.
func (s space) position(of netip.Prefix) int {
	i, _ := slices.BinarySearchFunc(s, of.Addr(), func(g given, a netip.Addr) int { return g.subnet.Addr().Compare(a) })
	return i
}

// find returns one that overlaps: of those in order, it begins right before, or at or after where this one begins.
func (s space) find(overlapping netip.Prefix) (given, bool) {
	i := s.position(overlapping)
	for _, g := range s[max(i-1, 0):min(i+1, len(s))] {
		if g.subnet.Overlaps(overlapping) {
			return g, true
		}
	}
	return given{}, false
}
