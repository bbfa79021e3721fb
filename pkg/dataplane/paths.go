package dataplane

import (
	"cmp"
	"context"
	"errors"

	"flannel/pkg/reconcile"
)

// differing returns how the paths of a state differ from those that the tables were told last.
func differing(told []*Path, s State) (added, removed []*Path) {
	switch {
	case sameList(told, s.Paths):
		return nil, nil
	case len(told) == 0 || !sameList(told, s.Since):
		return compared(told, s.Paths)
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

// sameList reports whether two lists, which are never written to, are the very same.
func sameList(a, b []*Path) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }

// compared returns what only one of the two lists holds.
func compared(old, new []*Path) (added, removed []*Path) {
	for len(old) > 0 && len(new) > 0 && old[0] == new[0] {
		old, new = old[1:], new[1:]
	}
	for len(old) > 0 && len(new) > 0 && old[len(old)-1] == new[len(new)-1] {
		old, new = old[:len(old)-1], new[:len(new)-1]
	}
	kept := make(map[*Path]bool, len(old))
	for _, p := range old {
		kept[p] = false
	}
	for _, p := range new {
		if _, ok := kept[p]; ok {
			kept[p] = true
		} else {
			added = append(added, p)
		}
	}
	for _, p := range old {
		if !kept[p] {
			removed = append(removed, p)
		}
	}
	return added, removed
}

// comparePaths orders by subnet and, for routes of one subnet, by gateway.
func comparePaths(a, b *Path) int { return cmp.Or(a.Dst.Compare(b.Dst), a.Via.Compare(b.Via)) }

// step adds to or prunes one table, and reports what that did.
func step[K, V comparable](ctx context.Context, o Options, t *reconcile.Table[K, V],
	do func(*reconcile.Table[K, V], context.Context) (reconcile.Result, error)) func() error {
	return func() error {
		done, err := do(t, ctx)
		if o.Report != nil {
			o.Report(t.Name(), t.Len(), done)
		}
		return err
	}
}

// addThenRemove takes all steps that add, each whatever became of the others, and then those that remove. Removing
// waits for a pass in which everything could be read: what was not seen may be there and needed.
func addThenRemove(keep bool, add, remove []func() error) error {
	err := all(add)
	if keep || reconcile.IsUnknown(err) {
		return err
	}
	return errors.Join(err, all(remove))
}

func all(steps []func() error) error {
	var errs []error
	for _, step := range steps {
		errs = append(errs, step())
	}
	return errors.Join(errs...)
}
