// This file calls the methods of several reconcile.Tables, whose documentation
// says what each method does.

package dataplane

import (
	"context"
	"errors"
	"slices"

	"flannel/pkg/reconcile"
)

// Table is a reconcile.Table with entries of any type. The daemon's loop calls the methods,
// by the driver.
type Table interface {
	Name() string
	Len() int
	Add(context.Context) (reconcile.Result, error)
	Prune(context.Context) (reconcile.Result, error)
	Refresh(context.Context) error
	Relist()
	Reset()
	Forget()
	TakeRepairs() reconcile.Repairs
}

// Tables are in the order in which entries are added: the entries of a table may
// need those of the tables before it. They are pruned in reverse order. Tables with
// the same name are reported as one.
type Tables []Table

// report reports what Add or Prune of one of the tables has done.
func (t Tables) report(o Options, done Table, result reconcile.Result) {
	entries := 0
	for _, table := range t {
		if table.Name() == done.Name() {
			entries += table.Len()
		}
	}
	if o.Report != nil {
		o.Report(done.Name(), entries, result)
	}
	o.Repairs.add(done.Name(), done.TakeRepairs())
}

// Add adds to the tables in order. It stops after a table with an error that
// IsUnknown, since the entries of later tables may need those that were not
// added: for example, a neighbour must not point to another VTEP before the
// VTEP's FDB entry exists.
func (t Tables) Add(ctx context.Context, o Options) error {
	var errs []error
	for _, table := range t {
		done, err := table.Add(ctx)
		t.report(o, table, done)
		if errs = append(errs, err); reconcile.IsUnknown(err) {
			break
		}
	}
	return errors.Join(errs...)
}

// Prune prunes the tables. Call it only if MayDelete.
func (t Tables) Prune(ctx context.Context, o Options) error {
	var errs []error
	for _, table := range slices.Backward(t) {
		done, err := table.Prune(ctx)
		t.report(o, table, done)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Refresh calls Refresh of the tables in order. It stops after the first error, since what a table lists
// may need the lists of those before it: for example, a route that of the nexthop objects.
func (t Tables) Refresh(ctx context.Context) error {
	for _, table := range t {
		if err := table.Refresh(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Relist calls Relist of every table.
func (t Tables) Relist() {
	for _, table := range t {
		table.Relist()
	}
}

// Forget calls Forget of every table.
func (t Tables) Forget() {
	for _, table := range t {
		table.Forget()
	}
}

// Reset calls Reset of every table.
func (t Tables) Reset() {
	for _, table := range t {
		table.Reset()
	}
}

// MayDelete reports whether a pass whose additions returned err may delete
// something: not if s.Keep forbids it, nor if something could not be read, because
// entries that were not read may need what would be deleted.
func MayDelete(s State, err error) bool { return !s.Keep && !reconcile.IsUnknown(err) }
