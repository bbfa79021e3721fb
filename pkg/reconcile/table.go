// Package reconcile makes the actual entries of a system table (routes,
// neighbours, HNS policies) the desired ones.
//
// A Table keeps the desired and the actual value of each key. It lists the store
// once, and then learns the actual values from its own writes and from the
// system's notifications, so that a pass costs as much as there are changes, not
// as there are entries. When the actual values may be wrong (notifications were
// lost, a device went down), it lists again. A restart, drift and a missed event
// are the same case.
//
// Around it are what other reconcilers share: Runner, the loop of what reconciles beside the
// daemon's; Backoff and Pause, when something that failed is tried again; Once, what of a failure
// is logged; Change, how a long ordered list differs from its previous version (changes.go); and
// CompactMap, in which tables and those who feed them keep the state of many peers.
package reconcile

import (
	"context"
	"fmt"
	"sync"
)

// Entry is a key of a table with a value.
type Entry[K, V comparable] struct {
	Value V // first, because Go pads a struct whose last field has no size
	Key   K
}

// Store is the system's table. It lists only entries that are ours, so only
// those can be deleted.
type Store[K, V comparable] interface {
	// Name is the table's name in messages and metrics, such as "routes".
	Name() string
	// List returns all entries that are ours.
	List(ctx context.Context) (map[K]V, error)
	// Set creates or replaces entries, many with one system call. Element i of the
	// result belongs to entry i. A nil result means success for all.
	Set(ctx context.Context, entries []Entry[K, V]) []error
	// Delete deletes entries with the values that List returned. An entry that does
	// not exist is not an error.
	Delete(ctx context.Context, entries []Entry[K, V]) []error
}

// Table compares desired with actual entries. All methods may be called from any goroutine;
// typically, one goroutine (that of the driver's watcher) watches for notifications and calls
// Observe. Only one goroutine at a time (the daemon's loop) may call Add, Prune, Refresh, or a
// method that changes what is desired.
//
// What the table keeps of a key depends on its state:
//
//	desired  actual value      in
//	yes      the desired one   settled
//	yes      none yet          missing, in no order
//	yes      anything else     rows
//	no       any               rows
//	no       none              nothing
//
// Most entries of a start go from missing to settled, and almost all are settled
// afterwards. Rows are several times larger, so they are for the others.
//
// Notifications can arrive while a list or a write is under way, and are newer
// than its result. Example, with a Relist queued and a desired route
// 10.244.2.0/24 via A:
//
//	Add starts to list           call is 7, listing is true
//	the kernel returns via A
//	somebody changes it to via B
//	Observe(10.244.2.0/24, B)    actual value is B; observedIn is 7
//	the list ends, with via A    observedIn == call: B stays, the row is dirty
//	Add sets via A
type Table[K, V comparable] struct {
	store Store[K, V]
	// Lapsed reports whether a listed value that differs from the desired one was changed by nobody. Setting the
	// desired value then does not count as a repair. It is set before the first use of the table; nil: no value lapses.
	Lapsed func(V) bool

	mu      sync.Mutex
	settled CompactMap[K, V]
	missing CompactMap[K, V]
	rows    CompactMap[K, *row[K, V]] // also all that changed during a list, or since the last removeAgreeing
	wanted  int                       // number of desired values
	dirty   []*row[K, V]              // rows that may not agree; all other rows do
	stale   bool                      // actual values may be wrong: list before the next Add
	call    int                       // number of calls of the store that were started; see row.observedIn
	listing bool                      // a list is under way
	listed  bool                      // the first list has ended: what appears afterwards is a stray (row.go)
	repairs Repairs
}

// Result counts the entries that Add or Prune changed.
type Result struct {
	Set, Deleted, Failed int
	Replaced             int // of Set, those that existed with another value
}

// Added returns the number of new entries.
func (r Result) Added() int { return r.Set - r.Replaced }

// Plus adds up two results.
func (r Result) Plus(o Result) Result {
	return Result{r.Set + o.Set, r.Deleted + o.Deleted, r.Failed + o.Failed, r.Replaced + o.Replaced}
}

// Repairs counts entries that somebody else had changed, deleted or added, and that Add
// or Prune has changed back.
type Repairs struct {
	Entries int
	First   string // describes one of them: "10.5.2.0/24 was deleted"
}

// NewTable returns a table without desired entries. Its first Add lists the store.
func NewTable[K, V comparable](store Store[K, V]) *Table[K, V] {
	return &Table[K, V]{store: store, stale: true}
}

// Name is the store's name.
func (t *Table[K, V]) Name() string { return t.store.Name() }

// Want sets the desired value of a key.
func (t *Table[K, V]) Want(key K, value V) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if settled, ok := t.settled.Get(key); ok && settled == value {
		return
	}
	if !t.knows(key) { // in none of the three maps
		t.wanted++
		t.missing.Set(key, value)
		return
	}
	if t.missing.Has(key) {
		t.missing.Set(key, value)
		return
	}
	r := t.row(key)
	if !r.wanted {
		t.wanted++
	}
	if !r.wanted || r.want != value {
		r.setWant(value, true) // true: wanted
	}
	t.update(r) // puts it in dirty, or in settled if the actual value is the same
}

// Drop removes the desired value of a key.
func (t *Table[K, V]) Drop(key K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.knows(key) {
		t.drop(t.row(key))
	}
}

// Reset removes all desired values.
func (t *Table[K, V]) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wanted -= t.missing.Len()
	t.missing = CompactMap[K, V]{}
	for key := range t.settled.All() {
		t.row(key) // moves the entry to rows; All permits that
	}
	for _, r := range t.rows.All() {
		t.drop(r) // may delete the row
	}
}

// Forget makes the table what NewTable returns, because the store now holds the
// entries of something else, such as another network: what the former one had was
// not changed by anybody.
func (t *Table[K, V]) Forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settled, t.missing, t.rows = CompactMap[K, V]{}, CompactMap[K, V]{}, CompactMap[K, *row[K, V]]{}
	t.wanted, t.dirty, t.stale, t.listed = 0, nil, true, false
}

// Relist makes the next Add, or Refresh, list the store.
func (t *Table[K, V]) Relist() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stale = true
}

// Observe records a notification: the entry now exists (present), or was deleted.
// drift reports whether that differs from the desired value. The notification of
// a write of this table does not, so it needs no pass.
func (t *Table[K, V]) Observe(key K, value V, present bool) (drift bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if settled, ok := t.settled.Get(key); ok && present && settled == value && !t.listing {
		return false
	}
	if !present && !t.listing && !t.knows(key) {
		return false // deleted what we do not know; matters only to a list under way, which may have it
	}
	r := t.row(key)
	r.setHave(value, present)
	r.observedIn = t.call
	t.update(r)
	return !r.agrees()
}

// Add calls Refresh, and then sets every desired entry that is missing or differs.
// An entry that fails does not stop the others; the next Add retries it. If the
// store cannot be listed, the error is Unknown and nothing is set.
func (t *Table[K, V]) Add(ctx context.Context) (Result, error) {
	if err := t.Refresh(ctx); err != nil {
		return Result{}, err
	}
	due, undone := t.dueEntries(true)
	if len(due) == 0 {
		return Result{}, nil
	}
	failed, replaced, err := t.recordWrites("set", due, undone, t.store.Set(ctx, due))
	return Result{Set: len(due) - failed, Failed: failed, Replaced: replaced}, err
}

// Prune deletes the actual entries that are not desired. Call it after Add, when
// all desired entries are known, and not in a pass with an error that IsUnknown:
// a desired entry may still depend on one that is not desired, such as a route
// on its old nexthop object if Add could not replace the route.
func (t *Table[K, V]) Prune(ctx context.Context) (Result, error) {
	extra, undone := t.dueEntries(false)
	if len(extra) == 0 {
		return Result{}, nil
	}
	failed, _, err := t.recordWrites("delete", extra, undone, t.store.Delete(ctx, extra))
	return Result{Deleted: len(extra) - failed, Failed: failed}, err
}

// Refresh lists the store if the actual values may be wrong. It changes nothing
// in the store. Its error is Unknown.
func (t *Table[K, V]) Refresh(ctx context.Context) error {
	t.mu.Lock()
	stale := t.stale
	if stale {
		t.stale = false // before the list, so that a Relist during the list counts
		t.listing = true
		t.call++
	}
	t.mu.Unlock()
	if !stale {
		return nil
	}
	actual, err := t.store.List(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.listing = false
	if err != nil {
		t.stale = true
		for _, r := range t.rows.All() {
			t.update(r) // which kept rows that agree, while listing was true
		}
		return Unknown(fmt.Errorf("list %s: %w", t.store.Name(), err))
	}
	for key, value := range t.settled.All() {
		if listed, ok := actual[key]; !ok || listed != value {
			t.row(key) // which gets the listed value, or none, below
		}
	}
	t.settled.Reserve(min(t.missing.Len(), len(actual))) // else it would hash all keys again each time that it grows
	if t.settled.Len() == len(actual) {                  // all that is settled by now is in actual
		actual = nil
	}
	for key, value := range actual {
		if t.settled.Has(key) {
			continue
		}
		if wanted, ok := t.missing.Get(key); ok && wanted == value {
			t.settled.Set(key, value)
			t.missing.Delete(key)
			continue
		}
		r := t.row(key)
		r.listed = true
		if r.observedIn != t.call {
			r.setHave(value, true)
			r.agreed = r.agreed && (r.agrees() || t.Lapsed == nil || !t.Lapsed(value))
		}
	}
	for _, r := range t.rows.All() {
		if !r.listed && r.observedIn != t.call {
			r.setHave(*new(V), false)
		}
		r.listed = false
		t.update(r) // may delete the row; All permits that
	}
	t.listed = true
	return nil
}

// TakeRepairs returns the repairs since its last call.
func (t *Table[K, V]) TakeRepairs() Repairs {
	t.mu.Lock()
	defer t.mu.Unlock()
	taken := t.repairs
	t.repairs = Repairs{}
	return taken
}

// dueEntries returns the entries to set (wanted), of dirty rows and then the missing ones,
// or the entries of dirty rows to delete (not wanted). It counts the write that follows as
// a call of the store, so that recordWrites recognizes newer notifications. If a write is a
// repair (it undoes what somebody else did: see row.agreed and row.stray), undone has copies
// of the dirty rows, element i for entry i; else it is nil.
func (t *Table[K, V]) dueEntries(wanted bool) (entries []Entry[K, V], undone []row[K, V]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.removeAgreeing()
	n, repairs := 0, false
	for _, r := range t.dirty {
		if r.wanted == wanted {
			n++
			repairs = repairs || r.repaired()
		}
	}
	if repairs {
		undone = make([]row[K, V], 0, n)
	}
	if wanted {
		n += t.missing.Len()
	}
	entries = make([]Entry[K, V], 0, n) // growing it would take twice the memory
	for _, r := range t.dirty {
		if r.wanted != wanted {
			continue
		}
		if repairs {
			undone = append(undone, *r)
		}
		value := r.have
		if wanted {
			value, r.replaces = r.want, r.exists
		}
		entries = append(entries, Entry[K, V]{value, r.key})
	}
	if wanted {
		for key, value := range t.missing.All() {
			entries = append(entries, Entry[K, V]{value, key})
		}
	}
	t.call++
	return entries, undone
}

// recordWrites records the actual values after a write, except for keys with a
// newer notification, and counts repairs. An error means that an actual value was
// wrong, or that the system refuses the entry, so the next Add lists first. All
// failed entries are in a RefusedError. replaced counts the others that had another
// value before.
func (t *Table[K, V]) recordWrites(verb string, entries []Entry[K, V], undone []row[K, V], errs []error) (failed, replaced int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	refused := &RefusedError{Table: t.store.Name(), Verb: verb}
	for i, e := range entries {
		r, _ := t.rows.Get(e.Key) // nil: the entry was a missing one; a dirty row is not removed before removeAgreeing
		if errs != nil && errs[i] != nil {
			refused.Entries = append(refused.Entries, Refusal{e.Key, errs[i]})
			if r == nil && t.missing.Has(e.Key) {
				t.update(t.row(e.Key)) // rows are retried in their order, so that the next error names the same entries first
			}
			continue
		}
		if i < len(undone) && undone[i].repaired() {
			if t.repairs.Entries++; t.repairs.Entries == 1 {
				t.repairs.First = undone[i].deviation()
			}
		}
		if r == nil { // it is settled already, by a notification, or settleMissing settles it
			continue
		}
		if r.replaces {
			replaced++
		}
		if r.observedIn != t.call {
			r.setHave(e.Value, verb == "set")
		}
	}
	if verb == "set" {
		t.settleMissing(entries)
	}
	t.removeAgreeing()
	if len(refused.Entries) == 0 {
		return 0, replaced, nil
	}
	t.stale = true
	return len(refused.Entries), replaced, refused
}
