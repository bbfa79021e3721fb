package reconcile

import (
	"testing"

	"flannel/internal/test/logtest"
)

// A tally tells new entries from replaced ones, also if the notification of a write
// arrives before the write returns, and counts no refused entry as changed.
func TestTally(t *testing.T) {
	store := &memory{entries: map[string]int{"changed": 1, "refused": 1, "stale": 1}, refuse: map[string]bool{"refused": true}}
	table := NewTable(store)
	store.notify = func(key string, value int, present bool) { table.Observe(key, value, present) }
	for key, value := range map[string]int{"changed": 2, "refused": 2, "new": 3} {
		table.Want(key, value)
	}
	var tally Tally
	done, err := table.Add(t.Context())
	if err == nil {
		t.Error("nothing was refused")
	}
	tally.Add("routes", done)
	done, _ = table.Prune(t.Context())
	tally.Add("routes", done)
	tally.Add("idle", Result{})
	tally.Add("neighbours", Result{Set: 5})
	want := Result{Set: 7, Deleted: 1, Failed: 1, Replaced: 1}
	if sum, text := tally.Take(); sum != want || sum.Added() != 6 ||
		!logtest.Names(text, "routes: 1 added, 1 changed, 1 deleted, 1 refused", "neighbours: 5 added") || logtest.Names(text, "idle") {
		t.Errorf("%+v, %q; want %+v", sum, text, want)
	}
	if sum, text := tally.Take(); sum != (Result{}) || text != "" {
		t.Errorf("taken twice: %+v, %q", sum, text)
	}
}
