package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"flannel/pkg/reconcile"
	"flannel/subnet"
)

// ownLease is our own lease, as Acquire, Publish and Hold share it, each on another
// goroutine of the daemon (see "Concurrency" in Documentation/architecture.md). The
// channels have room for one value, which stands for any number of notifications.
type ownLease struct {
	mu       sync.Mutex // never held during a request
	held     *heldKey   // nil before Acquire; each Acquire sets another one; mu guards its fields, too (see heldKey)
	seed     *snapshot  // the list of Acquire, with which Watch begins; nil: Watch lists
	accepted time.Time  // when AcceptWithdrawal was called last, with which an operator confirms deletions; zero: never
	expires  time.Time  // see Expires; zero: not known, or never

	acquired     chan struct{} // closed by the first Acquire
	changed      chan struct{} // notifies Watch that our own key, which it leaves out, is another one
	check        chan struct{} // notifies holder.keep that heldKey.step may say something else than before
	leaseChanged chan struct{} // notifies the renewal that our key is on another etcd lease, or in another store
}

// newOwnLease returns the ownLease of a node that has no lease yet.
func newOwnLease() ownLease {
	return ownLease{acquired: make(chan struct{}), changed: make(chan struct{}, 1),
		check: make(chan struct{}, 1), leaseChanged: make(chan struct{}, 1)}
}

// key returns the name of our key, "" before Acquire.
func (o *ownLease) key() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.held == nil {
		return ""
	}
	return o.held.key
}

// Hold implements subnet.Manager. It holds the key of the last Acquire. It does not
// return by itself when Acquire is called again: end its ctx before that, and call
// Hold again afterwards.
func (m *Manager) Hold(ctx context.Context) error {
	m.own.mu.Lock()
	held := m.own.held
	if held == nil {
		m.own.mu.Unlock()
		return errors.New("hold: no subnet was acquired")
	}
	key, start := held.key, &snapshot{at: held.at}
	m.own.mu.Unlock()
	// Three goroutines that share only the heldKey: one records what the store has, one
	// does what follows from the record (keep), and one renews the etcd lease. The error of
	// keep, ErrLost, ends the other two.
	g, ctx := errgroup.WithContext(ctx)
	h := holder{m, held}
	g.Go(func() error {
		// The fields are explained at feed. start has only a position, and no list.
		m.follow(ctx, feed{name: "watch our lease", key: key, leases: true, written: h.written, consumer: h}, start)
		return nil // ctx has ended
	})
	g.Go(func() error { return h.keep(ctx) })
	g.Go(func() error {
		m.renew(ctx)
		return nil
	})
	return g.Wait()
}

// holder keeps our own key: as the consumer of a feed (follow.go) it records what the
// store has in the heldKey, whose states and decisions are in heldkey.go, and does what
// the heldKey says.
type holder struct {
	m    *Manager
	held *heldKey // ignored once the Manager holds another one
}

// written implements feed.written: the revision of our last write. A position before it is
// outdated, and a store in which that write is missing was replaced.
func (h holder) written() int64 {
	h.m.own.mu.Lock()
	defer h.m.own.mu.Unlock()
	return h.held.seen.mod
}

// handleList implements consumer.
func (h holder) handleList(_ context.Context, list *snapshot, replaced bool) {
	s := sight{rev: list.at.rev, replaced: replaced}
	if len(list.kvs) > 0 {
		s.kv = list.kvs[0]
	}
	h.observe(s)
}

// handle implements consumer. Only the last event counts: a key that was deleted and
// restored is there.
func (h holder) handle(_ context.Context, events []*mvccpb.Event) {
	s := sight{kv: events[len(events)-1].Kv}
	if events[len(events)-1].Type == mvccpb.DELETE {
		s.kv, s.rev = nil, s.kv.ModRevision // of a deletion, etcd's Kv has only the key and the revision
	}
	h.observe(s)
}

// observe records what the store has, and notifies keep.
func (h holder) observe(s sight) {
	h.m.own.mu.Lock()
	defer h.m.own.mu.Unlock()
	if h.held == h.m.own.held {
		h.held.observe(time.Now(), s, h.m.watched.Judge())
		reconcile.Notify(h.m.own.check)
		if s.replaced {
			reconcile.Notify(h.m.own.leaseChanged)
		}
	}
}

// keep does what heldKey.step says, until ctx ends (nil) or the lease is lost (ErrLost). It
// calls step at the start, after each notification by check, and when step asks for it:
// the Runner calls Work then, on the goroutine of keep.
func (h holder) keep(ctx context.Context) (err error) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	loop := reconcile.Runner{News: []<-chan struct{}{h.m.own.check}, Work: func(ctx context.Context) (time.Duration, error) {
		write, due := h.step(ctx)
		if write {
			_ = h.m.retry(ctx, "restore our lease", h.restore) // fails only at the end of ctx
			_, due = h.step(ctx)                               // if it says write again, check was notified: Work is next
		}
		if err = h.m.lostError(ctx, h.held); err != nil {
			end()
		}
		if due.IsZero() {
			return 0, nil
		}
		return max(time.Until(due), 1), nil // 0 would mean never
	}}
	loop.Run(ctx)
	return err
}

// step calls heldKey.step with what the peers say about our lease, and logs what has
// happened. It changes the heldKey. The results are those of heldKey.step, or false and zero
// when the Manager holds another key.
func (h holder) step(ctx context.Context) (write bool, due time.Time) {
	own, peers := &h.m.own, h.m.watched.Peers()
	own.mu.Lock()
	if h.held != own.held {
		own.mu.Unlock()
		return false, time.Time{}
	}
	o := others{accepted: own.accepted, retain: h.m.retain}
	// peers is nil before Watch. The Keeper has its own lock, whose owner never waits for own.mu.
	if peers != nil && (h.held.state == missing || h.held.state == withdrawn) {
		lease := h.held.lease()
		o.haveOurs, o.claimed = peers.Has(h.held.key), peers.Claimed(&lease)
		o.massRetained, o.mostWithdrawn = peers.MassRetained(), peers.MostWithdrawn()
	}
	write, due = h.held.step(time.Now(), o)
	news, restoreAt := h.held.news, h.held.restoreAt
	h.held.news = nil
	own.mu.Unlock()
	for _, n := range news { // without the lock, because tell makes a request
		switch n.what {
		case newsWithdrawn: // only with peers: others says so
			h.m.log.Error("lease was withdrawn together with most others, keeping the network and restoring the lease if its subnet is free",
				"key", h.held.key, "at", restoreAt.Round(time.Second))
			peers.SetOwnWithdrawn(true)
		case newsRestored: // only after newsWithdrawn, so with peers, too
			h.m.log.Info("lease is restored", "key", h.held.key)
			peers.SetOwnWithdrawn(false)
		default: // what someone else did
			h.m.tell(ctx, h.held.key, n)
		}
	}
	return write, due
}

// news is something that the caller of a heldKey logs.
type news struct {
	what     newsKind
	from, to clientv3.LeaseID // newsMoved: the etcd leases
	value    *leaseValue      // newsModified, newsConflict: what someone else wrote; nil: it is unreadable
}

type newsKind int

const (
	newsMoved     newsKind = iota // someone put the key on another etcd lease
	newsReplaced                  // the store was replaced
	newsModified                  // someone else changed the value
	newsConflict                  // someone else changes it again and again
	newsWithdrawn                 // the key was deleted with most others
	newsRestored                  // it is there again after newsWithdrawn
)

// tell logs what someone else did to our key. If the key was moved from our etcd lease, tell
// revokes our etcd lease.
func (m *Manager) tell(ctx context.Context, key string, n news) {
	switch n.what {
	case newsModified:
		m.log.Warn("lease was modified externally, restoring it", "cause", causeOverwritten, "key", key, "to", describe(n.value))
	case newsConflict:
		m.log.Warn("lease is modified repeatedly; another node may have our subnet or our public address",
			"cause", causeConflict, "key", key, "to", describe(n.value))
	case newsReplaced:
		m.log.Error("etcd store was replaced, restoring our lease", "cause", causeStoreChanged, "key", key)
	case newsMoved:
		m.log.Info("our key was moved to another etcd lease externally", "key", key, "reservation", n.to == clientv3.NoLease)
		reconcile.Notify(m.own.leaseChanged)
		m.revokeUnused(ctx, n.from)
	}
}

// describe formats a value that someone else wrote for a log line.
func describe(v *leaseValue) string {
	if v == nil {
		return "unreadable value"
	}
	raw, _ := encodeValue(*v) // it was decoded, so it can be encoded
	return string(raw[:min(len(raw), 200)])
}

// restore writes our key for as long as step says so: someone may change it while we write. It is an attempt of retry.
func (h holder) restore(ctx context.Context) error {
	for {
		if write, _ := h.step(ctx); !write { // keep asks again when the next step is due
			return nil
		}
		if err := h.m.writeKey(ctx, h.held); err != nil {
			return err
		}
	}
}

// lostError returns an ErrLost if our key is lost, else nil. It revokes the key's etcd
// lease then, which goes on without the key.
func (m *Manager) lostError(ctx context.Context, held *heldKey) error {
	m.own.mu.Lock()
	state, why, id := held.state, held.why, held.id
	m.own.mu.Unlock()
	if state != lost {
		return nil
	}
	m.revokeUnused(ctx, id)
	return fmt.Errorf("%s: %s: %w", held.key, why, subnet.ErrLost)
}

// Publish implements subnet.Manager. It sets what the heldKey wants, and writes the key
// unless it is as wanted. While the key is missing, it only sets it, and Hold restores the
// key with the new value.
func (m *Manager) Publish(ctx context.Context, l subnet.Lease) error {
	v := valueOf(l)
	if _, err := encodeValue(v); err != nil { // now, because it is permanent
		return err
	}
	for _, e := range l.Endpoints() {
		if e.PublicIP.BitLen() != e.Subnet.Addr().BitLen() {
			return fmt.Errorf("publish %v: %v is not a public address for it", e.Subnet, e.PublicIP)
		}
	}
	m.own.mu.Lock()
	held := m.own.held
	if held == nil || held.v4 != l.V4.Subnet || held.v6 != l.V6.Subnet {
		m.own.mu.Unlock()
		return fmt.Errorf("publish %v %v: another subnet than Acquire returned", l.V4.Subnet, l.V6.Subnet)
	}
	held.want = v
	m.own.mu.Unlock()
	return m.retry(ctx, "publish our lease", func(ctx context.Context) error {
		for { // until the key is as wanted: someone may change it while we write
			m.own.mu.Lock()
			write := held == m.own.held && held.publishMustWrite()
			m.own.mu.Unlock()
			if !write { // it is as wanted, missing, or that of a former Acquire
				return m.lostError(ctx, held)
			}
			if err := m.writeKey(ctx, held); err != nil {
				return err
			}
		}
	})
}

// AcceptWithdrawal implements subnet.Manager. A connection of the status socket calls it.
func (m *Manager) AcceptWithdrawal() int {
	peers := m.watched.Peers()
	if peers == nil {
		return 0
	}
	count := peers.Accept()
	m.own.mu.Lock()
	m.own.accepted = time.Now()
	m.own.mu.Unlock()
	reconcile.Notify(m.own.check)
	return count
}
