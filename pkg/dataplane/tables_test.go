package dataplane

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"flannel/pkg/reconcile"
)

// memory is a store of numbers.
type memory struct {
	name string
	has  map[int]struct{}
}

func (m memory) Name() string                                   { return m.name }
func (m memory) List(context.Context) (map[int]struct{}, error) { return maps.Clone(m.has), nil }

func (m memory) Set(_ context.Context, entries []reconcile.Entry[int, struct{}]) []error {
	for _, e := range entries {
		m.has[e.Key] = struct{}{}
	}
	return nil
}

func (m memory) Delete(_ context.Context, entries []reconcile.Entry[int, struct{}]) []error {
	for _, e := range entries {
		delete(m.has, e.Key)
	}
	return nil
}

// Tables with one name are reported as one: each report has the entries of both, and what
// was done to one of them.
func TestTablesOfOneName(t *testing.T) {
	table := func(name string, has map[int]struct{}, wants ...int) *reconcile.Table[int, struct{}] {
		table := reconcile.NewTable[int, struct{}](memory{name, has})
		for _, key := range wants {
			table.Want(key, struct{}{})
		}
		return table
	}
	type keys = map[int]struct{}
	tables := Tables{
		table("peers", keys{7: {}}, 1, 2, 3), table("pods", keys{}, 1), table("peers", keys{8: {}, 9: {}}, 1, 2),
	}
	var reports []string
	o := Options{Report: func(name string, entries int, done reconcile.Result) {
		reports = append(reports, fmt.Sprintf("%s: %d entries, %d set, %d deleted", name, entries, done.Set, done.Deleted))
	}}
	if err := tables.Add(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if err := tables.Prune(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"peers: 5 entries, 3 set, 0 deleted", "pods: 1 entries, 1 set, 0 deleted", "peers: 5 entries, 2 set, 0 deleted",
		"peers: 5 entries, 0 set, 2 deleted", "pods: 1 entries, 0 set, 0 deleted", "peers: 5 entries, 0 set, 1 deleted",
	}
	if !slices.Equal(reports, want) {
		t.Errorf("reports %q, want %q", reports, want)
	}
}
