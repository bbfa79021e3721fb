package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"flannel/subnet"
	"flannel/subnet/patience"
)

// feed is a part of the store and who wants to know about it.
type feed struct {
	name     string          // for messages
	key, end string          // [key, end); without end: key alone
	leases   bool            // all keys should hold leases: what cannot is dropped, see list
	notified <-chan struct{} // calls the consumer's woken; may be nil
	consumer consumer
}

// consumer is called from one goroutine. An error makes follow list again after a pause, subnet.ErrLost ends it.
type consumer interface {
	// listed gets everything, sorted by key. replaced: the store is not the one of the call before, or an older one.
	handleList(ctx context.Context, all *snapshot, replaced bool) error
	// handle gets what changed since, in order.
	handle(ctx context.Context, events []*mvccpb.Event) error
	handleNotify(ctx context.Context) error
}

// errRelist says that the watch cannot go on from where it was.
var errRelist = errors.New("the position in the store is lost")

// follow keeps f's consumer in step with the store, over outages of any length, until ctx ends (nil) or the consumer
// says that our lease is lost. With a start, it goes on from there; its list is handed over unless it is nil.
func (m *Manager) follow(ctx context.Context, f feed, start *snapshot) error {
	defer m.outage.Forget(f.name)
	s := session{m: m, feed: f}
	if start != nil {
		s.at = start.at
		if start.kvs != nil {
			s.recordResult(f.consumer.handleList(ctx, start, false))
		}
	}
	for ctx.Err() == nil {
		err := s.run(ctx)
		switch {
		case errors.Is(err, subnet.ErrLost):
			return err
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errRelist):
			continue
		}
		m.outage.Failed(f.name, fmt.Errorf("%s: %w", f.name, m.tracker.explain(err)))
		s.pause.Wait(ctx)
	}
	return nil
}

// session is a follower's state from one connection to the next.
type session struct {
	m        *Manager
	feed     feed
	at       position // zero: list first
	replaced bool     // the store was found to be another one
	checked  bool     // at was read from this store just now
	pause    patience.Backoff
}

// err notes that the consumer could not take what it got, so that it gets the whole again.
func (s *session) recordResult(err error) error {
	if err != nil {
		s.at.stale = true
	}
	return err
}

// run gets in step, and stays so until something breaks.
func (s *session) run(ctx context.Context) error {
	if s.at.rev == 0 || s.at.stale || s.replaced {
		if err := s.list(ctx); err != nil {
			return err
		}
	} else if !s.checked {
		if err := s.check(ctx); err != nil {
			return err
		}
	}
	s.checked = false
	return s.watch(ctx)
}

func (s *session) list(ctx context.Context) error {
	// The first attempt is short, for that the store does not answer, and why, comes out only at its end.
	snap, err := s.m.list(ctx, s.feed, requestTimeout<<min(s.pause.Tries, 3))
	if err != nil {
		return err
	}
	replaced := s.replaced || s.at.replacedBy(snap.at) || s.at.rewound(snap.kvs)
	if err := s.recordResult(s.feed.consumer.handleList(ctx, snap, replaced)); err != nil {
		// The consumer must hear again that the store is another one, else it takes what is missing for deleted.
		s.replaced = replaced
		return err
	}
	s.at, s.replaced, s.checked = snap.at, false, true
	return nil
}

// steady is how long a watch must have stood for the next break to count as the first: what breaks each watch at once,
// such as a message above our limit with every write of somebody else, must not make us list without a pause.
const steady = 5 * time.Second

// watch delivers events from the position on until the stream breaks.
func (s *session) watch(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in, err := s.m.openWatch(ctx, s.feed, s.at)
	if err != nil {
		return err
	}
	s.m.outage.Over(s.feed.name)
	opened := time.Now()
	defer func() {
		if time.Since(opened) > steady {
			s.pause = patience.Backoff{}
		}
	}()
	var carry []*mvccpb.Event
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.feed.notified:
			if err := s.recordResult(s.feed.consumer.handleNotify(ctx)); err != nil {
				return err
			}
		case r := <-in:
			b := gather(ctx, carry, r, in)
			carry = b.carry
			if err := s.handleBatch(ctx, b); err != nil {
				return err
			}
		}
	}
}

// take hands over one batch and moves the position behind it.
func (s *session) handleBatch(ctx context.Context, b batch) error {
	if len(b.events) > 0 {
		if err := s.recordResult(s.feed.consumer.handle(ctx, b.events)); err != nil {
			return err
		}
	}
	for _, e := range b.events {
		s.at.advance(e)
	}
	s.at.rev = max(s.at.rev, b.rev)
	if b.compacted {
		s.at.stale = true
		return errRelist
	}
	if tooLarge(b.err) {
		s.at.stale = true // the same message would come again; a list gets past it
	}
	return b.err
}

// standing is what every answer carries.
func positionOf(h *pb.ResponseHeader) position {
	return position{cluster: h.GetClusterId(), rev: h.GetRevision()}
}
