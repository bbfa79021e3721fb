package guard

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"flannel/internal/test/eventually"
	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
	"flannel/pkg/linux/rtnetlink"
	"flannel/pkg/reconcile"
)

// The guard hears of what others change in its table, and not of its own changes, which
// would fill the buffer of its socket.
func TestOnlyOthersNotify(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		notified := make(chan struct{}, 1<<16)
		g, err := New(slog.New(slog.DiscardHandler), "", func() { notified <- struct{}{} })
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := g.Close(); err != nil {
				t.Error(err)
			}
		}()
		if err := g.watch.Close(); err != nil {
			t.Fatal(err)
		}
		small := g.notifications()
		small.Buffer = 1 // the kernel's minimum
		if g.watch, err = rtnetlink.Listen(small); err != nil {
			t.Fatal(err)
		}
		via, dst := netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("10.5.2.0")
		for range 3 * atOnce {
			g.Put(dataplane.Want, &dataplane.Path{Dst: netip.PrefixFrom(dst, 32), Via: via, Encap: dataplane.VTEP{}})
			via, dst = via.Next(), dst.Next()
		}
		l := &link{t: t}
		l.apply(g, Config{})
		if n := len(notified); n != 0 {
			t.Errorf("notified %d times of its own changes", n)
		}
		if out, err := exec.CommandContext(t.Context(), "nft", "add element inet flannel-guard peers4 { 198.51.100.1 }").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		select {
		case <-notified:
		case <-time.After(5 * time.Minute):
			t.Fatal("not notified of a change by others")
		}
		if n := len(notified); n != 0 {
			t.Errorf("notified %d times of one change", n+1)
		}
		if !g.stale.Load() {
			t.Error("the table counts as unchanged")
		}
	})
}

// Somebody may change the rules as soon as they are written, before the guard has read
// their handles. The guard does not take that change for its own.
func TestChangedAtOnce(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		g, err := New(slog.New(slog.DiscardHandler), "", func() {})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close() //nolint:errcheck // it wrote all
		l := &link{t: t}
		l.apply(g, Config{})

		other, err := open()
		if err != nil {
			t.Fatal(err)
		}
		defer other.CloseLasting() //nolint:errcheck // it wrote all
		drop := &nftables.Rule{Table: g.table, Chain: &nftables.Chain{Table: g.table, Name: prerouting}, Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}}
		for round := range 50 {
			heard := make(chan struct{}, 1)
			n := changesOfOthers(other.socket.PID())
			n.Each = func(rtnetlink.Header, []byte) error { reconcile.Notify(heard); return nil }
			n.Lost = func(err error) { t.Error(err) }
			writes, err := rtnetlink.Listen(n)
			if err != nil {
				t.Fatal(err)
			}
			changed := make(chan error, 1)
			go func() {
				<-heard
				other.AddRule(drop)
				changed <- other.Flush()
			}()
			l.apply(g, Config{Tunnels: []string{"tunnel" + strconv.Itoa(round)}})
			if err := <-changed; err != nil {
				t.Fatal(err)
			}
			eventually.True(t, "the guard is notified", g.stale.Load)
			l.apply(g, Config{Tunnels: []string{"tunnel" + strconv.Itoa(round)}})
			rules, err := other.GetRules(g.table, drop.Chain)
			if err != nil {
				t.Fatal(err)
			}
			if slices.ContainsFunc(rules, func(r *nftables.Rule) bool { return drops(r.Exprs) }) {
				t.Fatalf("round %d: somebody else's rule is still there", round)
			}
			if err := writes.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Somebody may make the table anew as soon as the guard, which is off, has deleted it. The
// guard hears of that, and deletes it again.
func TestMadeAnewAtOnce(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		notified := make(chan struct{}, 1)
		g, err := New(slog.New(slog.DiscardHandler), "", func() { reconcile.Notify(notified) })
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close() //nolint:errcheck // it wrote all
		other, err := open()
		if err != nil {
			t.Fatal(err)
		}
		defer other.CloseLasting() //nolint:errcheck // it wrote all
		nstest.NewFaults(t)        // which slows the system calls of this thread down, so that others are faster
		off := func() {
			if err := g.Apply(t.Context(), dataplane.Options{}, nil, nil); err != nil {
				t.Fatal(err)
			}
		}
		for round := range 50 {
			(&link{t: t}).apply(g, Config{})
			heard := make(chan struct{}, 1)
			n := changesOfOthers(other.socket.PID())
			n.Each = func(rtnetlink.Header, []byte) error { reconcile.Notify(heard); return nil }
			n.Lost = func(err error) { t.Error(err) }
			writes, err := rtnetlink.Listen(n)
			if err != nil {
				t.Fatal(err)
			}
			made := make(chan error, 1)
			go func() {
				<-heard
				other.AddTable(g.table)
				made <- other.Flush()
			}()
			off()
			if err := <-made; err != nil {
				t.Fatal(err)
			}
			<-notified
			off()
			if table, err := g.kernelTable(); table != nil || err != nil {
				t.Fatalf("round %d: the table is there: %v, %v", round, table, err)
			}
			if err := writes.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// All rules of the host may be deleted while the guard writes its own ones, at any moment.
// The guard is notified, and one of its next Applies makes the table whole.
func TestFlushedDuringApply(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		g := (&link{t: t}).guard(paths...)
		defer g.Close() //nolint:errcheck // not what is tested
		apply := func(c *Config) error {
			return g.Apply(t.Context(), dataplane.Options{}, c, func() ([]string, error) { return nil, nil })
		}
		c, whole, failed := completed(Config{Outer: overVXLAN}), "", 0
		for at := 0; ; at += 5 {
			if err := apply(nil); err != nil {
				t.Fatal(err)
			}
			flushed := flushAt(t, at, func() {
				if apply(c) != nil {
					failed++
				}
			})
			if at > 0 && !flushed {
				t.Logf("of %d times, Apply failed %d times", at/5, failed)
				return
			}
			eventually.Nil(t, fmt.Sprintf("flushed at message %d, the table is whole", at), func() error {
				if err := apply(c); err != nil {
					return err
				}
				have := nft(t, "list ruleset")
				if whole == "" {
					whole = have
				}
				if have != whole {
					return fmt.Errorf("the rules are\n%s\nwant\n%s", have, whole)
				}
				return nil
			})
		}
	})
}

// flushAt has all rules deleted as soon as the kernel notifies of the n-th change by write, from
// 1 on. It reports whether there were so many.
func flushAt(t *testing.T, n int, write func()) (flushed bool) {
	t.Helper()
	other, err := open()
	if err != nil {
		t.Fatal(err)
	}
	defer other.CloseLasting() //nolint:errcheck // it wrote all
	const last = "the-last-change"
	heard, changes := make(chan struct{}, 1), changesOfOthers(other.socket.PID())
	changes.Each = func(_ rtnetlink.Header, body []byte) error {
		if bytes.Contains(body, []byte(last)) {
			reconcile.Notify(heard)
		} else if n--; n == 0 {
			other.FlushRuleset()
			flushed = true
			return other.Flush()
		}
		return nil
	}
	changes.Lost = func(err error) { t.Error(err) }
	l, err := rtnetlink.Listen(changes)
	if err != nil {
		t.Fatal(err)
	}
	write()
	nft(t, "add table inet "+last+"; delete table inet "+last)
	<-heard
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return flushed
}
