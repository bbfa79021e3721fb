package reconcile

// Change, PendingChanges and ApplyChanges describe how a long ordered list differs from its previous
// version: the peers' leases, from a lease manager to the plan, and the paths, from
// the plan to the dataplane. The receiver of a list and its changes does not have to
// compare two lists. Elements are never modified: one that differs is another pointer.

import (
	"cmp"
	"maps"
	"slices"
)

// Change is one difference between two lists. Old is only in the first list, New
// only in the second. An added element has no Old (nil), a removed one no New.
type Change[T any] struct{ Old, New *T }

// Either returns an element with the change's position in the order: New or, if
// there is none, Old.
func (c Change[T]) Either() *T { return cmp.Or(c.New, c.Old) }

// Added returns the changes from an empty list to list.
func Added[T any](list []*T) []Change[T] {
	added := make([]Change[T], 0, len(list))
	for _, e := range list {
		added = append(added, Change[T]{New: e})
	}
	return added
}

// PendingChanges collects changes by name until Take. Several changes of a name become one,
// with the first Old and the last New. The zero PendingChanges is empty.
type PendingChanges[T any] map[string]Change[T]

// Add adds a change that is later than those added before.
func (p *PendingChanges[T]) Add(name string, c Change[T]) {
	if *p == nil {
		*p = PendingChanges[T]{}
	}
	if earlier, found := (*p)[name]; found {
		c.Old = earlier.Old
	}
	if (*p)[name] = c; c.Old == c.New {
		delete(*p, name)
	}
}

// Take returns the collected changes in order, and removes them.
func (p *PendingChanges[T]) Take(compare func(a, b *T) int) []Change[T] {
	if len(*p) == 0 {
		return nil
	}
	taken := slices.AppendSeq(make([]Change[T], 0, len(*p)), maps.Values(*p))
	slices.SortFunc(taken, func(a, b Change[T]) int { return compare(a.Either(), b.Either()) })
	*p = nil
	return taken
}

// ApplyChanges returns a copy of an ordered list with the changes applied; without changes,
// the list itself. It costs a search for each change and a copy of the list. No two
// elements of a list may be equal.
func ApplyChanges[T any](list []*T, made []Change[T], compare func(a, b *T) int) []*T {
	if len(made) == 0 {
		return list
	}
	type edit struct {
		element *T
		in      bool
	}
	edits, length := make([]edit, 0, 2*len(made)), len(list)
	for _, c := range made {
		if c.Old != nil {
			edits, length = append(edits, edit{c.Old, false}), length-1
		}
		if c.New != nil {
			edits, length = append(edits, edit{c.New, true}), length+1
		}
	}
	slices.SortStableFunc(edits, func(a, b edit) int { // stable: an Old stays before the New that replaces it
		return compare(a.element, b.element)
	})
	changed := make([]*T, 0, max(length, 0))
	for _, e := range edits {
		at, found := slices.BinarySearchFunc(list, e.element, compare)
		changed, list = append(changed, list[:at]...), list[at:]
		switch {
		case e.in:
			changed = append(changed, e.element)
		case found:
			list = list[1:]
		}
	}
	return append(changed, list...)
}
