package dataplane

import (
	"net/netip"
	"slices"
	"testing"

	"flannel/pkg/reconcile"
)

// Changes count only for who was told the very paths that they lead from. All others compare.
func TestDiff(t *testing.T) {
	type (
		paths = []*Path
		steps = []reconcile.Change[Path]
		state = State
	)
	path := func(dst string) *Path { return &Path{Dst: netip.MustParsePrefix(dst)} }
	a, b, c, wrong := path("10.5.1.0/24"), path("10.5.2.0/24"), path("10.5.3.0/24"), path("10.5.9.0/24")
	before := paths{a, b}
	now := paths{b, c}
	swap := steps{{Old: a}, {New: c}}
	for name, test := range map[string]struct {
		told           paths
		s              state
		added, removed paths
	}{
		"told the former ones": {before, state{Paths: now, Since: before, Changes: swap}, paths{c}, paths{a}},
		"they are not compared": {before, state{Paths: now, Since: before, Changes: steps{{Old: a, New: wrong}}},
			paths{wrong}, paths{a}},
		"told an equal list":      {slices.Clone(before), state{Paths: now, Since: before}, paths{c}, paths{a}},
		"told others":             {paths{c}, state{Paths: now, Since: before, Changes: swap}, paths{b}, nil},
		"told the latest":         {now, state{Paths: now, Since: before, Changes: swap}, nil, nil},
		"told nothing":            {nil, state{Paths: now, Since: before, Changes: swap}, paths{b, c}, nil},
		"told nothing, no change": {nil, state{Paths: now}, paths{b, c}, nil},
		"no changes are known":    {before, state{Paths: now}, paths{c}, paths{a}},
		"the last goes":           {before, state{Since: before, Changes: steps{{Old: a}, {Old: b}}}, nil, paths{a, b}},
		"nothing at all":          {nil, state{}, nil, nil},
	} {
		added, removed := DiffPaths(test.told, test.s)
		if !slices.Equal(added, test.added) || !slices.Equal(removed, test.removed) {
			t.Errorf("%s: added %v, removed %v; want %v, %v", name, added, removed, test.added, test.removed)
		}
	}
}
