package driver

import (
	"context"
	"errors"

	"flannel/pkg/reconcile"
)

// Step adds to or prunes one table, and reports what that did.
func Step[K, V comparable](ctx context.Context, o Options, t *reconcile.Table[K, V],
	do func(*reconcile.Table[K, V], context.Context) (reconcile.Result, error)) func() error {
	return func() error {
		done, err := do(t, ctx)
		if o.Report != nil {
			o.Report(t.Name(), t.Len(), done)
		}
		return err
	}
}

// AddThenRemove takes all steps that add, each whatever became of the others, and then those that remove. Removing
// waits for a pass in which everything could be read: what was not seen may be there and needed.
func AddThenRemove(keep bool, add, remove []func() error) error {
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
