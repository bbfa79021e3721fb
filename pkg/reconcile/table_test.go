package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"flannel/internal/test/logtest"
)

// memory is a store in memory that notifies the table of every change, as a kernel
// does.
type memory struct {
	entries  map[string]int
	lists    int
	writes   int
	refuse   map[string]bool
	listErr  error
	notify   func(key string, value int, present bool)
	midWrite func() // runs after a write took place and before it returns
	midList  func() // runs after the content was read and before it is returned
	quiet    bool   // it does not notify the table of the table's own writes
}

func (m *memory) Name() string { return "things" }

func (m *memory) List(context.Context) (map[string]int, error) {
	m.lists++
	entries := maps.Clone(m.entries)
	if m.midList != nil {
		m.midList()
	}
	if m.listErr != nil {
		return nil, m.listErr
	}
	return entries, nil
}

func (m *memory) change(key string, value int, present bool) {
	if present {
		m.entries[key] = value
	} else {
		delete(m.entries, key)
	}
}

func (m *memory) put(key string, value int, present bool) {
	m.change(key, value, present)
	if m.notify != nil {
		m.notify(key, value, present)
	}
}

func (m *memory) write(entries []Entry[string, int], present bool) []error {
	errs := make([]error, len(entries))
	for i, e := range entries {
		if m.refuse[e.Key] {
			errs[i] = errors.New("refused")
			continue
		}
		m.writes++
		if m.quiet {
			m.change(e.Key, e.Value, present)
		} else {
			m.put(e.Key, e.Value, present)
		}
	}
	if m.midWrite != nil {
		m.midWrite()
	}
	return errs
}

func (m *memory) Set(_ context.Context, e []Entry[string, int]) []error    { return m.write(e, true) }
func (m *memory) Delete(_ context.Context, e []Entry[string, int]) []error { return m.write(e, false) }

// syncTable makes the store equal to the desired entries.
func syncTable(t *testing.T, table *Table[string, int]) Result {
	t.Helper()
	added, err := table.Add(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pruned, err := table.Prune(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return added.Plus(pruned)
}

func TestSyncWritesOnlyDifferences(t *testing.T) {
	store := &memory{entries: map[string]int{"kept": 1, "changed": 1, "stale": 1}}
	table := NewTable(store)
	for key, value := range map[string]int{"kept": 1, "changed": 2, "new": 3} {
		table.Want(key, value)
	}
	if got, want := syncTable(t, table), (Result{Set: 2, Deleted: 1, Replaced: 1}); got != want {
		t.Errorf("first sync did %+v, want %+v", got, want)
	}
	if want := map[string]int{"kept": 1, "changed": 2, "new": 3}; !maps.Equal(store.entries, want) {
		t.Errorf("the store holds %v, want %v", store.entries, want)
	}
	if got := syncTable(t, table); got != (Result{}) || store.lists != 1 {
		t.Errorf("a second sync did %+v with %d lists, want nothing and 1", got, store.lists)
	}
	table.Drop("kept")
	table.Want("changed", 2)
	if got, want := syncTable(t, table), (Result{Deleted: 1}); got != want || store.lists != 1 {
		t.Errorf("one change cost %+v and %d lists, want %+v and 1", got, store.lists, want)
	}
	table.Reset()
	table.Want("new", 3)
	if got, want := syncTable(t, table), (Result{Deleted: 1}); got != want {
		t.Errorf("a reset to one entry cost %+v, want %+v", got, want)
	}
}

func TestObserveFindsDrift(t *testing.T) {
	store := &memory{entries: map[string]int{}}
	table := NewTable(store)
	drifts := 0
	store.notify = func(key string, value int, present bool) {
		if table.Observe(key, value, present) {
			drifts++
		}
	}
	table.Want("a", 1)
	syncTable(t, table)
	if drifts != 0 {
		t.Errorf("our own write counted as drift")
	}
	store.put("a", 9, true)
	store.put("foreign", 1, true)
	if drifts != 2 {
		t.Errorf("two external changes: %d drifts", drifts)
	}
	syncTable(t, table)
	if want := map[string]int{"a": 1}; !maps.Equal(store.entries, want) {
		t.Errorf("after drift the store holds %v, want %v", store.entries, want)
	}
}

// What others did counts as repaired, and what we did not, whether it is found by a
// notification or by a list.
func TestRepairs(t *testing.T) {
	for _, notified := range []bool{true, false} {
		store := &memory{entries: map[string]int{"stale": 1, "kept": 1, "b": 1}, refuse: map[string]bool{}}
		table := NewTable(store)
		if notified {
			store.notify = func(key string, value int, present bool) { table.Observe(key, value, present) }
		}
		sync := func(what string, want Repairs) {
			t.Helper()
			if !notified {
				table.Relist()
			}
			_, addErr := table.Add(t.Context())
			_, pruneErr := table.Prune(t.Context())
			if got := table.TakeRepairs(); got != want {
				t.Errorf("%s, notified %t: %+v, want %+v (%v, %v)", what, notified, got, want, addErr, pruneErr)
			}
		}
		table.Want("a", 1)
		table.Want("b", 2)
		table.Want("kept", 1)
		sync("at the start", Repairs{})
		table.Want("a", 3)
		table.Drop("b")
		table.Want("new", 1)
		sync("another desired state", Repairs{})
		store.put("a", 9, true)
		sync("a changed entry", Repairs{1, "a was changed to 9"})
		store.put("kept", 0, false)
		sync("a deleted entry that was never written", Repairs{1, "kept was deleted"})
		store.put("other", 1, true)
		sync("an added entry", Repairs{1, "other was added"})
		table.Want("other", 1)
		sync("now it is wanted", Repairs{})
		table.Drop("other")
		sync("and not any more", Repairs{})
		store.put("a", 0, false)
		table.Want("a", 4)
		sync("a deleted entry that is desired otherwise meanwhile", Repairs{})
		store.refuse["a"] = true
		store.put("a", 5, true)
		sync("a refused repair", Repairs{})
		delete(store.refuse, "a")
		sync("a repair that was refused before", Repairs{1, "a was changed to 5"})
		store.put("a", 0, false)
		store.put("new", 0, false)
		store.put("b", 7, true)
		table.Relist()
		syncTable(t, table)
		if got := table.TakeRepairs(); got.Entries != 3 {
			t.Errorf("three: %+v", got)
		}
		sync("nothing", Repairs{})
	}
}

// A value that came about by itself is replaced, and is no repair. What others change afterwards is one.
func TestLapsedIsNoRepair(t *testing.T) {
	store := &memory{entries: map[string]int{}}
	table := NewTable(store)
	table.Lapsed = func(value int) bool { return value < 0 }
	table.Want("a", 1)
	syncTable(t, table)
	for _, value := range []int{-1, 9, -1} {
		want := Repairs{}
		if value > 0 {
			want = Repairs{1, "a was changed to 9"}
		}
		store.put("a", value, true)
		table.Relist()
		syncTable(t, table)
		if got := table.TakeRepairs(); got != want || store.entries["a"] != 1 {
			t.Errorf("%d: %+v, want %+v; the store has %v", value, got, want, store.entries)
		}
	}
}

// An external change after our write or list, whose notification arrives before the
// write or list returns, is not lost.
func TestObserveDuringWriteAndList(t *testing.T) {
	store := &memory{entries: map[string]int{}}
	table := NewTable(store)
	store.notify = func(key string, value int, present bool) { table.Observe(key, value, present) }
	store.midWrite = func() { store.midWrite = nil; store.put("a", 0, false) }
	table.Want("a", 1)
	syncTable(t, table)
	syncTable(t, table)
	if store.entries["a"] != 1 {
		t.Errorf("an entry deleted during our write was not restored")
	}
	store.midList = func() { store.midList = nil; store.put("a", 0, false) }
	table.Relist()
	syncTable(t, table)
	if store.entries["a"] != 1 {
		t.Errorf("an entry deleted during our list was not restored")
	}
}

func TestOneRefusedEntryBlocksNoOther(t *testing.T) {
	store := &memory{entries: map[string]int{}, refuse: map[string]bool{}}
	table := NewTable(store)
	for i := range 20 {
		key := fmt.Sprintf("k%02d", i)
		table.Want(key, i)
		store.refuse[key] = i >= 10
	}
	got, err := table.Add(t.Context())
	if want := (Result{Set: 10, Failed: 10}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if err == nil || !logtest.Names(err.Error(), "5", "things k1") {
		t.Errorf("the error must name some entries and count the rest: %v", err)
	}
	store.refuse = nil
	if got := syncTable(t, table); got.Set != 10 {
		t.Errorf("the refused entries were not retried: %+v", got)
	}
}

func TestListErrorChangesNothing(t *testing.T) {
	store := &memory{entries: map[string]int{"x": 1}, listErr: errors.New("interrupted")}
	table := NewTable(store)
	table.Want("a", 1)
	if _, err := table.Add(t.Context()); !errors.Is(err, store.listErr) {
		t.Fatalf("got %v, want the list error", err)
	}
	if _, err := table.Prune(t.Context()); err != nil || store.entries["x"] != 1 {
		t.Errorf("pruned without a list: %v, %v", store.entries, err)
	}
	store.listErr = nil
	syncTable(t, table)
	if want := map[string]int{"a": 1}; !maps.Equal(store.entries, want) {
		t.Errorf("the store holds %v, want %v", store.entries, want)
	}
}

// A value that becomes desired while others are set is not one of those that were set.
func TestWantDuringAdd(t *testing.T) {
	for _, settled := range []bool{false, true} {
		store := &memory{entries: map[string]int{}, quiet: true}
		table := NewTable(store)
		want := map[string]int{"kept": 1, "changed": 3, "new": 4}
		if settled {
			want["settled"] = 5
			table.Want("settled", 5)
			syncTable(t, table)
		}
		table.Want("kept", 1)
		table.Want("changed", 2)
		store.midWrite = func() {
			store.midWrite = nil
			table.Want("changed", 3)
			table.Want("new", 4)
		}
		syncTable(t, table)
		syncTable(t, table)
		if !maps.Equal(store.entries, want) || len(table.AllActual()) != len(want) {
			t.Errorf("settled %v: the store holds %v, want %v", settled, store.entries, want)
		}
	}
}

// After any sequence of changes, a sync makes the store equal to the desired entries, also
// if somebody else changes one during a write or a list, or the store refuses some of them
// or its list for a while.
func TestRandomWalkConverges(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	store := &memory{entries: map[string]int{}}
	table := NewTable(store)
	want := map[string]int{}
	lost := false
	store.notify = func(key string, value int, present bool) {
		if !lost {
			table.Observe(key, value, present)
		}
	}
	for range 10000 {
		key, value := fmt.Sprint(rnd.IntN(30)), rnd.IntN(3)
		store.quiet = rnd.IntN(2) == 0
		putOne := func() { store.put(key, value, rnd.IntN(2) == 0) }
		wantOne := func() { want[key] = value; table.Want(key, value) }
		switch rnd.IntN(10) {
		case 0, 1, 2:
			wantOne()
		case 3:
			delete(want, key)
			table.Drop(key)
		case 4:
			putOne()
		case 5:
			lost = true
			putOne()
			lost = false
			table.Relist()
		case 6:
			store.refuse = map[string]bool{key: true, fmt.Sprint(rnd.IntN(30)): true}
			store.midWrite = []func(){putOne, wantOne}[rnd.IntN(2)]
			_, _ = table.Add(t.Context())
			store.refuse, store.midWrite = nil, nil
		case 7:
			store.midList = putOne
			store.listErr = []error{nil, errors.New("interrupted")}[rnd.IntN(2)]
			table.Relist()
			if _, err := table.Add(t.Context()); !errors.Is(err, store.listErr) {
				t.Fatalf("a list failed with %v, and Add with %v", store.listErr, err)
			}
			store.midList, store.listErr = nil, nil
		case 8:
			if rnd.IntN(4) > 0 {
				continue // often, the table would always be small
			}
			clear(want)
			if rnd.IntN(2) == 0 {
				table.Reset()
			} else {
				table.Forget()
			}
		case 9:
			syncTable(t, table)
			if !maps.Equal(store.entries, want) || table.Len() != len(want) || len(table.AllActual()) != len(want) {
				t.Fatalf("after a sync the store holds %v, want %v", store.entries, want)
			}
		}
	}
}
