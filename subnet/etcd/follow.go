package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"flannel/pkg/reconcile"
	"flannel/subnet"
)

// feed is a part of the store, and the consumer of its changes. There are
// three, each followed in a goroutine of its own (that of WatchConfig, of Watch and one
// of Hold):
//
//	keys                   consumer  notified by
//	<prefix>/config        config    -
//	<prefix>/subnets/…     peers     own.changed: our own key is another one
//	our key below these    holder    -
type feed struct {
	name     string          // for messages
	key, end string          // the keys from key to end, without end; if end is "", only key
	leases   bool            // the keys are those of leases: list.go bounds their values, and how many of them are invalid
	notified <-chan struct{} // makes follow call onNotify; nil: never
	onNotify func()          // called on the goroutine of follow, as the consumer
	// written returns the ModRevision of key as last seen or written by us; 0: none. The
	// nil function: a feed of keys that we do not write. See passOwnWrite.
	written  func() int64
	consumer consumer // gets the keys and their changes
}

// consumer is called from one goroutine, that of follow.
type consumer interface {
	// handleList gets all keys, in order: at first, and when the watch could not go on
	// where it ended. replaced: the store is another or an older one than at the call
	// before.
	handleList(ctx context.Context, list *snapshot, replaced bool)
	// handle gets the changes after the list, in order; at least one.
	handle(ctx context.Context, events []*mvccpb.Event)
}

// errRelist says that the watch cannot continue where it ended. follow then calls
// session.run again at once, which lists the keys or checks the position.
var errRelist = errors.New("lost the position in the store")

// follow hands over the keys of f and their changes, over outages of any
// length, until ctx ends. With a start, it continues from that position, and hands over
// start's keys if start is a list (start.read). Without (nil), it lists first.
func (m *Manager) follow(ctx context.Context, f feed, start *snapshot) {
	defer m.outage.Forget(f.name)
	s := session{m: m, feed: f}
	if start != nil {
		s.at = start.at
		if !start.read.IsZero() {
			s.keys = len(start.kvs)
			f.consumer.handleList(ctx, start, false) // false: no other store was read before
		}
	}
	for ctx.Err() == nil {
		err := s.run(ctx) // never nil
		if ctx.Err() != nil || errors.Is(err, errRelist) {
			continue // the end; or run again at once
		}
		m.outage.Failed(f.name, fmt.Errorf("%s: %w", f.name, m.tracker.explain(err)))
		subnet.Pause(ctx, s.failures)
		s.failures++
	}
}

// session is what follow knows from one connection to the next. It belongs to
// the goroutine of follow.
type session struct {
	m         *Manager
	feed      feed
	at        position // how far the store is known (replaced.go); the zero position: list first
	replaced  bool     // check has found that the store was replaced
	checked   bool     // at was just read from this store: do not check it
	keys      int      // number of keys in the last list
	failures  int      // in a row, of connections that did not last
	compacted int      // in a row, of watches for which the history was compacted
}

// run lists the keys or checks the store if necessary, and watches until
// something fails, with which it returns.
//
//	position                        first step
//	none, stale, or store replaced  list: hands over all keys (awaitTurn paces it)
//	just listed                     none
//	from a former connection        check: is it still a position of this store?
func (s *session) run(ctx context.Context) error {
	listing := s.at.rev == 0 || s.at.stale || s.replaced
	if listing {
		if err := s.awaitTurn(ctx); err != nil {
			return err
		}
	}
	s.passOwnWrite() // the watch may not have handed over what we wrote last
	if listing {
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

// timeout returns the time for the next request. That of the first attempt is short,
// because an outage is only noticed when it fails; see also Manager.retry.
// gRPC sends the attempts to the members of etcd in turn: a member that answers pings
// but no requests keeps its connection, and its attempts take all of this time.
func (s *session) timeout() time.Duration { return requestTimeout << min(s.failures, 3) }

const (
	listEach      = 4 * time.Millisecond // per key: up to 20 s among 5,000 nodes
	maxListSpread = 30 * time.Second
)

// awaitTurn pauses before a list that is not the first, for a random time that grows with the
// number of keys. An etcd member that restarts ends the watches of all its clients, whose
// positions may be compacted by then: they would all list at once.
//
// Before the pause, it reads one key, the witness if there is one, which needs the same
// permission as the list. After an error it returns without a pause. After an answer, this
// feed no longer waits for etcd, so its outage ends. The witness shows that the store was
// restored from a backup (rewound): after the pause, the node of that key may have written it
// again, and the list would not show it.
func (s *session) awaitTurn(ctx context.Context) error {
	spread := min(time.Duration(s.keys)*listEach, maxListSpread)
	if spread == 0 {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, s.timeout())
	defer cancel()
	resp, err := s.m.client.Get(limited, cmp.Or(s.at.witness, s.feed.key), clientv3.WithRange(s.feed.end), clientv3.WithLimit(1), clientv3.WithKeysOnly())
	if err != nil {
		return fmt.Errorf("list %s: %w", s.feed.key, s.m.denied(err, "read", s.feed.key, s.feed.end != ""))
	}
	s.replaced = s.replaced || s.at.replacedBy(positionOf(resp.Header)) || s.at.rewound(resp.Kvs)
	s.m.outage.Forget(s.feed.name) // not Over: if only lists fail, each of them would log an end and a new outage
	reconcile.Pause(ctx, rand.N(spread))
	return nil
}

// list reads and hands over all keys, and sets the position to that of the list.
func (s *session) list(ctx context.Context) error {
	snap, err := s.m.list(ctx, s.feed, s.timeout()) // for each page
	if err != nil {
		return err
	}
	replaced := s.replaced || s.at.replacedBy(snap.at) || s.at.rewound(snap.kvs) // s.at is that of before
	s.feed.consumer.handleList(ctx, snap, replaced)
	s.at, s.replaced, s.checked, s.keys = snap.at, false, true, len(snap.kvs)
	return nil
}

// steady is how long a watch must have lasted for the next failure to count as
// the first. Something may break every watch at once, such as a message above
// our limit with each write of someone else, and must not make us list without
// a pause.
const steady = 5 * time.Second

// watch hands over events after the position until the stream fails; it returns the reason.
func (s *session) watch(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in, err := s.m.openWatch(ctx, s.feed, s.at, s.timeout())
	if err != nil {
		return err
	}
	if s.passOwnWrite() {
		// We have written the key since run has looked. run must check this position, too:
		// the watch may be one of a store without that write.
		return errRelist
	}
	s.m.outage.Over(s.feed.name)
	opened := time.Now()
	defer func() {
		if time.Since(opened) > steady {
			s.failures, s.compacted = 0, 0
		}
	}()
	var carry []*mvccpb.Event // see gather
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.feed.notified: // nil: never
			s.feed.onNotify()
		case r := <-in:
			b := gather(ctx, carry, r, in)
			carry = b.carry
			if err := s.handleBatch(ctx, b); err != nil {
				return err
			}
		}
	}
}

// handleBatch hands over a batch and moves the position behind it. It returns the reason
// why the watch has ended; nil: it goes on.
func (s *session) handleBatch(ctx context.Context, b batch) error {
	if len(b.events) > 0 {
		s.feed.consumer.handle(ctx, b.events)
	}
	for _, e := range b.events {
		s.at.advance(e)
	}
	s.at.rev = max(s.at.rev, b.rev) // b.rev is 0 if it is not known
	if b.compacted {                // etcd no longer has the events after our position
		s.at.stale = true
		if s.compacted > 0 { // also behind the last list, so perhaps behind the next one
			subnet.Pause(ctx, s.compacted-1)
		}
		s.compacted++
		return errRelist
	}
	if tooLarge(b.err) {
		s.at.stale = true // a new watch would get the same message, but a list skips its value
	}
	return b.err
}

// positionOf returns the position of a response, without a witness.
func positionOf(h *pb.ResponseHeader) position {
	return position{cluster: h.GetClusterId(), rev: h.GetRevision()}
}
