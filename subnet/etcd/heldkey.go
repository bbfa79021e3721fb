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

// claim is our own key: what it should hold, and what we last saw there. Manager.mu guards it.
//
//	state      cause                                       action                                         next state
//	in place   Publish wants another value                 write it                                       in place
//	in place   the key is on another etcd lease            use that one, revoke ours                      in place
//	in place   someone else changed the value              restore it, now or after the conflict backoff  changed
//	in place   the store was replaced, the value differs   restore it now, on a new etcd lease            changed
//	changed    our write succeeds                          -                                              in place
//	changed    our write fails                             follow lists the key, and we try again         changed
//	any        the key is deleted                          wait for the rest of the burst                 missing
//	any        the key was deleted, and another node made  revoke our etcd lease                          lost
//	missing    (the table in withdrawn.go)                                                                in place, withdrawn, lost
//	withdrawn  putBack has come, the subnet is free        write the key                                  in place
//	lost       -                                           Hold returns ErrLost                           -
//
// changed is the field mending; missing is gone, and withdrawn is putBack as well. That stored differs from want says
// only that something has to be written: it is so between a call of Publish and its write, too.
type claim struct {
	key    string
	v4, v6 netip.Prefix
	id     clientv3.LeaseID // the etcd lease that the key hangs on; NoLease: it is a reservation
	grant  bool             // id must be granted before it can be used
	want   format.Value

	stored       *format.Value // what the key held when last seen, nil if that could not be read or the key is missing
	mod, created int64         // its revisions; 0: there is none, and that is how it may be made
	at           position      // where Hold starts to follow the key
	mending      bool          // another hand changed the key, and that is not yet undone
	quarrel      patience.Quarrel

	gone    time.Time // since when our key is missing; zero: it is there
	putBack time.Time // when to put it back; zero: not decided
}

// verdict is what is to be done about our key.
type verdict int

const (
	fine verdict = iota
	mend
	lost
)

// see takes in what our key holds now, nil if it is missing. A key that is ours no more means that the claim is lost,
// unless the store is another one, which cannot know of us.
func (c *claim) see(kv *mvccpb.KeyValue, replaced bool) verdict {
	switch {
	case kv == nil && replaced:
		if c.mod != 0 { // else an attempt before this one has failed
			c.mod, c.created, c.stored = 0, 0, nil
			c.renewed()
		}
		return mend
	case kv == nil:
		return lost
	case !replaced && kv.ModRevision <= c.mod:
		return c.verdict() // no news: we have done this, or have seen it
	}
	var is *format.Value
	if v, err := format.DecodeValue(kv.Value); err == nil {
		is = &v
	}
	switch again := is != nil && is.PublicIP == c.want.PublicIP && is.PublicIPv6 == c.want.PublicIPv6; {
	case !c.gone.IsZero() && !again:
		return lost // another node was faster
	case !c.gone.IsZero() || replaced || kv.CreateRevision == c.created:
	case is == nil || !is.Same(c.want):
		return lost // it was deleted, and somebody else has made it anew
	}
	c.mod, c.created, c.stored = kv.ModRevision, kv.CreateRevision, is
	if id := clientv3.LeaseID(kv.Lease); c.verdict() == fine {
		c.id, c.grant = id, false // it may have become a reservation, or its operator's
	} else if replaced && c.id != clientv3.NoLease {
		c.renewed() // our etcd lease was one of the former store
	}
	return c.verdict()
}

func (c *claim) verdict() verdict {
	if c.stored != nil && c.stored.Same(c.want) {
		return fine
	}
	return mend
}

// renewed gives the claim a new etcd lease, to be granted; a reservation needs none.
func (c *claim) renewed() {
	if c.id != clientv3.NoLease {
		c.id, c.grant = newLeaseID(), true
	}
}

// settle makes our key hold what it should, and writes only if it does not. m.mu must be held; ctx bounds that.
func (m *Manager) settle(ctx context.Context) error {
	c := m.claim
	for c.verdict() != fine {
		if c.grant {
			if err := m.grant(ctx, c.id); err != nil {
				return err
			}
			c.grant = false
			token(m.leaseIsNew)
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
			c.renewed() // the key outlived its lease: another hand had put it elsewhere
			continue
		case err != nil:
			return fmt.Errorf("write %s: %w", c.key, m.denied(err, "readwrite", c.key, false))
		case resp.Succeeded:
			if c.mod == 0 {
				c.created = resp.Header.Revision
			}
			v := c.want
			c.mod, c.stored, c.mending = resp.Header.Revision, &v, false
			return nil
		}
		// Another hand was faster: judge what is there now.
		var now *mvccpb.KeyValue
		if kvs := rangeOf(resp, 0).Kvs; len(kvs) > 0 {
			now = kvs[0]
		}
		id := c.id
		switch verdict := c.see(now, c.mod == 0); {
		case verdict == lost && now == nil:
			return m.missing(ctx, c) // Hold puts it back with what we want now, or ends
		case verdict == lost:
			return m.revoked(ctx, c, "its key was given away")
		case c.id != id:
			token(m.leaseIsNew)
		}
	}
	c.mending = false
	return nil
}

// Publish makes the others see l; see subnet.Manager.
func (m *Manager) Publish(ctx context.Context, l subnet.Lease) error {
	v := format.ValueOf(l)
	if _, err := format.EncodeValue(v); err != nil {
		return err
	}
	for _, e := range l.Endpoints() {
		if e.PublicIP.BitLen() != e.Subnet.Addr().BitLen() {
			return fmt.Errorf("publish %v: %v is no public address for it", e.Subnet, e.PublicIP)
		}
	}
	m.mu.Lock()
	if m.claim == nil || m.claim.v4 != l.V4.Subnet || m.claim.v6 != l.V6.Subnet {
		m.mu.Unlock()
		return fmt.Errorf("publish %v %v: this is not the subnet that was acquired", l.V4.Subnet, l.V6.Subnet)
	}
	m.claim.want = v
	m.mu.Unlock()
	return m.retry(ctx, "publish our lease", func(ctx context.Context) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.settle(ctx)
	})
}
