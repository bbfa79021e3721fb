package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"flannel/pkg/reconcile"
)

// writeKey writes our key as Publish wants it, on the etcd lease held.id, which it grants
// first if held.grant says so. It records in held what the store has afterwards. The
// write is a transaction that requires the ModRevision as last seen (0: the key does not
// exist), so that it never overwrites a change that we have not seen: Publish and Hold
// may call writeKey at the same time. Without an error the key may be as someone else
// wrote it, and the caller must ask step or publishMustWrite again. The caller retries
// after an error that is not final.
func (m *Manager) writeKey(ctx context.Context, held *heldKey) error {
	m.own.mu.Lock()
	base, id, grant, want := held.seen, held.id, held.grant, held.want // what held changes to meanwhile is checked below
	m.own.mu.Unlock()
	if grant {
		if err := m.grant(ctx, id); err != nil {
			return err
		}
	}
	raw, err := encodeValue(want)
	if err != nil {
		return final{err}
	}
	m.own.mu.Lock()
	if held.id == id && held.grant {
		held.grant = false
		reconcile.Notify(m.own.leaseChanged) // the renewal begins with it
	}
	held.sending(want)
	m.own.mu.Unlock()
	resp, err := m.client.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(held.key), "=", base.mod)).
		Then(clientv3.OpPut(held.key, string(raw), clientv3.WithLease(id))).
		Else(clientv3.OpGet(held.key)).Commit()
	if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return fmt.Errorf("write %s: %w", held.key, m.denied(err, "readwrite", held.key, false)) // false: one key
	}
	m.own.mu.Lock()
	defer m.own.mu.Unlock()
	reconcile.Notify(m.own.check)
	switch {
	case held.seen != base: // Hold has seen something since that is newer, or of another store: what it recorded stays
	case err != nil:
		// ErrLeaseNotFound: the store does not have the etcd lease. It has expired or was revoked, or the store was replaced.
		if held.id == id { // else the key is on another etcd lease already
			held.replaceLease()
		}
	case resp.Succeeded:
		if held.id != id {
			reconcile.Notify(m.own.leaseChanged)
		}
		held.written(&want, id, resp.Header.Revision)
	default: // someone has changed the key since we saw it last
		var kv *mvccpb.KeyValue
		if kvs := rangeOf(resp, 0).Kvs; len(kvs) > 0 {
			kv = kvs[0]
		}
		// kv is nil if the key was deleted.
		held.observe(time.Now(), base.failedWrite(kv, resp.Header.Revision), m.watched.Judge())
	}
	return nil
}
