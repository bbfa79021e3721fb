package dataplane

import (
	"cmp"
	"context"
	"errors"

	"flannel/pkg/reconcile"
)

// differing returns what only one of the two lists holds. Most often they differ in one place, if at all.
func differing(old, new []*Path) (added, removed []*Path) {
	if len(old) == len(new) && len(old) > 0 && &old[0] == &new[0] {
		return nil, nil // the very same list
	}
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
