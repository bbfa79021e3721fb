package etcd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"flannel/subnet"
)

// A deleted key of ours means that the lease was revoked, and the node ends. But when most other keys go with it
// (etcdctl del --prefix, a store restored from an old snapshot), nobody revoked anything, and hundreds of nodes that
// end at once are an outage: then the network stays as it is, and the key is put back.
//
//	our key                         action
//	missing, but not for the peers  wait: what we know of the others is older, and many may be gone with us
//	missing for less than burst     wait: the order of a burst's events says nothing
//	missing, nothing else handle  the lease is lost
//	missing, a mass withdrawal      wait for a while with jitter, for somebody may restore it, then put it back
//	missing, most of a few peers    put it back at once, since none of these is retained
//	there again, ours               go on
//	there again, another node's     the lease is lost
//	the subnet is another's         the lease is lost
//	the withdrawal was accepted     the lease is lost

// burst is how far the events of one burst may be apart for us.
const burst = 3 * time.Second

// missing decides what to do about our key, which is not there. m.mu must be held.
func (m *Manager) handleMissing(ctx context.Context, c *heldKey) error {
	now, peers := time.Now(), m.watched.Load()
	if c.gone.IsZero() {
		c.gone, c.putBack = now, time.Time{}
	}
	if accepted := m.accepted.Load(); accepted != nil && accepted.After(c.gone) {
		return m.giveUp(ctx, c, "the withdrawal was accepted")
	}
	if c.putBack.IsZero() {
		if peers != nil && peers.Has(c.key) {
			c.gone = now
		}
		switch left := burst - now.Sub(c.gone); {
		case left > 0:
			m.checkKeyAfter(left)
			return nil
		case peers == nil || !peers.InForce() && !peers.MostGone():
			return m.giveUp(ctx, c, "its key was deleted")
		}
		if c.putBack = now; peers.InForce() {
			// Not all at once, and soon enough for the others, who retain us no longer than that.
			c.putBack = now.Add(m.retain/20 + rand.N(m.retain*3/20))
		}
		m.log.Error("our lease was withdrawn together with most others: the network stays as it is, and the lease is put back if its subnet is free",
			"key", c.key, "at", c.putBack.Round(time.Second))
		peers.SetOwnWithdrawn(true)
	}
	if wait := c.putBack.Sub(now); wait > 0 {
		m.checkKeyAfter(wait)
		return nil
	}
	if own := c.lease(); peers.Claimed(&own) {
		return m.giveUp(ctx, c, "its subnet or our address is another node's")
	}
	c.mod, c.created, c.stored = 0, 0, nil
	return m.writeKeyNow(ctx)
}

func (m *Manager) checkKeyAfter(after time.Duration) {
	time.AfterFunc(after, func() { notify(m.checkKey) })
}

// revoked ends the claim. m.mu must be held.
func (m *Manager) giveUp(ctx context.Context, c *heldKey, why string) error {
	m.revokeUnused(ctx, c.id) // a deleted key leaves its etcd lease behind
	return fmt.Errorf("%s: %s: %w", c.key, why, subnet.ErrLost)
}

// returned notes that our key is there. m.mu must be held.
func (m *Manager) endMissing(c *heldKey) {
	if c.gone.IsZero() {
		return
	}
	if c.gone = (time.Time{}); !c.putBack.IsZero() {
		m.log.Info("our lease is back", "key", c.key)
		m.watched.Load().SetOwnWithdrawn(false)
	}
}

// lease is our lease as it should be.
func (c *heldKey) lease() subnet.Lease {
	return subnet.Lease{Name: c.key,
		V4: subnet.Endpoint{Subnet: c.v4, PublicIP: c.want.PublicIP},
		V6: subnet.Endpoint{Subnet: c.v6, PublicIP: c.want.PublicIPv6}}
}

// AcceptWithdrawal implements subnet.Accepter.
func (m *Manager) AcceptWithdrawal() int {
	peers := m.watched.Load()
	if peers == nil {
		return 0
	}
	count, now := peers.Accept(), time.Now()
	m.accepted.Store(&now)
	notify(m.checkKey)
	return count
}
