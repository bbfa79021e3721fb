package peerset

import (
	"cmp"
	"slices"

	"flannel/subnet"
)

// edit takes an element out of an ordered slice, puts one in, or both.
type edit[T any] struct{ out, in *T }

// many edits are cheaper made by sorting anew than one by one.
const many = 64

// splice returns a copy of an ordered slice with the edits made; without edits, the slice itself.
func splice[T any](sorted []*T, edits []edit[T], compare func(a, b *T) int, anew func() []*T) []*T {
	switch {
	case len(edits) == 0:
		return sorted
	case len(edits) > many:
		all := anew()
		slices.SortFunc(all, compare)
		return all
	}
	sorted = append(make([]*T, 0, len(sorted)+len(edits)), sorted...)
	for _, e := range edits {
		if e.out != nil {
			if i, found := slices.BinarySearchFunc(sorted, e.out, compare); found {
				sorted = slices.Delete(sorted, i, i+1)
			}
		}
		if e.in != nil {
			i, _ := slices.BinarySearchFunc(sorted, e.in, compare)
			sorted = slices.Insert(sorted, i, e.in)
		}
	}
	return sorted
}

// compareLeases orders as subnet.Compare does. Of two names with one subnet, every node must see the same one first.
func compareLeases(a, b *subnet.Lease) int {
	return cmp.Or(subnet.Compare(a, b), cmp.Compare(a.Name, b.Name))
}

func compareRetained(a, b *subnet.Retained) int { return compareLeases(a.Lease, b.Lease) }

func (s *Set) allLeases() []*subnet.Lease {
	leases := s.presentLeases()
	for _, d := range s.withdrawn {
		if d.retained {
			leases = append(leases, d.Lease)
		}
	}
	return leases
}

func (s *Set) allRetained() []*subnet.Retained {
	var retained []*subnet.Retained
	for _, d := range s.withdrawn {
		if d.retained {
			retained = append(retained, &d.Retained)
		}
	}
	return retained
}
