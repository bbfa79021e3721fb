package etcd

import (
	"context"
	"math/rand/v2"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"flannel/pkg/reconcile"
)

// renew is one of the goroutines of Hold. It keeps the etcd lease of our key alive
// until ctx ends. If the etcd lease has expired, etcd has deleted the key with it, and
// another goroutine of Hold handles that (holder.observe, then holder.keep).
func (m *Manager) renew(ctx context.Context) {
	for ctx.Err() == nil {
		m.own.mu.Lock()
		id := m.own.held.id   // held is not nil: Hold has checked that
		if m.own.held.grant { // it was not granted yet: writeKey will grant it, and end the sleep
			id = clientv3.NoLease
		}
		if id == clientv3.NoLease {
			m.own.expires = time.Time{}
		}
		m.own.mu.Unlock()
		// Nothing to renew: there is no etcd lease yet, or our key is a reservation, which an
		// operator wrote without one. leaseChanged ends the sleep.
		if id == clientv3.NoLease {
			m.sleep(ctx, time.Hour)
			continue
		}
		if gone := m.lifetime(id).keep(ctx, m.margin); gone {
			// The deleted key is usually noticed by then, and ends Hold or gets another etcd lease. If not, keep finds the
			// same again.
			m.sleep(ctx, 2*time.Second)
		} // else ctx has ended, or the key is on another etcd lease
	}
}

// lifetime renews one etcd lease, by etcd's clock. Its functions are fields for
// the tests.
type lifetime struct {
	remaining func(context.Context) (left, whole time.Duration, err error) // whole: as granted; left <= 0: none such
	renew     func(context.Context) (left time.Duration, err error)
	sleep     func(context.Context, time.Duration) bool // by our clock; false: it ended early, see Manager.sleep
}

// lifetime returns the functions for an etcd lease. Each waits for etcd until ctx ends,
// which is their only error.
func (m *Manager) lifetime(id clientv3.LeaseID) lifetime {
	// It sets what Expires returns: by our clock, from before the request, so that the time
	// is never too late.
	expiresIn := func(asked time.Time, left time.Duration) {
		if left > 0 {
			m.own.mu.Lock()
			m.own.expires = asked.Add(left)
			m.own.mu.Unlock()
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

// Expires implements subnet.Manager. Only the daemon's status report has this time, and none
// if it is zero. It is by our clock, which may stand still while etcd's goes on. So
// lifetime.keep reads the time that is left from etcd again, every recheckAfter at least.
func (m *Manager) Expires() time.Time {
	m.own.mu.Lock()
	defer m.own.mu.Unlock()
	return m.own.expires
}

// keep renews the etcd lease whenever it is due, until it has expired (true), or the
// sleep is interrupted or ctx ends (false). margin is how long before its end it is
// renewed. After a restart of the daemon, any part of the lease may be left. During the
// wait it reads the remaining time again and again, because our clock may stand still
// while etcd's goes on: when the machine sleeps, or a virtual machine is paused.
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

// recheckAfter is how long we rely on our clock with the default margin, an hour, of which
// it is a quarter. A shorter margin has shorter waits, too.
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

// sleep waits for d and returns true. It returns false at once when ctx ends, or the key is on
// another etcd lease or in another store, where another time may be left. leaseChanged has room for one
// notification, of Acquire, Publish or Hold, which ends the next sleep if none waits: renew then looks again.
func (m *Manager) sleep(ctx context.Context, d time.Duration) bool {
	// Wait returns 0 if leaseChanged has received, and -1 after the time or the end of ctx.
	return reconcile.Wait(ctx, time.Now().Add(d), m.own.leaseChanged) < 0 && ctx.Err() == nil
}
