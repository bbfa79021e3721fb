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

	"flannel/pkg/reconcile/runner"
	"flannel/subnet"
	"flannel/subnet/etcd/format"
	"flannel/subnet/patience"
)

// heldKey is the key of our own lease: the value that it should have, and the
// state in which we last saw it. Manager.mu guards it.
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
//	any          it was recreated with an invalid value        restore it                                       overwritten
//	missing      (the table in withdrawn.go)                                                                    held, withdrawn, lost
//	withdrawn    restoreAt has come, and the subnet is free    write the key                                    held
//	lost         -                                             Hold returns ErrLost                             -
//
// overwritten is the field of that name. In missing, missingSince is set; in
// withdrawn, restoreAt as well. A difference between stored and want does not
// mean overwritten: there is one between a call of Publish and its write, too.
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

// observe records what our key holds now, nil if it is missing. A missing key
// is lost, unless the store was replaced: a replaced store does not know our
// key, and nobody deleted it. A key that was created again is lost only if judge
// says that another node can have it; anything else that is written under our name
// must not end us.
func (held *heldKey) observe(kv *mvccpb.KeyValue, replaced bool, judge subnet.Judge) keyState {
	switch {
	case kv == nil && replaced:
		if held.mod != 0 { // else this is a retry, and the etcd lease is a new one already
			held.mod, held.created, held.stored = 0, 0, nil
			held.replaceLease()
		}
		return differs
	case kv == nil:
		return lost
	case !replaced && kv.ModRevision <= held.mod:
		return held.state() // our own write, or an event that is older than it
	}
	var value *format.Value
	if v, err := format.DecodeValue(kv.Value); err == nil {
		value = &v
	}
	hasOurAddress := value != nil && value.PublicIP == held.want.PublicIP && value.PublicIPv6 == held.want.PublicIPv6
	switch {
	case !held.missingSince.IsZero() && !hasOurAddress && held.isOthers(value, judge):
		return lost // another node created the key first
	case !held.missingSince.IsZero() || replaced || kv.CreateRevision == held.created:
		// Somebody restored the missing key, the store is another one, or the same key has
		// another value: it is ours.
	case held.isOthers(value, judge) && !value.Equal(held.want):
		return lost // it was deleted, and another node recreated it
	}
	held.mod, held.created, held.stored = kv.ModRevision, kv.CreateRevision, value
	state := held.state()
	if state == matches {
		held.id, held.grant = clientv3.LeaseID(kv.Lease), false // someone may have made it a reservation, or the reverse
	} else if replaced && held.id != clientv3.NoLease {
		held.replaceLease() // the replaced store does not have our etcd lease
	}
	return state
}

// isOthers reports whether a value of our key, nil if it is unreadable, can be that of
// another node, which may have published it only in part, or with a configuration
// that this node has not adopted yet.
func (held *heldKey) isOthers(value *format.Value, judge subnet.Judge) bool {
	if value == nil {
		return false
	}
	l := held.leaseWith(*value)
	err := judge.Elsewhere().Check(&l)
	return err == nil || errors.Is(err, subnet.ErrPending) || errors.Is(err, subnet.ErrOtherConfig)
}

// state compares the value as last seen with the one that we want.
func (held *heldKey) state() keyState {
	if held.stored != nil && held.stored.Equal(held.want) {
		return matches
	}
	return differs
}

// replaceLease chooses the ID of a new etcd lease, to be granted before the
// next write. A reservation needs none.
func (held *heldKey) replaceLease() {
	if held.id != clientv3.NoLease {
		held.id, held.grant = newLeaseID(), true
	}
}

// writeKey writes our key if its value differs from the one that we want. The
// write is a transaction that requires the ModRevision as last seen, so that it
// never overwrites a change that we have not seen. m.mu must be held, for as
// long as ctx allows.
func (m *Manager) writeKey(ctx context.Context) error {
	held := m.held
	// More than one round only if the key or its etcd lease was not as we last saw it;
	// observe has recorded what is there now.
	for held.state() != matches {
		if held.grant {
			if err := m.grant(ctx, held.id); err != nil {
				return err
			}
			held.grant = false
			runner.Notify(m.leaseChanged)
		}
		raw, err := format.EncodeValue(held.want)
		if err != nil {
			return final{err}
		}
		resp, err := m.client.Txn(ctx).
			If(clientv3.Compare(clientv3.ModRevision(held.key), "=", held.mod)).
			Then(clientv3.OpPut(held.key, string(raw), clientv3.WithLease(held.id))).
			Else(clientv3.OpGet(held.key)).Commit()
		switch {
		case errors.Is(err, rpctypes.ErrLeaseNotFound):
			held.replaceLease() // it has expired while the key was on another one
			continue
		case err != nil:
			return fmt.Errorf("write %s: %w", held.key, m.denied(err, "readwrite", held.key, false))
		case resp.Succeeded:
			if held.mod == 0 {
				held.created = resp.Header.Revision
			}
			held.mod, held.stored, held.overwritten = resp.Header.Revision, new(held.want), false
			return nil
		}
		// Someone has changed the key since we saw it last.
		var current *mvccpb.KeyValue
		if kvs := rangeOf(resp, 0).Kvs; len(kvs) > 0 {
			current = kvs[0]
		}
		id := held.id
		older := current != nil && current.ModRevision < held.mod // so the store was replaced by an older one
		switch state := held.observe(current, held.mod == 0 || older, m.currentJudge()); {
		case state == lost && current == nil:
			return m.handleMissing(ctx, held) // Hold writes it again with held.want, or ends
		case state == lost:
			return m.giveUp(ctx, held, "the key is another node's now")
		case held.id != id:
			runner.Notify(m.leaseChanged)
		}
	}
	held.overwritten = false
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
