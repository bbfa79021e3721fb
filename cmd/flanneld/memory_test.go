package main

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
)

// counted is a Dataplane without entries. It counts what a leanDataplane does.
type counted struct {
	dataplane.Dataplane
	takes           time.Duration // how long an Apply takes
	released        int
	returned        atomic.Int32 // a timer counts it
	releasedAtFirst int          // released, in the first Apply
	lean            *leanDataplane
}

func newCounted(takes time.Duration) *counted {
	c := &counted{takes: takes, releasedAtFirst: -1}
	c.lean = &leanDataplane{Dataplane: c, release: func() { c.released++ }, returnAll: func() { c.returned.Add(1) }}
	return c
}

func (c *counted) Apply(context.Context, dataplane.Links, dataplane.State) ([]dataplane.Refused, error) {
	if c.releasedAtFirst < 0 {
		c.releasedAtFirst = c.released
	}
	time.Sleep(c.takes)
	return nil, nil
}

// QueueResync implements dataplane.Dataplane.
func (c *counted) QueueResync() {}

// apply applies a state with that many changes and paths.
func (c *counted) apply(t *testing.T, changed, paths int) {
	t.Helper()
	s := dataplane.State{Changes: make([]reconcile.Change[dataplane.Path], changed), Paths: make([]*dataplane.Path, paths)}
	if _, err := c.lean.Apply(t.Context(), nil, s); err != nil {
		t.Fatal(err)
	}
}

// Memory is returned once the daemon has settled: after the start, and after many changes,
// however few are in each pass, also of paths without a lease, of which the Changes say nothing.
func TestReturnsMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounted(0)
		for i, step := range []struct{ passes, changes, paths, want int }{
			{1, 3, 3, 1},
			{9, manyChanges / 10, 3, 1},
			{1, manyChanges / 10, 3, 2},
			{1, manyChanges, 3, 3},
			{5, 0, 3, 3},
			{1, 0, 3 + manyChanges, 4},
			{5, 0, 3 + manyChanges, 4},
			{1, 1, 3, 5},
		} {
			for range step.passes {
				c.apply(t, step.changes, step.paths)
			}
			time.Sleep(untilSettled)
			synctest.Wait()
			if int(c.returned.Load()) != step.want || c.released != 1 {
				t.Errorf("step %d: returned %d times, want %d; released %d times, want once", i, c.returned.Load(), step.want, c.released)
			}
		}
	})
}

// Memory is returned after each resync, and not after the passes that follow it.
func TestReturnsMemoryAfterAResync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounted(0)
		c.apply(t, 0, 3)
		for resyncs := range 3 {
			time.Sleep(5 * time.Minute)
			c.lean.QueueResync()
			c.apply(t, 0, 3)
			time.Sleep(untilSettled)
			c.apply(t, 0, 3)
			time.Sleep(untilSettled)
			synctest.Wait()
			if int(c.returned.Load()) != 2+resyncs {
				t.Errorf("after %d resyncs, memory was returned %d times", 1+resyncs, c.returned.Load())
			}
		}
	})
}

// A resync while memory is about to be returned needs no second return.
func TestReturnsMemoryOnceForChangesAndAResync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounted(0)
		c.apply(t, 0, 3)
		time.Sleep(time.Minute)
		c.apply(t, manyChanges, 3)
		c.lean.QueueResync()
		c.apply(t, 0, 3)
		for range 3 {
			time.Sleep(untilSettled)
			synctest.Wait()
			c.apply(t, 0, 3)
		}
		if c.returned.Load() != 2 {
			t.Errorf("memory was returned %d times, want at the start and once more", c.returned.Load())
		}
	})
}

// Steady changes do not postpone the return of memory.
func TestReturnsMemoryDuringChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounted(0)
		for range 9 {
			c.apply(t, manyChanges, manyChanges)
			time.Sleep(20 * time.Second)
		}
		synctest.Wait()
		if c.returned.Load() != 4 { // after 30, 70, 110 and 150 s
			t.Errorf("returned %d times, want 4", c.returned.Load())
		}
	})
}

// The program's pages are released before the first Apply, and memory is returned when the
// daemon has settled after it, however long it takes.
func TestReturnsMemoryAfterALongStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounted(2 * untilSettled)
		c.apply(t, 0, 50*manyChanges)
		synctest.Wait()
		if c.releasedAtFirst != 1 || c.returned.Load() != 0 {
			t.Errorf("in the first Apply: released %d times, want once; returned %d times, want none", c.releasedAtFirst, c.returned.Load())
		}
		time.Sleep(untilSettled)
		synctest.Wait()
		if c.returned.Load() != 1 {
			t.Errorf("returned %d times, want once", c.returned.Load())
		}
	})
}
