package guard

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

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
