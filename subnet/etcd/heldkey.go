package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"flannel/subnet"
	"flannel/subnet/etcd/format"
	"flannel/subnet/patience"
)

// heldKey is the key of our own lease: the value that it should have, and the state in which we last saw it. Manager.mu
// guards it.
//
//	state        cause                                         action                                           next state
//	held         Publish wants another value                   write it                                         held
//	held         someone put the key on another etcd lease     use that etcd lease, revoke ours                 held
//	held         someone else changed the value                restore it, now or after the conflict backoff    overwritten
//	held         the store was replaced, the value differs     restore it now, on a new etcd lease              overwritten
//	overwritten  our write succeeds                            -                                                held
//	overwritten  our write fails                               list the key again, and retry                    overwritten
//	any          the key is deleted                            wait for the other events of the burst           missing
//	any          another node recreated the deleted key        revoke our etcd lease                            lost
//	missing      (the table in withdrawn.go)                                                                    held, withdrawn, lost
//	withdrawn    restoreAt has come, and the subnet is free    write the key                                    held
//	lost         -                                             Hold returns ErrLost                             -
//
// overwritten is the field of that name. In missing, missingSince is set; in withdrawn, restoreAt as well. A difference between
// stored and want does not mean overwritten: there is one between a call of Publish and its write, too.
type heldKey struct {
	key    string
	v4, v6 netip.Prefix
	id     clientv3.LeaseID // the etcd lease of the key; NoLease: the key is a reservation, which does not expire
	grant  bool             // id was not granted yet
	want   format.Value

	stored       *format.Value // the value when last seen; nil: unreadable, or the key is missing
	mod, created int64         // the key's ModRevision and CreateRevision when last seen; 0: the key is missing
	at           position      // where Hold starts to follow the key
	overwritten  bool          // someone else changed the key, and we have not restored it yet
	conflict     patience.ConflictBackoff

	missingSince time.Time // zero: the key exists
	restoreAt    time.Time // when to write the missing key again; zero: not decided
}

// keyState is what an observation of our key means.
type keyState int

const (
	matches keyState = iota // the key has the value that we want
	differs                 // it must be written
	lost                    // it was deleted, or is another node's now
)

// observe records what our key holds now, nil if it is missing. A missing key is lost, unless the store was replaced: a
// replaced store does not know our key, and nobody deleted it.
func (c *heldKey) observe(kv *mvccpb.KeyValue, replaced bool) keyState {
	switch {
	case kv == nil && replaced:
		if c.mod != 0 { // else this is a retry, and the etcd lease is a new one already
			c.mod, c.created, c.stored = 0, 0, nil
			c.replaceLease()
		}
		return differs
	case kv == nil:
		return lost
	case !replaced && kv.ModRevision <= c.mod:
		return c.state() // our own write, or an event that is older than it
	}
	var value *format.Value
	if v, err := format.DecodeValue(kv.Value); err == nil {
		value = &v
	}
	hasOurAddress := value != nil && value.PublicIP == c.want.PublicIP && value.PublicIPv6 == c.want.PublicIPv6
	switch {
	case !c.missingSince.IsZero() && !hasOurAddress:
		return lost // another node created the key first
	case !c.missingSince.IsZero() || replaced || kv.CreateRevision == c.created:
	case value == nil || !value.Equal(c.want):
		return lost // it was deleted, and another node recreated it
	}
	c.mod, c.created, c.stored = kv.ModRevision, kv.CreateRevision, value
	state := c.state()
	if state == matches {
		c.id, c.grant = clientv3.LeaseID(kv.Lease), false // someone may have made it a reservation, or the reverse
	} else if replaced && c.id != clientv3.NoLease {
		c.replaceLease() // the replaced store does not have our etcd lease
	}
	return state
}

// state compares the value as last seen with the one that we want.
func (c *heldKey) state() keyState {
	if c.stored != nil && c.stored.Equal(c.want) {
		return matches
	}
	return differs
}

// replaceLease chooses the ID of a new etcd lease, to be granted before the next write. A reservation needs none.
func (c *heldKey) replaceLease() {
	if c.id != clientv3.NoLease {
		c.id, c.grant = newLeaseID(), true
	}
}

// writeKey writes our key if its value differs from the one that we want. The write is a transaction that requires the
// ModRevision as last seen, so that it never overwrites a change that we have not seen. m.mu must be held, for as long as
// ctx allows.
func (m *Manager) writeKey(ctx context.Context) error {
	c := m.held
	for c.state() != matches {
		if c.grant {
			if err := m.grant(ctx, c.id); err != nil {
				return err
			}
			c.grant = false
			patience.Notify(m.leaseChanged)
		}
		raw, err := format.EncodeValue(c.want)
		if err != nil {
			return final{err}
		}
		resp, err := m.client.Txn(ctx).
			If(clientv3.Compare(clientv3.ModRevision(c.key), "=", c.mod)).
			Then(clientv3.OpPut(c.key, string(raw), clientv3.WithLease(c.id))).
			Else(clientv3.OpGet(c.key)).Commit()
		switch {
		case errors.Is(err, rpctypes.ErrLeaseNotFound):
			c.replaceLease() // it has expired while the key was on another one
			continue
		case err != nil:
			return fmt.Errorf("write %s: %w", c.key, m.denied(err, "readwrite", c.key, false))
		case resp.Succeeded:
			if c.mod == 0 {
				c.created = resp.Header.Revision
			}
			c.mod, c.stored, c.overwritten = resp.Header.Revision, new(c.want), false
			return nil
		}
		// Someone has changed the key since we saw it last.
		var current *mvccpb.KeyValue
		if kvs := rangeOf(resp, 0).Kvs; len(kvs) > 0 {
			current = kvs[0]
		}
		id := c.id
		switch state := c.observe(current, c.mod == 0); {
		case state == lost && current == nil:
			return m.handleMissing(ctx, c) // Hold writes it again with c.want, or ends
		case state == lost:
			return m.giveUp(ctx, c, "the key is another node's now")
		case c.id != id:
			patience.Notify(m.leaseChanged)
		}
	}
	c.overwritten = false
	return nil
}

// Publish implements subnet.Manager.
func (m *Manager) Publish(ctx context.Context, l subnet.Lease) error {
	v := format.ValueOf(l)
	if _, err := format.EncodeValue(v); err != nil {
		return err
	}
	for _, e := range l.Endpoints() {
		if e.PublicIP.BitLen() != e.Subnet.Addr().BitLen() {
			return fmt.Errorf("publish %v: %v is not a public address for it", e.Subnet, e.PublicIP)
		}
	}
	m.mu.Lock()
	if m.held == nil || m.held.v4 != l.V4.Subnet || m.held.v6 != l.V6.Subnet {
		m.mu.Unlock()
		return fmt.Errorf("publish %v %v: another subnet than Acquire returned", l.V4.Subnet, l.V6.Subnet)
	}
	m.held.want = v
	m.mu.Unlock()
	return m.retry(ctx, "publish our lease", func(ctx context.Context) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.writeKey(ctx)
	})
}
