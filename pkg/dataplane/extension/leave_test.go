package extension

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
)

// Another backend takes over: what commands made is removed before it adds anything.
func TestAnotherBackend(t *testing.T) {
	n := newNode(t)
	n.mustPass(peerPaths(2, "")...)
	n.recorded()
	links, err := n.Ensure(t.Context(), []dataplane.Device{{Name: "eth0", Kind: dataplane.Existing{}}})
	if err != nil {
		t.Fatal(err)
	}
	next := []*dataplane.Path{{Dst: netip.MustParsePrefix("10.5.2.0/24"), Device: "eth0", Encap: dataplane.Direct{}}}
	if _, err := n.Apply(t.Context(), links, dataplane.State{Paths: next, Since: n.paths, Changes: []reconcile.Change[dataplane.Path]{{Old: n.paths[0], New: next[0]}}}); err != nil {
		t.Fatal(err)
	}
	n.expect(`remove 10.5.2.0/24 192.168.0.2 fd05:0:0:2::/64 fd00::2 "\n" []`)
	if !slices.Equal(n.kernel.state.Paths, next) {
		t.Errorf("the kernel gets %+v", n.kernel.state)
	}
	n.mustPass(peerPaths(2, "")...)
	if got := n.recorded(); len(got) != 2 || got[1] != post {
		t.Errorf("back again ran %q", got)
	}
}

// A pass of another backend costs nothing where no peer is left.
func TestOtherBackendAlone(t *testing.T) {
	n := newNode(t)
	next := []*dataplane.Path{{Dst: netip.MustParsePrefix("10.5.2.0/24"), Encap: dataplane.Direct{}}}
	if _, waits := n.another(next); waits || !n.deadline.IsZero() {
		t.Error("peers are being removed, and none was there")
	}
	n.mustPass(peerPaths(2, "")...)
	for waits := true; waits; {
		_, waits = n.another(next)
	}
	s := dataplane.State{Paths: next}
	if allocs := testing.AllocsPerRun(100, func() { _, _ = n.leave(t.Context(), s) }); allocs > 0 {
		t.Errorf("a pass allocates %v times", allocs)
	}
}

// another makes a pass with another backend that has one path for each of the peers. It returns the paths that the kernel
// gets, and whether others have to wait.
func (n *node) another(next []*dataplane.Path) ([]*dataplane.Path, bool) {
	n.t.Helper()
	links, err := n.Ensure(n.t.Context(), []dataplane.Device{{Name: "eth0", Kind: dataplane.Existing{}}})
	if err != nil {
		n.t.Fatal(err)
	}
	_, err = n.Apply(n.t.Context(), links, dataplane.State{Paths: next, Since: n.paths})
	waits, ok := errors.AsType[*dataplane.WaitError](err)
	if err != nil && !ok || ok && (waits.Cause() != causeCommands || n.kernel.state.Since != nil) {
		n.t.Fatalf("%v; %+v", err, n.kernel.state)
	}
	return n.kernel.state.Paths, ok
}

// adds makes passes with some peers, from 10.5.2.0/24 on, and returns their paths of another backend.
func (n *node) adds(number int) (next []*dataplane.Path) {
	n.t.Helper()
	var paths []*dataplane.Path
	for i := 2; i < 2+number; i++ {
		paths = append(paths, peerPaths(i, "")...)
		next = append(next, &dataplane.Path{Dst: netip.MustParsePrefix(fmt.Sprintf("10.5.%d.0/24", i)), Device: "eth0", Encap: dataplane.Direct{}})
	}
	n.mustPass(paths...)
	return next
}

// Another backend gets the path to a peer only when its removal has succeeded, or has been tried for as long as a command
// may run. Other peers do not wait for that.
func TestAnotherBackendWaits(t *testing.T) {
	n := newNode(t)
	next := n.adds(3)
	n.patient = 50 * time.Millisecond
	n.tell("fail-10.5.2.0-24", true)
	n.tell("stall-10.5.3.0-24", true)
	// until makes passes until the kernel gets these paths.
	until := func(want ...*dataplane.Path) {
		t.Helper()
		for {
			got, waits := n.another(next)
			if !waits || slices.Contains(got, next[1]) {
				t.Fatalf("while a removal hangs, the kernel gets %+v", got)
			}
			if slices.Equal(got, want) {
				return
			}
			<-n.Changes()
		}
	}
	until(next[2])
	n.tell("fail-10.5.2.0-24", false)
	until(next[0], next[2])
	n.deadline = time.Now()
	for _, n.patient = range []time.Duration{time.Millisecond, time.Hour} { // the second does not wait, although a command runs
		if got, waits := n.another(next); waits || !slices.Equal(got, next) {
			t.Errorf("after the limit, the kernel gets %+v", got)
		}
	}
	if n.log.Count("cause="+causeFailed, "given_up=true", "subnet=10.5.3.0/24") != 1 {
		t.Errorf("the log is %s", n.log.String())
	}
}

// A pass that must not delete anything adds no path to a peer whose removal runs, or comes later: it would delete the path.
func TestAnotherBackendKeeps(t *testing.T) {
	n := newNode(t)
	next := n.adds(2)
	n.recorded()
	n.patient = time.Millisecond
	newcomer := &dataplane.Path{Dst: netip.MustParsePrefix("10.5.9.0/24"), Device: "eth0", Encap: dataplane.Direct{}}
	keep := func(want ...*dataplane.Path) {
		t.Helper()
		_, err := n.Ensure(t.Context(), []dataplane.Device{{Name: "eth0", Kind: dataplane.Existing{}}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = n.Apply(t.Context(), nil, dataplane.State{Paths: append(slices.Clone(next), newcomer), Keep: true})
		if waits, ok := errors.AsType[*dataplane.WaitError](err); !ok || waits.Cause() != causeCommands {
			t.Error(err)
		}
		if got := n.kernel.state; !slices.Equal(got.Paths, want) || !got.Keep {
			t.Errorf("the kernel gets %+v", got)
		}
	}
	keep(newcomer)
	n.expect()
	if !n.deadline.IsZero() {
		t.Error("a removal that must not run is given up after the limit")
	}
	n.tell("stall-10.5.2.0-24", true)
	for got, _ := n.another(next); !slices.Equal(got, next[1:]); got, _ = n.another(next) {
		<-n.Changes()
	}
	keep(next[1], newcomer)
}

// Another backend waits for removals for as long as a command may run, and for many peers for as long as commands that
// are not slow may take. A removal that is then given up before it was tried never runs.
func TestRemovalLimit(t *testing.T) {
	for _, c := range []struct {
		peers   int
		runs    time.Duration // each removal
		want    time.Duration
		givenUp int
	}{
		{atOnce + 1, time.Hour, timeLimit, atOnce + 1},
		{1000, time.Hour, 1000 / atOnce * slowAfter, 1000},
		{1000, slowAfter * 9 / 10, 1000 / atOnce * slowAfter * 9 / 10, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			n.commands = dataplane.Commands{V4: n.commands.V4} // no program runs in the bubble
			var removals atomic.Int64
			n.limit = func(ctx context.Context, cmd command) (context.Context, context.CancelFunc) {
				if cmd.key == "SubnetRemoveCommand" {
					removals.Add(1)
					time.Sleep(c.runs)
				}
				return ctx, func() {}
			}
			var paths, next []*dataplane.Path
			for i := range c.peers {
				by := dataplane.ByCommands{V4: end(fmt.Sprintf("10.%d.%d.0/24", 6+i/250, i%250), "192.168.0.2")}
				paths = append(paths, &dataplane.Path{Dst: by.V4.Subnet, Device: "x", Encap: by})
				next = append(next, &dataplane.Path{Dst: by.V4.Subnet, Device: "eth0", Encap: dataplane.Direct{}})
			}
			n.mustPass(paths...)
			began := time.Now()
			for _, waits := n.another(next); waits; _, waits = n.another(next) {
				<-n.Changes()
			}
			if took, count := time.Since(began), n.log.Count("cause="+causeFailed, "given_up=true"); took != c.want || count != c.givenUp {
				t.Errorf("%d peers took %s, %d given up, want %s, %d", c.peers, took, count, c.want, c.givenUp)
			}
			time.Sleep(c.runs)
			synctest.Wait()
			if ran := int(removals.Load()); c.givenUp > 0 && ran != atOnce || len(n.peers) > 0 {
				t.Errorf("%d removals ran, %d peers are left", ran, len(n.peers))
			}
		})
	}
}

// A removal that was given up while it ran leaves nothing behind when it ends.
func TestGivenUpRemovalEnds(t *testing.T) {
	for _, back := range []bool{false, true} {
		n := newNode(t)
		n.slow = 0
		next := n.adds(1)
		n.patient = time.Millisecond
		hung := make(chan context.CancelCauseFunc, 1)
		n.limit = func(ctx context.Context, c command) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancelCause(ctx)
			if c.key == "SubnetRemoveCommand" {
				hung <- cancel
			}
			return ctx, func() { cancel(nil) }
		}
		n.tell("stall-10.5.2.0-24", true)
		n.another(next)
		for stalled := []string(nil); len(stalled) == 0; stalled, _ = filepath.Glob(filepath.Join(n.dir, "stalled.*")) {
			time.Sleep(10 * time.Millisecond)
		}
		n.deadline = time.Now()
		n.another(next)
		n.tell("stall-10.5.2.0-24", false)
		if back { // wanted again while the removal runs
			links, _ := n.Ensure(t.Context(), []dataplane.Device{{Name: "x", Kind: n.commands}})
			_, _ = n.Apply(t.Context(), links, dataplane.State{Networks: []netip.Prefix{v4Network}, Paths: peerPaths(2, "")})
		}
		(<-hung)(context.DeadlineExceeded)
		if back {
			n.mustPass(peerPaths(2, "")...)
			n.mu.Lock()
			if p := n.peers[peerPaths(2, "")[0].Dst]; p.slow || !p.added || p.have == nil {
				t.Errorf("the peer is %+v", p)
			}
			n.mu.Unlock()
		}
		for left := true; left && !back; time.Sleep(10 * time.Millisecond) {
			n.mu.Lock()
			left = len(n.peers) > 0
			n.mu.Unlock()
		}
		if n.log.Count("cause="+causeFailed) != 1 || n.log.Count("given_up=true") != 1 {
			t.Errorf("the log is %s", n.log.String())
		}
	}
}
