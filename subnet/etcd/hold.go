package etcd

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"flannel/subnet/etcd/format"
)

// Hold keeps the claim; see subnet.Manager. It is for the claim of the last Acquire: another one needs another Hold.
func (m *Manager) Hold(ctx context.Context) error {
	m.mu.Lock()
	if m.claim == nil {
		m.mu.Unlock()
		return errors.New("hold: no subnet was acquired")
	}
	c, key, start := m.claim, m.claim.key, &snapshot{at: m.claim.at}
	m.mu.Unlock()
	// Two tasks that know nothing of each other but the claim: one keeps the key, the other the time.
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return m.follow(ctx, feed{name: "watch our lease", key: key, leases: true, wake: m.claimAgain, to: holder{m, c}}, start)
	})
	g.Go(func() error {
		m.renew(ctx)
		return nil
	})
	return g.Wait()
}

// holder watches over our own key.
type holder struct {
	m *Manager
	c *claim // nothing is done once the Manager has another one
}

func (h holder) listed(ctx context.Context, all *snapshot, replaced bool) error {
	if len(all.kvs) == 0 {
		return h.look(ctx, nil, replaced)
	}
	return h.look(ctx, all.kvs[0], replaced)
}

func (h holder) happened(ctx context.Context, events []*mvccpb.Event) error {
	// Only how it stands in the end counts: whoever restored a deleted key has restored it.
	e := events[len(events)-1]
	if e.Type == mvccpb.DELETE {
		h.m.mu.Lock()
		old := e.Kv.ModRevision < h.c.mod // we have put it back since
		h.m.mu.Unlock()
		if old {
			return nil
		}
		return h.look(ctx, nil, false)
	}
	return h.look(ctx, e.Kv, false)
}

// look judges what our key holds now and mends it.
func (h holder) look(ctx context.Context, kv *mvccpb.KeyValue, replaced bool) error {
	m := h.m
	m.mu.Lock()
	defer m.mu.Unlock()
	c := h.c
	if c != m.claim {
		return nil
	}
	id, known := c.id, c.mod
	switch verdict := c.see(kv, replaced); {
	case verdict == lost && kv == nil:
		return m.missing(ctx, c)
	case verdict == lost:
		return m.revoked(ctx, c, "its key was given away")
	case verdict == fine:
		m.returned(c)
		if c.id != id {
			m.log.Info("our key was put on another etcd lease by another hand", "key", c.key, "reservation", c.id == clientv3.NoLease)
			token(m.leaseIsNew)
			m.drop(ctx, id)
		}
		return nil
	case replaced:
		if !c.mending {
			m.log.Error("etcd holds another or an older store than before: putting our lease back", "cause", causeStoreChanged, "key", c.key)
		}
		c.mending = true
		return m.mendNow(ctx)
	case c.mod == known && c.mending:
		return m.mendNow(ctx) // the attempt before this one failed
	case c.mod == known:
		return nil // only what is not yet published, which is not ours to do here
	}
	c.mending = true
	wait := c.quarrel.Next(time.Now())
	switch c.quarrel.Rounds {
	case 1:
		m.log.Warn("our lease was changed by another hand: putting it back", "cause", causeOverwritten, "key", c.key, "to", foreign(c.stored))
	case 3:
		m.log.Warn("our lease is changed again and again: is there another node with our public address?",
			"cause", causeConflict, "key", c.key, "to", foreign(c.stored))
	}
	if wait > 0 {
		m.wakeClaim(wait)
		return nil
	}
	return m.mendNow(ctx)
}

// foreign is what a log line says of a value that is not ours.
func foreign(v *format.Value) string {
	if v == nil {
		return "something unreadable"
	}
	raw, err := format.EncodeValue(*v)
	if err != nil {
		return "something that cannot be written"
	}
	return string(raw[:min(len(raw), 200)])
}

func (h holder) woken(ctx context.Context) error {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	switch {
	case h.c != h.m.claim:
		return nil
	case !h.c.gone.IsZero():
		return h.m.missing(ctx, h.c)
	}
	return h.m.mendNow(ctx)
}

// mendNow is settle with a bound. m.mu must be held.
func (m *Manager) mendNow(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return m.settle(ctx)
}

// renew keeps the etcd lease of our key alive until ctx ends. That the lease is gone is not decided here: the key
// goes with it, and whoever follows the key sees that.
func (m *Manager) renew(ctx context.Context) {
	for ctx.Err() == nil {
		m.mu.Lock()
		id := m.claim.id
		if m.claim.grant {
			id = clientv3.NoLease
		}
		m.mu.Unlock()
		if id == clientv3.NoLease { // a reservation does not end; the note will wake us if it becomes a lease
			m.sleep(ctx, time.Hour)
			continue
		}
		if m.lifetime(id).keep(ctx, m.margin) {
			m.sleep(ctx, 2*time.Second) // the follower of the key is about to hear of it
		}
	}
}

// lifetime is that of an etcd lease, by etcd's clock.
type lifetime struct {
	ask     func(context.Context) (left, whole time.Duration, err error)
	prolong func(context.Context) (left time.Duration, err error)
	sleep   func(context.Context, time.Duration) bool // by our clock; false: not to the end
}

func (m *Manager) lifetime(id clientv3.LeaseID) lifetime {
	return lifetime{
		ask: func(ctx context.Context) (left, whole time.Duration, err error) {
			err = m.retry(ctx, "ask how long our lease lasts", func(ctx context.Context) error {
				resp, err := m.client.TimeToLive(ctx, id)
				if err == nil {
					left, whole = time.Duration(resp.TTL)*time.Second, time.Duration(resp.GrantedTTL)*time.Second
				}
				return err
			})
			return left, whole, err
		},
		prolong: func(ctx context.Context) (left time.Duration, err error) {
			err = m.retry(ctx, "renew our lease", func(ctx context.Context) (err error) {
				left, err = m.prolong(ctx, id)
				return err
			})
			return left, err
		},
		sleep: m.sleep,
	}
}

// keep renews the lease whenever it is time, until it is gone (true) or somebody wakes us (false). One that was taken
// over at a restart has any time left. It is asked for again and again: our clock stands still while the machine
// sleeps, or its host lets it, and etcd's does not.
func (l lifetime) keep(ctx context.Context, margin time.Duration) (gone bool) {
	for {
		left, whole, err := l.ask(ctx)
		if err != nil || left <= 0 {
			return err == nil
		}
		wait := due(left, whole, margin)
		if look := max(min(margin/4, lookAgain), time.Second); wait > look {
			if !l.sleep(ctx, look) {
				return false
			}
			continue
		}
		if !l.sleep(ctx, wait) {
			return false
		}
		if left, err = l.prolong(ctx); err != nil || left <= 0 {
			return err == nil
		}
	}
}

// lookAgain is the most that we rely on our clock, with the usual margin of an hour.
const lookAgain = 15 * time.Minute

// due is how long renewing can wait: until the margin before the end begins, and a little less, lest all nodes of a
// cluster that was started at once renew at once.
func due(left, whole, margin time.Duration) time.Duration {
	margin = min(margin, whole*2/3)
	return max(0, left-margin-rand.N(max(margin/10, 1)))
}

// sleep waits for d and returns true, or earlier and false when ctx ends or our etcd lease is another.
func (m *Manager) sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-m.leaseIsNew:
	case <-ctx.Done():
	}
	return false
}
