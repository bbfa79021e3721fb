package guard

import (
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
