package guard

import (
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"flannel/internal/test/logtest"
	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
	"flannel/pkg/linux/rtnetlink"
)

// A resync reads nothing, and makes no transaction, if nobody has changed nf_tables since the one before it. It repairs
// what somebody has changed.
func TestUnchangedTable(t *testing.T) {
	for name, c := range map[string]Config{
		"vxlan":                          {Outer: overVXLAN},
		"host-gw, wireguard and ipsec":   {}, // no rule looks at the sets of nodes and owners
		"host-gw, and the rules enforce": {Enforce: true},
	} {
		t.Run(name, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				l := newLink(t)
				g := l.guard(paths...)
				faults := nstest.NewFaults(t)
				resync := func() (calls int) {
					g.Relist()
					faults.Fail(0, 0) // counts calls
					l.apply(g, c)
					return faults.Fail(0, 0)
				}
				l.apply(g, c)
				before := rtnetlink.TablesGeneration()
				first := resync()
				if second := resync(); second >= first/2 || before == 0 || rtnetlink.TablesGeneration() != before {
					t.Errorf("%d calls after %d; the generation is %d, before %d", second, first, rtnetlink.TablesGeneration(), before)
				}
				nft(t, "flush set inet flannel-guard peers4")
				resync()
				if !strings.Contains(nft(t, "list set inet flannel-guard peers4"), "192.0.2.2") {
					t.Error("the set was not repaired")
				}
			})
		})
	}
}

// The rules are written also if the sets that they do not need cannot be listed.
func TestUnneededSetsNotListed(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		l := &link{t: t}
		g := l.guard(paths...)
		l.apply(g, Config{})
		faults := nstest.NewFaults(t)
		faults.Fail(0, 0) // counts calls
		if _, err := g.unneeded(nil); err != nil {
			t.Fatal(err)
		}
		faults.Fail(faults.Fail(0, 0)+1, unix.ENOBUFS)
		before := g.rules
		if err := g.write(*g.config); err != nil || slices.Equal(g.rules, before) {
			t.Errorf("the rules have the handles %v, before %v, and the error is %v", g.rules, before, err)
		}
		faults.Fail(0, 0)
	})
}

// A notification outvotes the generation: the kernel may have raised it before others saw the change, and check read both.
func TestNotificationOutvotesGeneration(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		l := newLink(t)
		g, c := l.guard(paths...), Config{Outer: overVXLAN}
		l.apply(g, c)
		nft(t, "flush chain inet flannel-guard arriving")
		g.compared = rtnetlink.TablesGeneration()
		g.changed()
		l.apply(g, c)
		if text := nft(t, "list chain inet flannel-guard arriving"); !strings.Contains(text, "goto outer") {
			t.Errorf("the chain was not repaired:\n%s", text)
		}
	})
}

// What no rule looks at, and somebody has deleted, is made again: without tunnels, the sets of nodes; of rules that
// drop, the sets of outsiders; of rules that count, the counters of what is dropped; of all, that of nodes that have joined.
func TestDeletedObjects(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		counts, drops := Config{Outer: overVXLAN}, Config{Outer: overVXLAN, Enforce: true, Trial: 1} // 1 ns: the second Apply ends it
		for what, c := range map[string]Config{
			"set inet flannel-guard nodes4":                     {},
			"set inet flannel-guard outsiders4":                 drops,
			"counter inet flannel-guard " + droppedBy(outsider): counts,
			"counter inet flannel-guard " + joinedBy(outsider):  counts,
		} {
			l := &link{t: t}
			g := l.guard(paths...)
			l.apply(g, c)
			l.apply(g, c)
			before, repaired := g.rules, map[string]int{}
			nft(t, "delete "+what)
			g.changed()
			o := dataplane.Options{Repairs: dataplane.NewRepairs(g.log, func(what string, n int) { repaired[what] += n })}
			if err := g.Apply(t.Context(), o, completed(c), nil); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			if isSet := strings.HasPrefix(what, "set"); slices.Equal(g.rules, before) != isSet || repaired["guard-rules"] != 1 {
				t.Errorf("%s: the handles of the rules are %v, before %v, and there were %v repairs", what, g.rules, before, repaired)
			}
			nft(t, "list "+what)
			if enforces, _, _ := g.Enforces(); enforces != c.Enforce {
				t.Errorf("%s: the rules drop: %t", what, enforces)
			}
			if err := errors.Join(g.Apply(t.Context(), dataplane.Options{}, nil, nil), g.Close()); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

// What refers to something that the guard deletes, or makes anew, is deleted with it. The table stays.
func TestReferencesAreDeleted(t *testing.T) {
	for what, change := range map[string]string{
		"a chain of somebody else": "add chain inet flannel-guard foreign; " +
			"add map inet flannel-guard foreign { type ipv4_addr : verdict; elements = { 192.0.2.9 : jump foreign }; }",
		"a chain of former rules": "add map inet flannel-guard foreign { type ipv4_addr : verdict; elements = { 192.0.2.9 : goto speaker }; }",
		"a counter": "delete counter inet flannel-guard " + joinedBy(outsider) + "; " + // all of them are made anew
			"add map inet flannel-guard foreign { type ipv4_addr : counter; elements = { 192.0.2.9 : \"" + countedBy(outsider) + "\" }; }",
	} {
		t.Run(what, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				l := &link{t: t}
				g := l.guard(paths...)
				l.apply(g, Config{Outer: overVXLAN})
				nft(t, change+"; add quota inet flannel-guard other { 1 mbytes; }")
				g.changed()
				l.apply(g, Config{})
				nft(t, "list quota inet flannel-guard other")
				chains, err := g.kernelChains()
				sets, listErr := g.kernelSets()
				if err = errors.Join(err, listErr); err != nil || sets["foreign"] != nil || chains["foreign"] != nil || chains[speaker] != nil {
					t.Errorf("there are the sets %q and the chains %q (%v)", slices.Collect(maps.Keys(sets)), slices.Collect(maps.Keys(chains)), err)
				}
			})
		})
	}
}

// A table whose deletion has failed is deleted by the next pass.
func TestRemoveAgain(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		g, err := New(slog.New(slog.DiscardHandler), "", func() {})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close() //nolint:errcheck // not what is tested
		apply := func(c *Config) error {
			return g.Apply(t.Context(), dataplane.Options{}, c, func() ([]string, error) { return nil, nil })
		}
		if err := apply(&Config{}); err != nil {
			t.Fatal(err)
		}
		faults := nstest.NewFaults(t)
		faults.Fail(2, unix.ENOBUFS) // the request after drain
		if err := apply(nil); !errors.Is(err, unix.ENOBUFS) {
			t.Fatal(err)
		}
		faults.Fail(0, 0)
		if err := apply(nil); err != nil {
			t.Fatal(err)
		}
		if table, err := g.kernelTable(); table != nil || err != nil {
			t.Errorf("the table is there: %v, %v", table, err)
		}
	})
}

// The watcher of package linux asks for a resync while the loop applies: the race detector must find nothing.
func TestRelistBesideApply(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		l := &link{t: t}
		g := l.guard(paths...)
		defer g.Close() //nolint:errcheck // not what is tested
		for range 10 {
			var beside sync.WaitGroup
			beside.Go(g.Relist)
			l.apply(g, Config{})
			beside.Wait()
			beside.Go(g.Relist)
			if err := g.Apply(t.Context(), dataplane.Options{}, nil, nil); err != nil {
				t.Error(err)
			}
			beside.Wait()
		}
	})
}

// A program that changes the rules again and again does not fill the log. Each change is repaired.
func TestManyRepairsAreNotLogged(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		l := &link{t: t}
		g := l.guard(paths...)
		defer g.Close() //nolint:errcheck // not what is tested
		log, repaired := &logtest.Log{}, 0
		g.log = log.Logger()
		l.apply(g, Config{Outer: overVXLAN})
		o := dataplane.Options{Repairs: dataplane.NewRepairs(g.log, func(string, int) { repaired++ })}
		const repairs = 30
		for range repairs {
			nft(t, "flush chain inet flannel-guard arriving")
			g.changed()
			if err := g.Apply(t.Context(), o, completed(Config{Outer: overVXLAN}), nil); err != nil {
				t.Fatal(err)
			}
			if text := nft(t, "list chain inet flannel-guard arriving"); !strings.Contains(text, "goto outer") {
				t.Fatalf("the chain was not repaired:\n%s", text)
			}
		}
		if n := log.Count("table=flannel-guard"); n < 10 || n >= repairs || repaired != repairs {
			t.Errorf("%d repairs were logged %d times, and %d counted", repairs, n, repaired)
		}
	})
}
