package dataplane

import (
	"cmp"
	"net/netip"
	"slices"
)

// DiffPaths returns how the paths of a state differ from those that the tables want
// (current). A path that has changed is in both: the former one in removed, the new
// one in added.
func DiffPaths(current []*Path, s State) (added, removed []*Path) {
	switch {
	case sameList(current, s.Paths):
		return nil, nil
	case len(current) == 0 || !sameList(current, s.Since):
		return differingPaths(current, s.Paths)
	}
	for _, c := range s.Changes {
		if c.Old != nil {
			removed = append(removed, c.Old)
		}
		if c.New != nil {
			added = append(added, c.New)
		}
	}
	return added, removed
}

// sameList reports whether two slices share their elements. Lists of paths are
// never modified, so these are equal.
func sameList(a, b []*Path) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// differingPaths returns the elements that only one of the lists contains.
func differingPaths(old, new []*Path) (added, removed []*Path) {
	for len(old) > 0 && len(new) > 0 && old[0] == new[0] {
		old, new = old[1:], new[1:]
	}
	for len(old) > 0 && len(new) > 0 && old[len(old)-1] == new[len(new)-1] {
		old, new = old[:len(old)-1], new[:len(new)-1]
	}
	if len(old) == 0 {
		return new, nil
	}
	gone := make(map[*Path]bool, len(old))
	for _, p := range old {
		gone[p] = true
	}
	for _, p := range new {
		if !gone[p] {
			added = append(added, p)
		}
		delete(gone, p)
	}
	return added, slices.DeleteFunc(slices.Clone(old), func(p *Path) bool { return !gone[p] })
}

// ComparePaths orders by subnet and, for routes of one subnet, by gateway.
func ComparePaths(a, b *Path) int { return cmp.Or(a.Dst.Compare(b.Dst), a.Via.Compare(b.Via)) }

// Inside reports whether s is a proper subnet of one of the networks.
func Inside(s netip.Prefix, networks []netip.Prefix) bool {
	return slices.ContainsFunc(networks, func(n netip.Prefix) bool {
		return n.Contains(s.Addr()) && s.Bits() > n.Bits()
	})
}
