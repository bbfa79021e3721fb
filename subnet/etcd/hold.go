package etcd

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"flannel/pkg/reconcile/runner"
	"flannel/subnet/etcd/format"
)

// Hold implements subnet.Manager. It holds the key of the last Acquire. It does not
// return by itself when Acquire is called again: end its ctx before that, and call
// Hold again afterwards.
func (m *Manager) Hold(ctx context.Context) error {
	m.mu.Lock()
	if m.held == nil {
		m.mu.Unlock()
		return errors.New("hold: no subnet was acquired")
	}
	held, key, start := m.held, m.held.key, &snapshot{at: m.held.at}
	m.mu.Unlock()
	// Two goroutines that share only the heldKey: one follows the key, and the
	// other one renews its etcd lease.
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		// leases: oversized values are dropped. written: follow continues behind our own
		// writes.
		f := feed{name: "watch our lease", key: key, leases: true, notified: m.checkKey, written: holder{m, held}.written,
			consumer: holder{m, held}}
		return m.follow(ctx, f, start)
	})
	g.Go(func() error {
		m.renew(ctx)
		return nil
	})
	return g.Wait()
}

// holder is the consumer of our own key.
type holder struct {
	m    *Manager
	held *heldKey // ignored once the Manager holds another one
}

// written implements feed.written: a position in the store before our last write is
// outdated. A store in which that write is missing was replaced.
func (h holder) written() int64 {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	return h.held.mod
}

func (h holder) handleList(ctx context.Context, list *snapshot, replaced bool) error {
	if len(list.kvs) == 0 {
		return h.observe(ctx, nil, replaced)
	}
	return h.observe(ctx, list.kvs[0], replaced)
}

func (h holder) handle(ctx context.Context, events []*mvccpb.Event) error {
	// Only the last event counts: a key that was deleted and restored is there.
	e := events[len(events)-1]
	if e.Type == mvccpb.DELETE {
		h.m.mu.Lock()
		outdated := e.Kv.ModRevision < h.held.mod // we have written the key since
		h.m.mu.Unlock()
		if outdated {
			return nil
		}
		return h.observe(ctx, nil, false)
	}
	return h.observe(ctx, e.Kv, false)
}

// observe records what our key holds now, nil if it is missing, and restores it
// if necessary. It returns ErrLost if the lease is lost; after another error,
// follow lists the key again and calls it again.
func (h holder) observe(ctx context.Context, kv *mvccpb.KeyValue, replaced bool) error {
	m := h.m
	m.mu.Lock()
	defer m.mu.Unlock()
	held := h.held
	if held != m.held {
		return nil
	}
	id, lastMod := held.id, held.mod
	// heldKey.observe records kv in held. By the judge, it decides whether the value can be
	// the lease of another node.
	switch state := held.observe(kv, replaced, m.currentJudge()); {
	case state == lost && kv == nil:
		return m.handleMissing(ctx, held)
	case state == lost:
		return m.giveUp(ctx, held, "the key is another node's now")
	case state == matches:
		m.endMissing(held)
		if held.id != id {
			m.log.Info("our key was moved to another etcd lease externally",
				"key", held.key, "reservation", held.id == clientv3.NoLease)
			runner.Notify(m.leaseChanged)
			m.revokeUnused(ctx, id)
		}
		return nil
	case replaced:
		if !held.overwritten {
			m.log.Error("etcd store was replaced, restoring our lease", "cause", causeStoreChanged, "key", held.key)
		}
		held.overwritten = true
		return m.writeKeyNow(ctx)
	case held.mod == lastMod && held.overwritten:
		return m.writeKeyNow(ctx) // the previous write failed
	case held.mod == lastMod:
		return nil // nobody changed the key: Publish is about to write it
	}
	return m.restoreOverwritten(ctx, held)
}

// restoreOverwritten writes our key again after someone else changed it: now,
// or after the pause of the conflict backoff. m.mu must be held.
func (m *Manager) restoreOverwritten(ctx context.Context, held *heldKey) error {
	held.overwritten = true
	wait := held.conflict.Next(time.Now())
	switch held.conflict.Rounds {
	case 1:
		m.log.Warn("lease was modified externally, restoring it",
			"cause", causeOverwritten, "key", held.key, "to", describe(held.stored))
	case 3:
		m.log.Warn("lease is modified repeatedly; another node may have our public address",
			"cause", causeConflict, "key", held.key, "to", describe(held.stored))
	}
	if wait > 0 {
		m.checkKeyAfter(wait)
		return nil
	}
	return m.writeKeyNow(ctx)
}

// describe formats a value that someone else wrote for a log line.
func describe(v *format.Value) string {
	if v == nil {
		return "unreadable value"
	}
	raw, _ := format.EncodeValue(*v) // it was decoded, so it can be encoded
	return string(raw[:min(len(raw), 200)])
}

// handleNotify is called when a pause of checkKeyAfter is over. The key may match
// again by then: writeKey writes nothing in that case.
func (h holder) handleNotify(ctx context.Context) error {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	switch {
	case h.held != h.m.held:
		return nil
	case !h.held.missingSince.IsZero():
		return h.m.handleMissing(ctx, h.held)
	}
	return h.m.writeKeyNow(ctx)
}

// writeKeyNow is writeKey with a timeout, because m.mu must be held.
func (m *Manager) writeKeyNow(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return m.writeKey(ctx)
}

// renew keeps the etcd lease of our key alive until ctx ends. If the etcd lease
// has expired, etcd has deleted the key with it, and the holder handles that.
func (m *Manager) renew(ctx context.Context) {
	for ctx.Err() == nil {
		m.mu.Lock()
		id := m.held.id
		if m.held.grant { // writeKey will grant this etcd lease, and end the pause
			id = clientv3.NoLease
		}
		m.mu.Unlock()
		if id == clientv3.NoLease { // nothing to renew, as of a reservation; leaseChanged ends the pause
			m.expires.Store(nil)
			m.sleep(ctx, time.Hour)
			continue
		}
		// keep also ends when the key is on another etcd lease: then renew that one.
		if m.lifetime(id).keep(ctx, m.margin) {
			m.sleep(ctx, 2*time.Second) // until the holder has seen that the key is deleted
		}
	}
}

// lifetime renews one etcd lease, by etcd's clock. Its functions are fields for
// the tests.
type lifetime struct {
	remaining func(context.Context) (left, whole time.Duration, err error)
	renew     func(context.Context) (left time.Duration, err error)
	sleep     func(context.Context, time.Duration) bool // by our clock; false: it ended early
}

// lifetime returns the functions for an etcd lease. Each waits for etcd until ctx
// ends.
func (m *Manager) lifetime(id clientv3.LeaseID) lifetime {
	// By our clock, from before the request, so that it is never too late.
	expiresIn := func(asked time.Time, left time.Duration) {
		if left > 0 {
			at := asked.Add(left)
			m.expires.Store(&at)
		}
	}
	return lifetime{
		remaining: func(ctx context.Context) (left, whole time.Duration, err error) {
			err = m.retry(ctx, "read how long our lease lasts", func(ctx context.Context) error {
				asked := time.Now()
				resp, err := m.client.TimeToLive(ctx, id)
				if err == nil {
					expiresIn(asked, time.Duration(resp.TTL)*time.Second)
					left, whole = time.Duration(resp.TTL)*time.Second, time.Duration(resp.GrantedTTL)*time.Second
				}
				return err
			})
			return left, whole, err
		},
		renew: func(ctx context.Context) (left time.Duration, err error) {
			err = m.retry(ctx, "renew our lease", func(ctx context.Context) (err error) {
				asked := time.Now()
				if left, err = m.renewOnce(ctx, id); err == nil {
					expiresIn(asked, left)
				}
				return err
			})
			return left, err
		},
		sleep: m.sleep,
	}
}

// Expires implements subnet.Manager. The time is by our clock, which may stand still
// while etcd's goes on. So keep reads it from etcd again, every recheckAfter at least.
func (m *Manager) Expires() time.Time {
	if at := m.expires.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// keep renews the etcd lease whenever it is due, until it has expired (true) or
// the sleep is interrupted (false). After a restart of the daemon, any part of
// the lease may be left. During the wait it reads the remaining time again and
// again, because our clock may stand still while etcd's goes on: when the
// machine sleeps, or a virtual machine is paused.
func (l lifetime) keep(ctx context.Context, margin time.Duration) (gone bool) {
	for {
		left, whole, err := l.remaining(ctx)
		if err != nil || left <= 0 {
			return err == nil
		}
		wait := due(left, whole, margin)
		if longest := max(min(margin/4, recheckAfter), time.Second); wait > longest {
			if !l.sleep(ctx, longest) {
				return false
			}
			continue
		}
		if !l.sleep(ctx, wait) {
			return false
		}
		if left, err = l.renew(ctx); err != nil || left <= 0 {
			return err == nil
		}
	}
}

// recheckAfter is how long we rely on our clock with the default margin, an hour.
const recheckAfter = 15 * time.Minute

// due returns how long the renewal can wait: until margin before the end, and
// up to a tenth of margin less, so that nodes that were started together do not
// renew together. With a lease of 24 hours and a margin of one hour, that is 22
// h 54 min to 23 h after it was granted or renewed. A margin of more than two
// thirds of the lease counts as two thirds.
func due(left, whole, margin time.Duration) time.Duration {
	margin = min(margin, whole*2/3)
	return max(0, left-margin-rand.N(max(margin/10, 1)))
}

// sleep waits for d and returns true. It returns false at once when ctx ends or
// the key is on another etcd lease.
func (m *Manager) sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-m.leaseChanged:
	case <-ctx.Done():
	}
	return false
}
