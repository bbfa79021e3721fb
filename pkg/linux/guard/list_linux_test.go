package guard

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"golang.org/x/sys/unix"

	"flannel/internal/test/logtest"
	"flannel/internal/test/nettest"
	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
	"flannel/pkg/linux/rtnetlink"
)

// What tunnels send, in the configurations of these tests.
var (
	overVXLAN = dataplane.TraitsOf(dataplane.VXLAN{VNI: 1})
	overUDP   = dataplane.TraitsOf(dataplane.TUN{})
	overIPIP  = dataplane.TraitsOf(dataplane.IPIP{})
)

// nft can show the table to administrators, other programs can parse what it prints, and
// what it saves can be loaded again: with the nft of this machine and that of the image.
func TestTableCanBeListed(t *testing.T) {
	for name, c := range map[string]Config{
		"vxlan": {Outer: overVXLAN}, "udp": {Outer: overUDP}, "ipip": {Outer: overIPIP}, "host-gw": {},
	} {
		for mode, enforce := range map[string]bool{"audit": false, "enforce": true} {
			t.Run(name+" "+mode, func(t *testing.T) {
				nstest.Run(t, func(t *testing.T) {
					c.Enforce = enforce
					l := newLink(t)
					g := l.guard(paths...)
					l.apply(g, c)
					if err := g.Prune(t.Context(), dataplane.Options{}); err != nil {
						t.Fatal(err)
					}
					if _, outer := c.layout(); outer && !enforce { // with a sender that is recorded
						for _, from := range []string{"192.0.2.99", "2001:db8::99"} {
							l.check(g, "", c, said{from: from, inside: "10.5.2.7", rule: outsider})
						}
					}
					nstest.CheckSavedRules(t, nettest.Tool(t, "image/start"))
					nft(t, "delete table inet flannel-guard\n"+nft(t, "list ruleset"))
					if sets, err := g.kernelSets(); err != nil || len(sets) == 0 || len(g.foreignSets(sets)) > 0 {
						t.Errorf("of %d sets that nft has loaded, the guard does not take %q for its own: %v", len(sets), g.foreignSets(sets), err)
					}
				})
			})
		}
	}
}

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
					faults.Fail(math.MaxInt32, unix.EIO) // counts calls
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
		// One of another kind of keys or data is replaced each time, since the kernel refuses to make the guard's.
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
		if counted, _ := g.Counts(); counted[outsider] != 7 {
			t.Errorf("the guard has counted %v, want 7 packets", counted)
		}
		for _, set := range g.setNames() {
			if size := typeOf(set).size; set != outsiders4 && set != outsiders6 && int(size) != codeOf(set).keySize() {
				t.Errorf("set %s has keys of %d bytes, and its elements of %d", set, size, codeOf(set).keySize())
			}
		}
	})
}

// The rules are written also if the sets that they do not need cannot be listed.
func TestUnneededSetsNotListed(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		l := &link{t: t}
		g := l.guard(paths...)
		l.apply(g, Config{})
		faults := nstest.NewFaults(t)
		faults.Fail(math.MaxInt32, unix.EIO) // counts calls
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

// A list of chains that a change in a table of somebody else interrupts is repeated: it would lack chains of the guard.
// If each is interrupted, the last one is used, and the guard is stale.
func TestInterruptedList(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		chains := "add table inet other\n"
		for i := range 2000 {
			chains += fmt.Sprintf("add chain inet other c%d\n", i)
		}
		// In several parts, in front of the guard's chains. The kernel has made the second part when the first one is received.
		nft(t, chains)
		l := &link{t: t}
		g := l.guard(paths...)
		l.apply(g, Config{Outer: overVXLAN})
		want, err := g.kernelChains()
		if err != nil {
			t.Fatal(err)
		}
		// list has a change made after the first message of each of the first n lists.
		list := func(n int, change func(list int) string) (have map[string][]byte, lists int) {
			have = map[string][]byte{}
			isFirst := false
			if err := g.dump(unix.NFT_MSG_GETCHAIN, "", func() { clear(have); lists++; isFirst = true }, func(attrs []byte) {
				if isFirst && lists <= n {
					nft(t, change(lists))
				}
				isFirst = false
				if unix.ByteSliceToString(rtnetlink.Attr(attrs, unix.NFTA_CHAIN_TABLE)) == g.table.Name {
					have[unix.ByteSliceToString(rtnetlink.Attr(attrs, unix.NFTA_CHAIN_NAME))] = bytes.Clone(attrs)
				}
			}); err != nil {
				t.Error(err)
			}
			return have, lists
		}
		g.stale.Store(false)
		if _, lists := list(math.MaxInt, func(list int) string { return fmt.Sprintf("add table ip other%d", list) }); lists != rtnetlink.Tries || !g.stale.Load() {
			t.Errorf("%d lists, each interrupted, and the guard is stale: %t", lists, g.stale.Load())
		}
		for _, differ := range []bool{true, false} { // the first write may have left chains, so that the next check writes again
			if err := g.write(*g.config); err != nil || slices.Equal(g.rules, []uint64{noHandle}) != differ {
				t.Errorf("the rules have the handles %v, which differ: %t; error %v", g.rules, differ, err)
			}
		}
		g.stale.Store(false)
		have, lists := list(1, func(int) string { return "delete table inet other" })
		if !reflect.DeepEqual(have, want) || lists != 2 || g.stale.Load() {
			t.Errorf("%d lists, the last one with the chains %q, want %q; the guard is stale: %t", lists, slices.Collect(maps.Keys(have)),
				slices.Collect(maps.Keys(want)), g.stale.Load())
		}
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

// A kernel without nf_tables has no table of ours, so that a cleanup has nothing to do.
func TestKernelWithoutTables(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		g, err := New(slog.New(slog.DiscardHandler), "", func() {})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close() //nolint:errcheck // not what is tested
		faults := nstest.NewFaults(t)
		for _, errno := range []unix.Errno{unix.EINVAL, unix.EOPNOTSUPP, unix.EPROTONOSUPPORT} {
			faults.Fail(1, errno) // the request
			removed, err := g.Remove(false)
			if calls := faults.Fail(0, 0); len(removed) > 0 || err != nil || calls == 0 {
				t.Errorf("%v: removed %q, %v; want nothing and no error (%d calls)", errno, removed, err, calls)
			}
		}
		faults.Fail(1, unix.ENOBUFS)
		if _, err := g.Remove(false); !errors.Is(err, unix.ENOBUFS) {
			t.Errorf("error %v, want one of the kernel that could not answer", err)
		}
		faults.Fail(0, 0)
	})
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
