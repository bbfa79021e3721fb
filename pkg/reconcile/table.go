// Package reconcile brings a table of the system (routes, neighbours, HNS policies) to what it should hold.
//
// A Table knows two maps: what is wanted and what is there. It learns what is there by listing the store once, then
// from its own writes and from the system's notifications, so that a change costs what the change costs and not what
// the table holds. When it can no longer be sure (lost notifications, a device that came back), it lists again:
// restart, drift and a missed event are one and the same case.
package reconcile

import (
	"context"
	"errors"
	"fmt"
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

	mu    sync.Mutex
	want  map[K]V
	have  map[K]V
	dirty map[K]struct{} // keys whose wanted and present values may differ; all others agree
	stale bool           // have cannot be trusted
	// seen are the keys of notifications that came in while the store was being read or written: they are newer than
	// what that call returns. Nil while no call is under way.
	seen map[K]struct{}
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
	return &Table[K, V]{store: store, want: map[K]V{}, have: map[K]V{}, dirty: map[K]struct{}{}, stale: true}
}

// Name is the store's.
func (t *Table[K, V]) Name() string { return t.store.Name() }

// Want says that the entry shall be there.
func (t *Table[K, V]) Want(key K, value V) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.want[key] = value
	t.dirty[key] = struct{}{}
}

// Drop says that no entry of that key shall be there.
func (t *Table[K, V]) Drop(key K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.want, key)
	t.dirty[key] = struct{}{}
}

// Reset forgets all wishes; with the Wants that follow it replaces the whole wanted state.
func (t *Table[K, V]) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key := range t.want {
		t.dirty[key] = struct{}{}
	}
	clear(t.want)
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
	_, ok := t.want[key]
	return ok
}

// Len is the number of wanted entries.
func (t *Table[K, V]) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.want)
}

// Observe takes in a notification: the entry is now there (present), or is gone. It tells whether that differs from
// what is wanted. Our own writes come back as notifications too; they agree with what is wanted and wake nobody.
func (t *Table[K, V]) Observe(key K, value V, present bool) (drift bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if present {
		t.have[key] = value
	} else {
		delete(t.have, key)
	}
	if t.seen != nil {
		t.seen[key] = struct{}{}
	}
	if t.agrees(key) {
		return false
	}
	t.dirty[key] = struct{}{}
	return true
}

func (t *Table[K, V]) agrees(key K) bool {
	want, wanted := t.want[key]
	have, there := t.have[key]
	return wanted == there && want == have
}

// Add lists the store if it must, then sets every wanted entry that is missing or differs. One entry that fails blocks
// no other, and is tried again by the next Add.
func (t *Table[K, V]) Add(ctx context.Context) (Result, error) {
	if err := t.list(ctx); err != nil {
		return Result{}, err
	}
	missing := t.pending(true)
	if len(missing) == 0 {
		return Result{}, nil
	}
	errs := t.store.Set(ctx, missing)
	failed := t.settle(missing, errs, true)
	return Result{Set: len(missing) - failed, Failed: failed}, t.describe("set", missing, errs, failed)
}

// Prune deletes the entries that are ours and not wanted. It is to be called after Add, never before the whole
// wanted state is known.
func (t *Table[K, V]) Prune(ctx context.Context) (Result, error) {
	extra := t.pending(false)
	if len(extra) == 0 {
		return Result{}, nil
	}
	errs := t.store.Delete(ctx, extra)
	failed := t.settle(extra, errs, false)
	return Result{Deleted: len(extra) - failed, Failed: failed}, t.describe("delete", extra, errs, failed)
}

func (t *Table[K, V]) list(ctx context.Context) error {
	t.mu.Lock()
	stale := t.stale
	if stale {
		t.stale = false // before listing, so that a Relist meanwhile is not lost
		t.seen = map[K]struct{}{}
	}
	t.mu.Unlock()
	if !stale {
		return nil
	}
	have, err := t.store.List(ctx)

	t.mu.Lock()
	defer t.mu.Unlock()
	defer func() { t.seen = nil }()
	if err != nil {
		t.stale = true
		return fmt.Errorf("list %s: %w", t.store.Name(), err)
	}
	for key := range t.seen {
		if value, there := t.have[key]; there {
			have[key] = value
		} else {
			delete(have, key)
		}
	}
	t.have = have
	clear(t.dirty)
	for key := range t.want {
		t.mark(key)
	}
	for key := range have {
		t.mark(key)
	}
	return nil
}

func (t *Table[K, V]) mark(key K) {
	if !t.agrees(key) {
		t.dirty[key] = struct{}{}
	}
}

// pending returns the dirty entries that must be set (wanted) or deleted (not wanted), and clears keys that agree.
// If there are any, a write is under way until settle.
func (t *Table[K, V]) pending(wanted bool) []Entry[K, V] {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []Entry[K, V]
	for key := range t.dirty {
		if t.agrees(key) {
			delete(t.dirty, key)
			continue
		}
		value, ok := t.want[key]
		if ok != wanted {
			continue
		}
		if !wanted {
			value = t.have[key]
		}
		out = append(out, Entry[K, V]{key, value})
	}
	if len(out) > 0 {
		t.seen = map[K]struct{}{}
	}
	return out
}

// settle notes what was written, but for keys of which a notification knows better. A refusal means that the table
// holds something else than we believed, or that the system cannot take the entry: list again before the next try.
func (t *Table[K, V]) settle(entries []Entry[K, V], errs []error, present bool) (failed int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, e := range entries {
		if errs != nil && errs[i] != nil {
			failed++
			continue
		}
		if _, newer := t.seen[e.Key]; newer {
			continue
		}
		if present {
			t.have[e.Key] = e.Value
		} else {
			delete(t.have, e.Key)
		}
	}
	t.seen = nil
	t.stale = t.stale || failed > 0
	return failed
}

// maxErrors bounds how many refused entries an error names: a thousand peers may be refused for one reason.
const maxErrors = 5

func (t *Table[K, V]) describe(verb string, entries []Entry[K, V], errs []error, failed int) error {
	if failed == 0 {
		return nil
	}
	var named []error
	for i, err := range errs {
		if err == nil {
			continue
		}
		if len(named) == maxErrors {
			named = append(named, fmt.Errorf("and %d more %s", failed-maxErrors, t.store.Name()))
			break
		}
		named = append(named, fmt.Errorf("%s %s %v: %w", verb, t.store.Name(), entries[i].Key, err))
	}
	return errors.Join(named...)
}
