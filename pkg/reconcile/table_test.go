package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"flannel/pkg/logtest"
)

// memory is a store in memory that tells the table about every change, as a kernel does.
type memory struct {
	is       map[string]int
	lists    int
	writes   int
	refuse   map[string]bool
	listErr  error
	notify   func(key string, value int, present bool)
	midWrite func() // runs after a write took place and before it returns
	midList  func() // runs after the content was read and before it is returned
}

func (m *memory) Name() string { return "things" }

func (m *memory) List(context.Context) (map[string]int, error) {
	m.lists++
	if m.listErr != nil {
		return nil, m.listErr
	}
	is := maps.Clone(m.is)
	if m.midList != nil {
		m.midList()
	}
	return is, nil
}

func (m *memory) put(key string, value int, present bool) {
	if present {
		m.is[key] = value
	} else {
		delete(m.is, key)
	}
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
		m.put(e.Key, e.Value, present)
	}
	if m.midWrite != nil {
		m.midWrite()
	}
	return errs
}

func (m *memory) Set(_ context.Context, e []Entry[string, int]) []error    { return m.write(e, true) }
func (m *memory) Delete(_ context.Context, e []Entry[string, int]) []error { return m.write(e, false) }

func bring(t *testing.T, table *Table[string, int]) Result {
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
	store := &memory{is: map[string]int{"kept": 1, "changed": 1, "stale": 1}}
	table := NewTable(store)
	for key, value := range map[string]int{"kept": 1, "changed": 2, "new": 3} {
		table.Want(key, value)
	}
	if got, want := bring(t, table), (Result{Set: 2, Deleted: 1}); got != want {
		t.Errorf("first sync did %+v, want %+v", got, want)
	}
	if want := map[string]int{"kept": 1, "changed": 2, "new": 3}; !maps.Equal(store.is, want) {
		t.Errorf("the store holds %v, want %v", store.is, want)
	}
	if got := bring(t, table); got != (Result{}) || store.lists != 1 {
		t.Errorf("a second sync did %+v with %d lists, want nothing and 1", got, store.lists)
	}
	table.Drop("kept")
	table.Want("changed", 2)
	if got, want := bring(t, table), (Result{Deleted: 1}); got != want || store.lists != 1 {
		t.Errorf("one change cost %+v and %d lists, want %+v and 1", got, store.lists, want)
	}
	table.Reset()
	table.Want("new", 3)
	if got, want := bring(t, table), (Result{Deleted: 1}); got != want {
		t.Errorf("a reset to one entry cost %+v, want %+v", got, want)
	}
}

func TestObserveFindsDrift(t *testing.T) {
	store := &memory{is: map[string]int{}}
	table := NewTable(store)
	drifts := 0
	store.notify = func(key string, value int, present bool) {
		if table.Observe(key, value, present) {
			drifts++
		}
	}
	table.Want("a", 1)
	bring(t, table)
	if drifts != 0 {
		t.Errorf("our own write counted as drift")
	}
	store.put("a", 9, true)
	store.put("foreign", 1, true)
	if drifts != 2 {
		t.Errorf("two changes by another hand: %d drifts", drifts)
	}
	bring(t, table)
	if want := map[string]int{"a": 1}; !maps.Equal(store.is, want) {
		t.Errorf("after drift the store holds %v, want %v", store.is, want)
	}
}

// A change by another hand right after our write, but noticed before the write returns, must not be lost.
func TestObserveDuringWriteAndList(t *testing.T) {
	store := &memory{is: map[string]int{}}
	table := NewTable(store)
	store.notify = func(key string, value int, present bool) { table.Observe(key, value, present) }
	store.midWrite = func() { store.midWrite = nil; store.put("a", 0, false) }
	table.Want("a", 1)
	bring(t, table)
	bring(t, table)
	if store.is["a"] != 1 {
		t.Errorf("an entry deleted during our write was not put back")
	}
	store.midList = func() { store.midList = nil; store.put("a", 0, false) }
	table.Relist()
	bring(t, table)
	if store.is["a"] != 1 {
		t.Errorf("an entry deleted during our listing was not put back")
	}
}

func TestOneRefusedEntryBlocksNoOther(t *testing.T) {
	store := &memory{is: map[string]int{}, refuse: map[string]bool{}}
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
	if got := bring(t, table); got.Set != 10 {
		t.Errorf("the refused entries were not tried again: %+v", got)
	}
}

func TestListErrorChangesNothing(t *testing.T) {
	store := &memory{is: map[string]int{"x": 1}, listErr: errors.New("interrupted")}
	table := NewTable(store)
	table.Want("a", 1)
	if _, err := table.Add(t.Context()); !errors.Is(err, store.listErr) {
		t.Fatalf("got %v, want the list error", err)
	}
	if _, err := table.Prune(t.Context()); err != nil || store.is["x"] != 1 {
		t.Errorf("pruned without having listed: %v, %v", store.is, err)
	}
	store.listErr = nil
	bring(t, table)
	if want := map[string]int{"a": 1}; !maps.Equal(store.is, want) {
		t.Errorf("the store holds %v, want %v", store.is, want)
	}
}

// Whatever happens in whatever order, a sync ends with the store as wanted.
func TestRandomWalkConverges(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	store := &memory{is: map[string]int{}}
	table := NewTable(store)
	want := map[string]int{}
	lost := false
	store.notify = func(key string, value int, present bool) {
		if !lost {
			table.Observe(key, value, present)
		}
	}
	for range 5000 {
		key, value := fmt.Sprint(rnd.IntN(30)), rnd.IntN(3)
		switch rnd.IntN(6) {
		case 0, 1:
			want[key] = value
			table.Want(key, value)
		case 2:
			delete(want, key)
			table.Drop(key)
		case 3:
			store.put(key, value, rnd.IntN(2) == 0)
		case 4:
			lost = true
			store.put(key, value, rnd.IntN(2) == 0)
			lost = false
			table.Relist()
		case 5:
			bring(t, table)
			if !maps.Equal(store.is, want) {
				t.Fatalf("after a sync the store holds %v, want %v", store.is, want)
			}
		}
	}
}
