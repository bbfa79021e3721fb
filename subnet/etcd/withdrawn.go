package etcd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"flannel/pkg/reconcile/runner"
	"flannel/subnet"
	"flannel/subnet/etcd/format"
)

// A deleted key means that our lease was revoked, and the daemon exits. But if
// most other keys are deleted together with it (etcdctl del --prefix, a store
// restored from an old snapshot), nobody meant to revoke it, and hundreds of
// daemons that exit at once are an outage. Then the network stays as it is, and
// the key is written again.
//
//	our key                                 action
//	missing, but the peers still have it    wait: the peers' watch lags, and most of them may be deleted as well
//	missing for less than burst             wait: the events of one burst come in any order
//	missing, few others are missing         the lease is lost
//	missing in a mass withdrawal            wait for a random time, in which someone may restore it, then write it
//	missing with most of few peers          write it now, because none of so few peers is retained
//	exists again, with our address          continue
//	exists again, of another node           the lease is lost
//	exists again, and no node can use it    restore it, as if its value was changed
//	missing, the subnet is another node's   the lease is lost
//	missing, the withdrawal was accepted    the lease is lost

// burst is the longest time between the first and the last event of one burst,
// as we receive them.
const burst = 3 * time.Second

// handleMissing decides what to do about our missing key, by the table above.
// m.mu must be held. It returns ErrLost if the lease is lost.
func (m *Manager) handleMissing(ctx context.Context, held *heldKey) error {
	now, peers := time.Now(), m.watched.Load()
	if held.missingSince.IsZero() {
		held.missingSince, held.restoreAt = now, time.Time{}
	}
	if accepted := m.accepted.Load(); accepted != nil && accepted.After(held.missingSince) {
		return m.giveUp(ctx, held, "the withdrawal was accepted")
	}
	if held.restoreAt.IsZero() {
		// The two watches are independent: only when both have seen the deletion does the
		// set say how many others are missing.
		if peers != nil && peers.Has(held.key) {
			held.missingSince = now
		}
		switch left := burst - now.Sub(held.missingSince); {
		case left > 0:
			m.checkKeyAfter(left)
			return nil
		case peers == nil || !peers.MassRetained() && !peers.MostWithdrawn():
			return m.giveUp(ctx, held, "the key was deleted")
		}
		held.restoreAt = now
		if peers.MassRetained() {
			// Spread over all nodes, and before the end of the time for which the others
			// retain us.
			held.restoreAt = now.Add(m.retain/20 + rand.N(m.retain*3/20))
		}
		m.log.Error("lease was withdrawn together with most others, keeping the network and restoring the lease if its subnet is free",
			"key", held.key, "at", held.restoreAt.Round(time.Second))
		peers.SetOwnWithdrawn(true)
	}
	if wait := held.restoreAt.Sub(now); wait > 0 {
		m.checkKeyAfter(wait)
		return nil
	}
	if own := held.lease(); peers.Claimed(&own) {
		return m.giveUp(ctx, held, "another node has its subnet")
	}
	held.mod, held.created, held.stored = 0, 0, nil // writeKey creates it, if it does not exist
	return m.writeKeyNow(ctx)
}

// checkKeyAfter has Hold check our key after a pause.
func (m *Manager) checkKeyAfter(after time.Duration) {
	time.AfterFunc(after, func() { runner.Notify(m.checkKey) })
}

// giveUp revokes the etcd lease of a lost key, and returns ErrLost. m.mu must
// be held.
func (m *Manager) giveUp(ctx context.Context, held *heldKey, why string) error {
	m.revokeUnused(ctx, held.id) // deleting a key does not end its etcd lease
	return fmt.Errorf("%s: %s: %w", held.key, why, subnet.ErrLost)
}

// endMissing records that our key exists. m.mu must be held.
func (m *Manager) endMissing(held *heldKey) {
	if held.missingSince.IsZero() {
		return
	}
	held.missingSince = time.Time{}
	if !held.restoreAt.IsZero() {
		m.log.Info("lease is restored", "key", held.key)
		m.watched.Load().SetOwnWithdrawn(false)
	}
}

// lease returns our lease as it should be stored.
func (held *heldKey) lease() subnet.Lease { return held.leaseWith(held.want) }

// leaseWith returns the lease of our key with a value.
func (held *heldKey) leaseWith(v format.Value) subnet.Lease {
	l := subnet.Lease{Name: held.key, Backend: v.BackendType}
	if held.v4.IsValid() {
		l.V4 = subnet.Endpoint{Subnet: held.v4, PublicIP: v.PublicIP, Data: v.Data}
	}
	if held.v6.IsValid() {
		l.V6 = subnet.Endpoint{Subnet: held.v6, PublicIP: v.PublicIPv6, Data: v.V6Data}
	}
	return l
}

// AcceptWithdrawal implements subnet.Manager.
func (m *Manager) AcceptWithdrawal() int {
	peers := m.watched.Load()
	if peers == nil {
		return 0
	}
	count, now := peers.Accept(), time.Now()
	m.accepted.Store(&now)
	runner.Notify(m.checkKey)
	return count
}
