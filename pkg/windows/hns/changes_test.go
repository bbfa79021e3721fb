package hns

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// telling is an HNS that notifies of changes as soon as it is up.
type telling struct {
	Calls
	hang    chan struct{}
	stopped atomic.Int32

	mu      sync.Mutex
	err     error
	changed func()
}

func (h *telling) Notify(changed func()) (func(), error) {
	if h.hang != nil {
		<-h.hang
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changed = changed
	return func() { h.stopped.Add(1) }, h.err
}

func (h *telling) answer(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.err = err
}

func (h *telling) change() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changed()
}

func told(c <-chan struct{}) bool {
	synctest.Wait()
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		h := &telling{}
		changes := NewClient(h, Timing{}).Changes(ctx)
		if !told(changes) || told(changes) {
			t.Error("what changed before is told once")
		}
		h.change()
		h.change()
		if !told(changes) || told(changes) {
			t.Error("two changes are told as one")
		}
		time.Sleep(time.Hour)
		if told(changes) {
			t.Error("nothing changed")
		}
		cancel()
		if synctest.Wait(); h.stopped.Load() != 1 {
			t.Error("not stopped")
		}
	})
}

func TestChangesPolled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		h := &telling{err: ErrUnsupported}
		c := NewClient(h, Timing{Poll: 3 * time.Second})
		changes := c.Changes(ctx)
		for range 5 {
			if told(changes) {
				t.Error("too early")
			}
			if time.Sleep(3 * time.Second); !told(changes) {
				t.Error("not looked at")
			}
		}
		if calls, _ := c.Counts(); calls != 1 {
			t.Errorf("asked %d times", calls)
		}
	})
}

func TestChangesOnceItIsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		h := &telling{err: ErrUnavailable}
		changes := NewClient(h, Timing{}).Changes(ctx)
		time.Sleep(15 * time.Second)
		if !told(changes) {
			t.Error("not looked at")
		}
		h.answer(nil)
		time.Sleep(10 * time.Second)
		if !told(changes) {
			t.Error("not told that it is up")
		}
		time.Sleep(time.Hour)
		if told(changes) {
			t.Error("nothing changed")
		}
		if h.change(); !told(changes) {
			t.Error("not told of a change")
		}
	})
}

// A registration that comes when nobody waits for it any more is given back.
func TestChangesTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		h := &telling{hang: make(chan struct{})}
		NewClient(h, Timing{}).Changes(ctx)
		time.Sleep(11 * time.Second)
		cancel()
		synctest.Wait()
		close(h.hang)
		if synctest.Wait(); h.stopped.Load() != 1 {
			t.Errorf("stopped %d times", h.stopped.Load())
		}
	})
}
