// Package reconcile brings a table of the system (routes, neighbours, HNS policies) to what it should hold.
//
// A Table knows two maps: what is wanted and what is there. It learns what is there by listing the store once, then
// from its own writes and from the system's notifications, so that a change costs what the change costs and not what
// the table holds. When it can no longer be sure (lost notifications, a device that came back), it lists again:
// restart, drift and a missed event are one and the same case.
package reconcile

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// Entry is one line of a table.
type Entry[K, V comparable] struct {
	Key   K
	Value V
}

// Store is where the entries live. Only what is ours is ever listed, so only what is ours can be deleted.
type Store[K, V comparable] interface {
	// Name of the table, for messages and metrics: "routes".
	Name() string
	// List returns all entries that are ours.
	List(ctx context.Context) (map[K]V, error)
	// Set creates or replaces entries, one system call for many. Element i of the result belongs to entry i; nil is
	// success for all.
	Set(ctx context.Context, entries []Entry[K, V]) []error
	// Delete removes entries as List returned them; an entry that is gone already is no error.
	Delete(ctx context.Context, entries []Entry[K, V]) []error
}

// Table compares what is wanted with what is there. All methods may be called from several goroutines, but only one
// may be inside Add or Prune.
type Table[K, V comparable] struct {
	store Store[K, V]

	mu      sync.Mutex
	rows    map[K]*row[K, V] // of all keys that are wanted, there, or dirty
	wanted  int              // how many of them are wanted
	dirty   []*row[K, V]     // those whose wanted and present values may differ; all others agree
	stale   bool             // what is said to be there cannot be trusted
	call    int              // counts the readings and writings of the store
	listing bool             // it is being read
}

// Result counts what a table did.
type Result struct {
	Set, Deleted, Failed int
}

// Plus adds up two results.
func (r Result) Plus(o Result) Result {
	return Result{r.Set + o.Set, r.Deleted + o.Deleted, r.Failed + o.Failed}
}

// NewTable returns a table that wants nothing and has yet to list its store.
func NewTable[K, V comparable](store Store[K, V]) *Table[K, V] {
	return &Table[K, V]{store: store, rows: map[K]*row[K, V]{}, stale: true}
}

// Name is the store's.
func (t *Table[K, V]) Name() string { return t.store.Name() }

// Want says that the entry shall be there.
func (t *Table[K, V]) Want(key K, value V) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.row(key)
	if !r.wanted {
		t.wanted++
	}
	r.want, r.wanted = value, true
	t.mark(r)
}

// Drop says that no entry of that key shall be there.
func (t *Table[K, V]) Drop(key K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r, ok := t.rows[key]; ok {
		t.drop(r)
	}
}

// Reset forgets all wishes; with the Wants that follow it replaces the whole wanted state.
func (t *Table[K, V]) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.rows {
		t.drop(r)
	}
}

// Relist distrusts what is known of the store: the next Add lists it.
func (t *Table[K, V]) Relist() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stale = true
}

// Wanted tells whether an entry of that key shall be there.
func (t *Table[K, V]) Wanted(key K) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, ok := t.rows[key]
	return ok && r.wanted
}

// Refresh lists the store if what is known of it cannot be trusted, and changes nothing there. Its error is Unknown.
func (t *Table[K, V]) Refresh(ctx context.Context) error { return t.list(ctx) }

// There returns the value of the entry that is there under a key, wanted or not.
func (t *Table[K, V]) There(key K) (value V, there bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r, ok := t.rows[key]; ok {
		return r.have, r.there
	}
	return value, false
}

// AllThere returns all entries that are there, wanted or not, in no order.
func (t *Table[K, V]) AllThere() []Entry[K, V] {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []Entry[K, V]
	for _, r := range t.rows {
		if r.there {
			all = append(all, Entry[K, V]{r.key, r.have})
		}
	}
	return all
}

// Len is the number of wanted entries.
func (t *Table[K, V]) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.wanted
}

// Observe takes in a notification: the entry is now there (present), or is gone. It tells whether that differs from
// what is wanted. Where our own writes come back as notifications too, they agree with that and wake nobody.
func (t *Table[K, V]) Observe(key K, value V, present bool) (drift bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, known := t.rows[key]; !known && !present && !t.listing {
		return false // nothing was there as far as we know; only a list under way might say otherwise
	}
	r := t.row(key)
	r.is(value, present)
	r.seen = t.call
	t.mark(r)
	return !r.agrees()
}

// row returns the row of a key, a new one if there is none.
func (t *Table[K, V]) row(key K) *row[K, V] {
	r, ok := t.rows[key]
	if !ok {
		r = &row[K, V]{key: key, seen: -1}
		t.rows[key] = r
	}
	return r
}

func (t *Table[K, V]) drop(r *row[K, V]) {
	if r.wanted {
		t.wanted--
	}
	r.want, r.wanted = *new(V), false
	t.mark(r)
}

// mark notes that a row has changed.
func (t *Table[K, V]) mark(r *row[K, V]) {
	switch {
	case r.dirty:
	case !r.agrees():
		r.dirty = true
		t.dirty = append(t.dirty, r)
	case r.empty() && !t.listing:
		delete(t.rows, r.key)
	}
}

// Add lists the store if it must, then sets every wanted entry that is missing or differs. One entry that fails blocks
// no other, and is tried again by the next Add. If the store cannot be listed, the error is Unknown and nothing is set.
func (t *Table[K, V]) Add(ctx context.Context) (Result, error) {
	if err := t.list(ctx); err != nil {
		return Result{}, err
	}
	rows, missing := t.pending(true)
	if len(missing) == 0 {
		return Result{}, nil
	}
	errs := t.store.Set(ctx, missing)
	failed := t.settle(rows, missing, errs, true)
	return Result{Set: len(missing) - failed, Failed: failed}, t.refused("set", missing, errs, failed)
}

// Prune deletes the entries that are ours and not wanted. It is to be called after Add, never before the whole
// wanted state is known, and not in a pass with an error that IsUnknown: an entry that is wanted may still depend on
// one that is not, such as a route whose replacement failed on its nexthop object.
func (t *Table[K, V]) Prune(ctx context.Context) (Result, error) {
	rows, extra := t.pending(false)
	if len(extra) == 0 {
		return Result{}, nil
	}
	errs := t.store.Delete(ctx, extra)
	failed := t.settle(rows, extra, errs, false)
	return Result{Deleted: len(extra) - failed, Failed: failed}, t.refused("delete", extra, errs, failed)
}

func (t *Table[K, V]) list(ctx context.Context) error {
	t.mu.Lock()
	stale := t.stale
	if stale {
		t.stale = false // before listing, so that a Relist meanwhile is not lost
		t.listing = true
		t.call++
	}
	t.mu.Unlock()
	if !stale {
		return nil
	}
	have, err := t.store.List(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.listing = false
	if err != nil {
		t.stale = true
		return Unknown(fmt.Errorf("list %s: %w", t.store.Name(), err))
	}
	for key, value := range have {
		r := t.row(key)
		r.listed = true
		if r.seen != t.call {
			r.is(value, true)
		}
	}
	for _, r := range t.rows {
		if !r.listed && r.seen != t.call {
			r.is(*new(V), false)
		}
		r.listed = false
		t.mark(r)
	}
	return nil
}

// pending returns the dirty rows that must be set (wanted) or deleted (not wanted), and their entries. Those that
// agree are dirty no more. If there is anything to do, a write is under way until settle.
func (t *Table[K, V]) pending(wanted bool) (rows []*row[K, V], entries []Entry[K, V]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dirty = slices.DeleteFunc(t.dirty, func(r *row[K, V]) bool {
		r.dirty = !r.agrees()
		if r.empty() {
			delete(t.rows, r.key)
		}
		return !r.dirty
	})
	n := 0
	for _, r := range t.dirty {
		if r.wanted == wanted {
			n++
		}
	}
	rows, entries = make([]*row[K, V], 0, n), make([]Entry[K, V], 0, n) // of the right length: growing takes twice the memory
	for _, r := range t.dirty {
		if r.wanted != wanted {
			continue
		}
		value := r.want
		if !wanted {
			value = r.have
		}
		rows, entries = append(rows, r), append(entries, Entry[K, V]{r.key, value})
	}
	t.call++
	return rows, entries
}

// settle notes what was written, but for keys of which a notification knows better. A refusal means that the table
// holds something else than we believed, or that the system cannot take the entry: list again before the next try.
func (t *Table[K, V]) settle(rows []*row[K, V], entries []Entry[K, V], errs []error, present bool) (failed int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, r := range rows {
		if errs != nil && errs[i] != nil {
			failed++
		} else if r.seen != t.call {
			r.is(entries[i].Value, present)
		}
	}
	t.stale = t.stale || failed > 0
	return failed
}

// refused is the error of a call that changed some entries and failed to change others.
func (t *Table[K, V]) refused(verb string, entries []Entry[K, V], errs []error, failed int) error {
	if failed == 0 {
		return nil
	}
	refused := &RefusedError{Table: t.store.Name(), Verb: verb}
	for i, err := range errs {
		if err != nil {
			refused.Entries = append(refused.Entries, Refusal{entries[i].Key, err})
		}
	}
	return refused
}
