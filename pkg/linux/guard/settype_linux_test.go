package guard

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"golang.org/x/sys/unix"

	"flannel/internal/test/logtest"
	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
	"flannel/pkg/linux/rtnetlink"
)

// A set that no rule looks at, and that somebody has replaced by one of another type, is made again. The rules stay until
// the new ones can be written. A set that the guard does not need is deleted alone.
func TestReplacedSet(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		l := newLink(t)
		g := l.guard(paths[:1]...) // a set of intervals has room for one address, and refuses several
		l.apply(g, Config{})
		want := nft(t, "list set inet flannel-guard nodes4")
		for _, foreign := range []string{
			"set inet flannel-guard nodes4 { type inet_service; }",
			"set inet flannel-guard nodes4 { type ipv4_addr; flags interval; }",
			"set inet flannel-guard nodes4 { type ipv4_addr; timeout 1h; }",
			"map inet flannel-guard nodes4 { type ipv4_addr : mark; }",
			"map inet flannel-guard nodes4 { type ipv4_addr : counter; }",
			"set inet flannel-guard nodes4 { typeof @th,336,32; size 1; }",
			"set inet flannel-guard nodes4 { typeof @th,336,32; flags constant; }",
			"set inet flannel-guard nodes4 { typeof @th,336,32; counter; }",
		} {
			clear(g.replaced) // as in another run
			nft(t, "delete set inet flannel-guard nodes4; add "+foreign)
			g.changed()
			failure := errors.New("no interfaces")
			g.podsStale.Store(true)
			err := g.Apply(t.Context(), dataplane.Options{}, completed(Config{}), func() ([]string, error) { return nil, failure })
			if rules, _, _ := g.listRules(); !errors.Is(err, failure) || len(rules) == 0 {
				t.Errorf("after %s and %v, there are %d rules", foreign, err, len(rules))
			}
			l.apply(g, Config{})
			if have := nft(t, "list set inet flannel-guard nodes4"); have != want {
				t.Errorf("after %s, the set is\n%s\nwant\n%s", foreign, have, want)
			}
		}
		// One of another kind of keys or data is replaced each time, since the kernel refuses to make the guard's. Each time
		// but the first one of each kind, the log has the kernel's error.
		var log logtest.Log
		g.log = log.Logger()
		for _, foreign := range []string{"set inet flannel-guard nodes4 { type inet_service; }", "map inet flannel-guard nodes4 { type ipv4_addr : mark; }"} {
			for range 3 {
				nft(t, "delete set inet flannel-guard nodes4; add "+foreign)
				g.changed()
				l.apply(g, Config{})
				if have := nft(t, "list set inet flannel-guard nodes4"); have != want {
					t.Errorf("after %s again, the set is\n%s\nwant\n%s", foreign, have, want)
				}
			}
		}
		replacements := func() int { return len(log.With("level=INFO").Naming("error", "flannel-guard")) }
		if n := replacements(); n != 4 {
			t.Errorf("%d tables were replaced after an error, want 4:\n%s", n, log.String())
		}
		// So it has if the new table cannot be filled: of the calls of a pass, the last one after which Apply fails.
		faults := nstest.NewFaults(t)
		call := math.MaxInt32
		for err := error(nil); err == nil && call > 0; call-- {
			nft(t, "delete set inet flannel-guard nodes4; add map inet flannel-guard nodes4 { type ipv4_addr : mark; }")
			g.changed()
			log.Reset()
			faults.Fail(call, unix.ENOBUFS)
			err = g.Apply(t.Context(), dataplane.Options{}, completed(Config{}), nil)
			call = min(call, faults.Fail(0, 0)+1)
			if n := replacements(); n != 1 {
				t.Errorf("%d tables were replaced after an error, want 1, and Apply returns %v:\n%s", n, err, log.String())
			}
		}
		l.apply(g, Config{})
		clear(g.replaced)
		nft(t, "add set inet flannel-guard owners4-17 { type inet_service; }")
		g.changed()
		l.apply(g, Config{})
		if sets, err := g.kernelSets(); err != nil || sets["owners4-17"] != nil || len(g.replaced) > 0 {
			t.Errorf("there are the sets %q, and the table was replaced because of %v: %v", slices.Collect(maps.Keys(sets)), g.replaced, err)
		}
	})
}

// Sets under the guard's names that it has not made, in a table that exists when it starts, are replaced. The kernel would
// refuse its elements, or rules that add some, or take any address for one of them.
func TestForeignSetAtStart(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		l := &link{t: t}
		run := func(check func(*Guard)) {
			g := l.guard(paths...)
			l.apply(g, Config{Outer: overVXLAN})
			check(g)
			if err := errors.Join(g.Apply(t.Context(), dataplane.Options{}, nil, nil), g.Close()); err != nil {
				t.Error(err)
			}
		}
		for set, foreign := range map[string]string{
			"peers4":     "set peers4 { type ipv4_addr; size 1; }",
			"owners4-24": "set owners4-24 { typeof ip saddr . @th,336,32; size 1; }",
			"outsiders4": "set outsiders4 { type ipv4_addr; flags dynamic,timeout; timeout 1s; size 4096; }",
			"outsiders6": "set outsiders6 { type ipv6_addr; flags dynamic,timeout; size 1; }",
			"pods":       "map pods { type ifname : verdict; }",
		} {
			var want string
			run(func(*Guard) { want = nft(t, "list set inet flannel-guard "+set) })
			nft(t, "table inet flannel-guard { "+foreign+"; }")
			run(func(g *Guard) {
				if have := nft(t, "list set inet flannel-guard "+set); have != want || !g.stale.Load() {
					t.Errorf("with %s, the set is\n%s\nwant\n%s\nand is checked soon: %t", foreign, have, want, g.stale.Load())
				}
			})
		}
	})
}

// A set that a later kernel would list with further flags and attributes is not foreign. After the table was replaced, sets
// that differ in the same attribute are kept, with one warning, so that the guard does not replace its table for ever.
func TestSetOfLaterKernel(t *testing.T) {
	later := rtnetlink.Message(nil).
		Attr(unix.NFTA_SET_FLAGS, []byte{0x80, 0, 2, unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT}).
		Attr(unix.NFTA_SET_KEY_TYPE, []byte{0, 0, 0, 7}).
		Attr(unix.NFTA_SET_KEY_LEN, []byte{0, 0, 0, 4}).
		Attr(unix.NFTA_SET_DESC|unix.NLA_F_NESTED, rtnetlink.Message(nil).Attr(99, []byte{1}).
			Attr(unix.NFTA_SET_DESC_SIZE, []byte{0, 0, maxOutsiders >> 8, 0}).Attr(98, []byte{1})).
		Attr(97, []byte{1})
	nstest.Run(t, func(t *testing.T) {
		var log logtest.Log
		g, err := New(log.Logger(), "", func() {})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close() //nolint:errcheck // the test is over
		if foreign := g.foreignSets(map[string][]byte{outsiders4: later}); len(foreign) > 0 {
			t.Errorf("foreign: %q", foreign)
		}
		l := &link{t: t}
		l.apply(g, Config{})
		for _, step := range []struct {
			set, key, other string // what somebody else makes
			kept            bool
		}{
			{nodes4, "@th,336,32", "size 9", false},
			{nodes4, "@th,336,32", "size 8", true},
			{nodes6, "@th,304,128", "size 7", true},
			{nodes4, "@th,336,32", "flags constant", false},
		} {
			nft(t, fmt.Sprintf("delete set inet flannel-guard %s; add set inet flannel-guard %[1]s { typeof %s; %s; }", step.set, step.key, step.other))
			g.changed()
			l.apply(g, Config{})
			if kept := strings.Contains(nft(t, "list set inet flannel-guard "+step.set), step.other); kept != step.kept {
				t.Errorf("%s of somebody else, with %s, is kept: %t, want %t", step.set, step.other, kept, step.kept)
			}
			g.changed()
			l.apply(g, Config{})
			if warned := log.Count("level=WARN"); step.kept && warned != 1 {
				t.Errorf("%s of somebody else, with %s, and %d warnings:\n%s", step.set, step.other, warned, log.String())
			}
		}
	})
}

// A former version had a counter of all packets that a rule found, also of those that it dropped. Counts
// would take them for others, so that all begin at 0.
func TestCountersOfFormerVersion(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		l := &link{t: t}
		g := l.guard(paths...)
		g.conn.AddTable(g.table)
		for _, name := range counterNames() {
			counter := g.counter(strings.TrimPrefix(name, countedBy("")))
			counter.Packets = 7
			g.conn.AddObj(counter)
		}
		if err := g.flush("write"); err != nil {
			t.Fatal(err)
		}
		l.apply(g, Config{Outer: overVXLAN})
		found, dropped, _ := g.Counts()
		if counters := nft(t, "list counters table inet flannel-guard"); strings.Contains(counters, "counter "+outsider) || found[outsider] != 0 || dropped[outsider] != 0 {
			t.Errorf("found %v, dropped %v\n%s", found, dropped, counters)
		}
		// Nor is anything said of a rule of which a counter is missing.
		nft(t, "delete counter inet flannel-guard "+droppedBy(outsider))
		if found, _, _ := g.Counts(); len(found) != len(ruleNames)-1 {
			t.Errorf("without a counter: found %v", found)
		}
	})
}

// A start keeps the sets of a former version, which wrote them by the library for nftables, with their elements, and counters.
func TestSetsOfFormerVersion(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		l := &link{t: t}
		g := l.guard(paths...)
		g.conn.AddTable(g.table)
		for _, name := range counterNames() {
			counter := g.counter(name)
			counter.Packets = 7
			g.conn.AddObj(counter)
		}
		elements := map[string]string{peers4: "203.0.113.9", peers6: "2001:db8::99", outsiders4: "203.0.113.9", outsiders6: "2001:db8::99", pods: "eth9"}
		for _, set := range []*nftables.Set{
			{Name: peers4, KeyType: nftables.TypeIPAddr},
			{Name: peers6, KeyType: nftables.TypeIP6Addr},
			{Name: outsiders4, KeyType: nftables.TypeIPAddr, Dynamic: true, HasTimeout: true, Size: maxOutsiders},
			{Name: outsiders6, KeyType: nftables.TypeIP6Addr, Dynamic: true, HasTimeout: true, Size: maxOutsiders},
			{Name: pods, KeyType: nftables.TypeIFName, KeyByteOrder: binaryutil.NativeEndian},
		} {
			set.Table = g.table
			if err := g.conn.AddSet(set, nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := g.flush("write"); err != nil {
			t.Fatal(err)
		}
		for set, element := range elements {
			nft(t, "add element inet flannel-guard "+set+" { "+element+" }")
		}
		l.apply(g, Config{Outer: overVXLAN})
		for set, element := range elements {
			if have := nft(t, "list set inet flannel-guard "+set); !strings.Contains(have, element) {
				t.Errorf("%s is gone from the set:\n%s", element, have)
			}
		}
		if found, dropped, _ := g.Counts(); found[outsider] != 14 || dropped[outsider] != 7 {
			t.Errorf("the guard has found %v, and dropped %v of them; want 14 packets, and 7", found, dropped)
		}
		for _, set := range g.setNames() {
			if size := typeOf(set).size; set != outsiders4 && set != outsiders6 && int(size) != codeOf(set).keySize() {
				t.Errorf("set %s has keys of %d bytes, and its elements of %d", set, size, codeOf(set).keySize())
			}
		}
	})
}
