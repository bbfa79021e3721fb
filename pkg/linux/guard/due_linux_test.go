package guard

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
)

// The pauses grow while Prune fails, although each Apply before it succeeds, and nothing is due once Prune has succeeded.
func TestPauseAfterFailedPrunes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		due := make(chan struct{}, 1)
		g := &Guard{retry: reconcile.Backoff{First: firstRetry, Last: lastRetry}, due: time.AfterFunc(time.Hour, func() { reconcile.Notify(due) })}
		last := time.Now()
		for pause := firstRetry; pause <= 8*firstRetry; pause *= 2 {
			g.setDue() // of Apply
			g.unpruned = errors.New("no memory")
			g.setDue()
			<-due
			if took := time.Since(last); took != pause {
				t.Errorf("it is due after %v, want %v", took, pause)
			}
			last = time.Now()
		}
		g.setDue()
		g.unpruned = nil
		g.setDue()
		time.Sleep(time.Hour)
		if len(due) > 0 {
			t.Error("it is due without an error")
		}
	})
}

// Once the table is deleted, nothing is left to be pruned.
func TestNothingIsDueWithoutTable(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		l := newLink(t)
		g := l.guard()
		l.apply(g, Config{Outer: overVXLAN})
		g.unpruned = errors.New("no memory")
		if err := g.Apply(t.Context(), dataplane.Options{}, nil, nil); err != nil || g.retry.Err() != nil {
			t.Errorf("the table is deleted (%v), and due is %v", err, g.retry.Err())
		}
	})
}

// A table that cannot be deleted is tried again soon, whatever has failed before in the guard, and then more and more rarely.
func TestDeletionHasPauseOfItsOwn(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		l := &link{t: t}
		g := l.guard()
		defer g.Close() //nolint:errcheck // not what is tested
		l.apply(g, Config{Outer: overVXLAN})
		g.retry = reconcile.Backoff{First: time.Hour, Last: 8 * time.Hour}
		for range 4 {
			g.retry.Fail(unix.EPERM)
		}
		faults := nstest.NewFaults(t)
		off := func() time.Time {
			t.Helper()
			faults.Fail(2, unix.ENOBUFS) // the request after drain
			err := g.Apply(t.Context(), dataplane.Options{}, nil, nil)
			if faults.Fail(0, 0); !errors.Is(err, unix.ENOBUFS) {
				t.Fatalf("the request fails, and the error is %v", err)
			}
			return g.retry.Next()
		}
		next := off()
		if pause := time.Until(next); pause > g.retry.First {
			t.Errorf("the table is deleted after %v", pause)
		}
		if again := off(); !again.Equal(next) {
			t.Errorf("a call within the pause moves its end by %v", again.Sub(next))
		}
	})
}

// Whatever call of Prune fails, it causes another pass.
func TestFailedPruneNotifies(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		due := make(chan struct{}, 1)
		g, err := New(slog.New(slog.DiscardHandler), "", func() { reconcile.Notify(due) })
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close() //nolint:errcheck // not what is tested
		g.retry = reconcile.Backoff{First: time.Millisecond}
		l, c, former := &link{t: t}, Config{Outer: overVXLAN}, path("10.5.9.0/24", "192.0.2.9")
		g.Put(dataplane.Want, paths[0]) // has a subnet of the same length, so that Prune keeps the rules
		faults := nstest.NewFaults(t)
		for call, failed := 1, true; failed; call++ {
			g.Put(dataplane.Want, former)
			l.apply(g, c)
			g.Put(dataplane.Drop, former)
			for len(due) > 0 { // about the call before
				<-due
			}
			faults.Fail(call, unix.ENOBUFS)
			err := g.Prune(t.Context(), dataplane.Options{})
			failed = faults.Fail(0, 0) >= call
			if err != nil {
				select {
				case <-due:
				case <-time.After(time.Minute):
					t.Fatalf("call %d failed (%v), and nothing causes another pass", call, err)
				}
			}
			g.Relist()
			l.apply(g, c)
			if err := g.Prune(t.Context(), dataplane.Options{}); err != nil || strings.Contains(nft(t, "list table inet flannel-guard"), former.Via.String()) {
				t.Fatalf("after call %d had failed, the former peer is there, or Prune fails: %v", call, err)
			}
		}
	})
}
