package reconcile

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

type thing struct{ name, version int }

func compareThings(a, b *thing) int { return cmp.Compare(a.name, b.name) }

// Whatever happens between two lists, what was collected leads from one to the other, and says nothing of what is the
// same in both.
func TestCollectedChangesLeadToTheNewList(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var list []*thing
	now := map[int]*thing{}
	for round := range 500 {
		before := slices.Clone(list)
		var pending PendingChanges[thing]
		for range rnd.IntN(30) {
			name := rnd.IntN(40)
			next := &thing{name, round}
			if rnd.IntN(3) == 0 {
				next = nil
			}
			if i, found := slices.BinarySearchFunc(before, &thing{name: name}, compareThings); found && rnd.IntN(3) == 0 {
				next = before[i] // it is back
			}
			pending.Add(fmt.Sprint(name), Change[thing]{now[name], next})
			if now[name] = next; next == nil {
				delete(now, name)
			}
		}
		made := pending.Take(compareThings)
		list = ApplyChanges(list, made, compareThings)
		var want []*thing
		for _, e := range now {
			want = append(want, e)
		}
		slices.SortFunc(want, compareThings)
		if !slices.Equal(list, want) {
			t.Fatalf("round %d: %d elements, want %d", round, len(list), len(want))
		}
		for _, c := range made {
			if c.Old == c.New || c.Old != nil && !slices.Contains(before, c.Old) || c.New != nil && slices.Contains(before, c.New) {
				t.Errorf("round %d: the change %v", round, c)
			}
		}
		if !slices.IsSortedFunc(made, func(a, b Change[thing]) int { return compareThings(a.Either(), b.Either()) }) || len(pending) > 0 {
			t.Errorf("round %d: out of order, or %d changes are left", round, len(pending))
		}
	}
}

// A list is never written to, and without a change it is handed on as it is.
func TestListsAreNotWrittenTo(t *testing.T) {
	list := []*thing{{name: 1}, {name: 2}, {name: 3}}
	before := slices.Clone(list)
	moved := ApplyChanges(list, []Change[thing]{{list[0], &thing{name: 4}}, {nil, &thing{name: 0}}, {list[1], &thing{name: 2, version: 1}}}, compareThings)
	var names []int
	for _, e := range moved {
		names = append(names, e.name)
	}
	if !slices.Equal(names, []int{0, 2, 3, 4}) || moved[1].version != 1 || !slices.Equal(list, before) {
		t.Errorf("the list is %v, was changed: %t", names, !slices.Equal(list, before))
	}
	if same := ApplyChanges(list, nil, compareThings); &same[0] != &list[0] {
		t.Error("without a change, the list was copied")
	}
	if all := ApplyChanges(nil, Added(list), compareThings); !slices.Equal(all, list) {
		t.Errorf("all are %v", all)
	}
}
