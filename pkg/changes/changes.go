// Package changes hands on a long ordered list together with how it differs from the one before: the peers' leases
// from a lease manager to the plan, and the paths to them from the plan to the dataplane. Who receives both never has
// to compare two lists.
package changes

import (
	"cmp"
	"maps"
	"slices"
)

// Change is one difference between two lists: Old is only in the former one, New only in the latter. One of them may
// be nil.
type Change[T any] struct{ Old, New *T }

// Either is the element that says where the change belongs.
func (c Change[T]) Either() *T { return cmp.Or(c.New, c.Old) }

// Added returns the changes that make a list out of an empty one.
func Added[T any](list []*T) []Change[T] {
	added := make([]Change[T], 0, len(list))
	for _, e := range list {
		added = append(added, Change[T]{New: e})
	}
	return added
}

// Pending collects changes by name until they are taken. A name that changes several times counts once, with its first
// Old and its last New. The zero Pending is empty.
type Pending[T any] map[string]Change[T]

// Add takes in a change that comes after those before.
func (p *Pending[T]) Add(name string, c Change[T]) {
	if *p == nil {
		*p = Pending[T]{}
	}
	if earlier, found := (*p)[name]; found {
		c.Old = earlier.Old
	}
	if (*p)[name] = c; c.Old == c.New {
		delete(*p, name)
	}
}

// Take returns what was collected, in order, and forgets it.
func (p *Pending[T]) Take(compare func(a, b *T) int) []Change[T] {
	if len(*p) == 0 {
		return nil
	}
	taken := slices.SortedFunc(maps.Values(*p), func(a, b Change[T]) int { return compare(a.Either(), b.Either()) })
	*p = nil
	return taken
}

// Apply returns a copy of an ordered list with the changes made; without changes, the list itself. It costs a search
// for each change, and copying the list. No two elements of a list may be equal.
func Apply[T any](list []*T, made []Change[T], compare func(a, b *T) int) []*T {
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
	slices.SortStableFunc(edits, func(a, b edit) int { // an Old stays before the New that takes its place
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
