package driver

import (
	"context"
	"errors"
	"slices"

	"flannel/pkg/reconcile"
)

// Table is a reconcile.Table, whatever its entries are.
type Table interface {
	Name() string
	Len() int
	Add(context.Context) (reconcile.Result, error)
	Prune(context.Context) (reconcile.Result, error)
	Refresh(context.Context) error
	Relist()
	Reset()
}

// Tables stand in the order in which they are added to: what an entry needs stands before it. They are pruned the other
// way.
type Tables []Table

// Add returns the steps that add to the tables.
func (t Tables) Add(ctx context.Context, o Options) (steps []func() error) {
	for _, table := range t {
		steps = append(steps, step(o, table, func() (reconcile.Result, error) { return table.Add(ctx) }))
	}
	return steps
}

// Prune returns the steps that prune the tables.
func (t Tables) Prune(ctx context.Context, o Options) (steps []func() error) {
	for _, table := range slices.Backward(t) {
		steps = append(steps, step(o, table, func() (reconcile.Result, error) { return table.Prune(ctx) }))
	}
	return steps
}

// step changes one table, and reports what that did.
func step(o Options, t Table, do func() (reconcile.Result, error)) func() error {
	return func() error {
		done, err := do()
		if o.Report != nil {
			o.Report(t.Name(), t.Len(), done)
		}
		return err
	}
}

// Refresh lists what cannot be trusted.
func (t Tables) Refresh(ctx context.Context) error {
	var errs []error
	for _, table := range t {
		errs = append(errs, table.Refresh(ctx))
	}
	return errors.Join(errs...)
}

// Relist makes every table list its store before it is added to.
func (t Tables) Relist() {
	for _, table := range t {
		table.Relist()
	}
}

// Reset makes the tables want nothing.
func (t Tables) Reset() {
	for _, table := range t {
		table.Reset()
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
