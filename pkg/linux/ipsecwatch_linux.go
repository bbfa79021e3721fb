package linux

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"flannel/pkg/linux/rtnetlink"
	"flannel/pkg/reconcile"
)

// ipsecWatch makes the tables of policies and connections list again when somebody
// changed what they hold, and every pollInterval: there are no notifications of connections that
// somebody removed. The loop calls start and close, its own goroutines and ikeStore's call notify.
type ipsecWatch struct {
	changed  func()              // called by any goroutine, while active
	policies *rtnetlink.Listener // of changes of policies and security associations; nil: not started
	active   atomic.Bool         // the backend is ipsec: what is seen matters
	stop     chan struct{}       // closed by close; start makes it
	done     sync.WaitGroup      // of the goroutine that notifies regularly
}

// start starts the watch, unless it has been started. close ends it. log receives a warning
// when notifications cannot be received.
func (w *ipsecWatch) start(log *slog.Logger) error {
	w.active.Store(true)
	if w.policies != nil {
		return nil
	}
	s, err := rtnetlink.Listen(rtnetlink.Notifications{Protocol: unix.NETLINK_XFRM, Groups: []int{nl.XFRMNLGRP_SA, nl.XFRMNLGRP_POLICY},
		Each: func(rtnetlink.Header, []byte) error { w.notify(); return nil }, Lost: func(error) { w.notify() }, Log: log})
	if err != nil {
		return err
	}
	w.policies, w.stop = s, make(chan struct{})
	w.done.Go(func() {
		for reconcile.Wait(context.Background(), reconcile.OnBeat(pollInterval), w.stop) < 0 {
			w.notify()
		}
	})
	return nil
}

// notify notifies of a change, while there is anything to watch.
func (w *ipsecWatch) notify() {
	if w.active.Load() {
		w.changed()
	}
}

func (w *ipsecWatch) close() {
	if w.policies != nil {
		close(w.stop)
		_ = w.policies.Close() // it was open
		w.done.Wait()
	}
}
