package driver

import (
	"context"
	"errors"
	"slices"

	"flannel/pkg/reconcile"
)

// Table is a reconcile.Table with entries of any type.
type Table interface {
	Name() string
	Len() int
	Add(context.Context) (reconcile.Result, error)
	Prune(context.Context) (reconcile.Result, error)
	Refresh(context.Context) error
	Relist()
	Reset()
}

// Tables are in the order in which entries are added: the entries of a table may
// need those of the tables before it. They are pruned in reverse order.
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

// step adds to or prunes a table, and reports the result.
func step(o Options, t Table, do func() (reconcile.Result, error)) func() error {
	return func() error {
		done, err := do()
		if o.Report != nil {
			o.Report(t.Name(), t.Len(), done)
		}
		return err
	}
}

// Refresh calls Refresh of every table.
func (t Tables) Refresh(ctx context.Context) error {
	var errs []error
	for _, table := range t {
		errs = append(errs, table.Refresh(ctx))
	}
	return errors.Join(errs...)
}

// Relist calls Relist of every table.
func (t Tables) Relist() {
	for _, table := range t {
		table.Relist()
	}
}

// Reset calls Reset of every table.
func (t Tables) Reset() {
	for _, table := range t {
		table.Reset()
	}
}

// AddThenRemove runs all steps that add, and then those that remove. An error does
// not stop other steps, but if adding returns an error that IsUnknown, or with
// keep, nothing is removed: entries that were not read may need it.
func AddThenRemove(keep bool, add, remove []func() error) error {
	err := runAll(add)
	if keep || reconcile.IsUnknown(err) {
		return err
	}
	return errors.Join(err, runAll(remove))
}

func runAll(steps []func() error) error {
	var errs []error
	for _, step := range steps {
		errs = append(errs, step())
	}
	return errors.Join(errs...)
}
