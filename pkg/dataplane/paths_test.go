package dataplane

import (
	"net/netip"
	"slices"
	"testing"

	"flannel/pkg/changes"
)

// Changes count only for who was told the very paths that they lead from. All others compare.
func TestDiffering(t *testing.T) {
	path := func(dst string) *Path { return &Path{Dst: netip.MustParsePrefix(dst)} }
	a, b, c, wrong := path("10.5.1.0/24"), path("10.5.2.0/24"), path("10.5.3.0/24"), path("10.5.9.0/24")
	before := []*Path{a, b}
	now := []*Path{b, c}
	swap := []changes.Change[Path]{{Old: a}, {New: c}}
	for name, test := range map[string]struct {
		told           []*Path
		s              State
		added, removed []*Path
	}{
		"told the former ones": {before, State{Paths: now, Since: before, Changes: swap}, []*Path{c}, []*Path{a}},
		"they are not compared": {before, State{Paths: now, Since: before, Changes: []changes.Change[Path]{{Old: a, New: wrong}}},
			[]*Path{wrong}, []*Path{a}},
		"told an equal list":      {slices.Clone(before), State{Paths: now, Since: before}, []*Path{c}, []*Path{a}},
		"told others":             {[]*Path{c}, State{Paths: now, Since: before, Changes: swap}, []*Path{b}, nil},
		"told the latest":         {now, State{Paths: now, Since: before, Changes: swap}, nil, nil},
		"told nothing":            {nil, State{Paths: now, Since: before, Changes: swap}, []*Path{b, c}, nil},
		"told nothing, no change": {nil, State{Paths: now}, []*Path{b, c}, nil},
		"no changes are known":    {before, State{Paths: now}, []*Path{c}, []*Path{a}},
		"the last goes":           {before, State{Since: before, Changes: []changes.Change[Path]{{Old: a}, {Old: b}}}, nil, []*Path{a, b}},
		"nothing at all":          {nil, State{}, nil, nil},
	} {
		added, removed := differing(test.told, test.s)
		if !slices.Equal(added, test.added) || !slices.Equal(removed, test.removed) {
			t.Errorf("%s: added %v, removed %v; want %v, %v", name, added, removed, test.added, test.removed)
		}
	}
}
