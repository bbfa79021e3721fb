// Package driver holds what the drivers of the operating systems share: which
// paths changed, in which order tables are written, and which paths refused
// entries belong to. It makes no system calls.
package driver

import (
	"cmp"
	"net/netip"
	"slices"

	"flannel/pkg/dataplane"
)

// Diff returns how the paths of a state differ from those that the tables want.
func Diff(current []*dataplane.Path, s dataplane.State) (added, removed []*dataplane.Path) {
	switch {
	case sameList(current, s.Paths):
		return nil, nil
	case len(current) == 0 || !sameList(current, s.Since):
		return compare(current, s.Paths)
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
func sameList(a, b []*dataplane.Path) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// compare returns the elements that only one of the lists contains.
func compare(old, new []*dataplane.Path) (added, removed []*dataplane.Path) {
	for len(old) > 0 && len(new) > 0 && old[0] == new[0] {
		old, new = old[1:], new[1:]
	}
	for len(old) > 0 && len(new) > 0 && old[len(old)-1] == new[len(new)-1] {
		old, new = old[:len(old)-1], new[:len(new)-1]
	}
	if len(old) == 0 {
		return new, nil
	}
	gone := make(map[*dataplane.Path]bool, len(old))
	for _, p := range old {
		gone[p] = true
	}
	for _, p := range new {
		if !gone[p] {
			added = append(added, p)
		}
		delete(gone, p)
	}
	return added, slices.DeleteFunc(slices.Clone(old), func(p *dataplane.Path) bool { return !gone[p] })
}

// Compare orders by subnet and, for routes of one subnet, by gateway.
func Compare(a, b *dataplane.Path) int { return cmp.Or(a.Dst.Compare(b.Dst), a.Via.Compare(b.Via)) }

// Inside reports whether s is a proper subnet of one of the networks.
func Inside(s netip.Prefix, networks []netip.Prefix) bool {
	return slices.ContainsFunc(networks, func(n netip.Prefix) bool {
		return n.Contains(s.Addr()) && s.Bits() > n.Bits()
	})
}
