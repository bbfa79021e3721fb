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
	"testing"

	"golang.org/x/sys/unix"

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
		if err := g.write(*g.config); err != nil || !slices.Equal(g.rules, []uint64{noHandle}) {
			t.Errorf("after an interrupted list, the rules have the handles %v, error %v", g.rules, err)
		}
		// That write may have left chains, so that the next check writes again. That is not a repair of what others have changed.
		repairs := 0
		o := dataplane.Options{Repairs: dataplane.NewRepairs(g.log, func(string, int) { repairs++ })}
		if err := g.Apply(t.Context(), o, completed(Config{Outer: overVXLAN}), nil); err != nil || repairs > 0 || slices.Equal(g.rules, []uint64{noHandle}) {
			t.Errorf("%d repairs, and the rules have the handles %v, error %v", repairs, g.rules, err)
		}
		// Without such a list, somebody else has changed the rules while they were written.
		g.rules = []uint64{noHandle}
		g.changed()
		if err := g.Apply(t.Context(), o, completed(Config{Outer: overVXLAN}), nil); err != nil || repairs != 1 {
			t.Errorf("%d repairs after rules that others have changed meanwhile, want 1, error %v", repairs, err)
		}
		g.stale.Store(false)
		have, lists := list(1, func(int) string { return "delete table inet other" })
		if !reflect.DeepEqual(have, want) || lists != 2 || g.stale.Load() {
			t.Errorf("%d lists, the last one with the chains %q, want %q; the guard is stale: %t", lists, slices.Collect(maps.Keys(have)),
				slices.Collect(maps.Keys(want)), g.stale.Load())
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
