package etcd

import (
	"cmp"
	"context"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"flannel/subnet"
)

// createKey is the write of Acquire: it creates the key of held, if it does not exist, and
// sets held.seen. The same transaction deletes our former keys, which no longer fit the
// configuration. It returns false if another node was faster: then Acquire lists again.
// The subnet was free in a list at revision rev. held is not yet shared, so that no lock
// is needed.
//
// Two nodes may create overlapping keys of different names, such as 10.5.8.0-22
// and 10.5.9.0-24, at the same time. etcd orders their transactions. Each one
// also reads the keys created since rev: the later node finds the earlier one's
// key, deletes its own and tries another subnet.
func (m *Manager) createKey(ctx context.Context, held *heldKey, rev int64, former []record) (won bool, err error) {
	raw, err := encodeValue(held.want)
	if err != nil {
		return false, err
	}
	// This excludes keys of the same name, and the range of the last step finds
	// overlapping ones.
	conditions := []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(held.key), "=", 0)}
	// A former key may have the same IPv4 subnet as the new one. Its deletion comes first,
	// since peers that handle one event after the other would remove the new entries.
	var steps []clientv3.Op
	var etcdLeases []clientv3.LeaseID
	for _, r := range former { // at most maxFormer
		conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(r.key), "=", r.kv.ModRevision))
		steps = append(steps, clientv3.OpDelete(r.key))
		etcdLeases = append(etcdLeases, clientv3.LeaseID(r.kv.Lease))
	}
	steps = append(steps, clientv3.OpPut(held.key, string(raw), clientv3.WithLease(held.id)),
		clientv3.OpGet(m.subnets, clientv3.WithPrefix(), clientv3.WithMinCreateRev(rev+1), clientv3.WithKeysOnly(),
			clientv3.WithLimit(firstPage)))
	var resp *clientv3.TxnResponse
	err = m.retry(ctx, "create our lease", func(ctx context.Context) (err error) {
		resp, err = m.client.Txn(ctx).If(conditions...).Then(steps...).Else(clientv3.OpGet(held.key)).Commit()
		return m.deniedClaim(err, held.key, cmp.Or(held.want.PublicIP, held.want.PublicIPv6).String())
	})
	if err != nil {
		return false, fmt.Errorf("create %s: %w", held.key, err)
	}
	if !resp.Succeeded {
		kvs := rangeOf(resp, 0).Kvs // our key, by Else; none: a former key has changed
		if len(kvs) == 0 || clientv3.LeaseID(kvs[0].Lease) != held.id {
			return false, nil
		}
		// The key is ours: an earlier attempt succeeded, and its answer was lost.
		return m.finishCreate(ctx, held, rev)
	}
	for _, id := range etcdLeases { // those of the deleted keys
		m.revokeUnused(ctx, id)
	}
	// With more than one page of new keys, finishCreate reads all of them.
	if newcomers := rangeOf(resp, len(steps)-1); !newcomers.More {
		return m.keepUnlessOverlapping(ctx, held, resp.Header.GetRevision(), newcomers.Kvs)
	}
	return m.finishCreate(ctx, held, rev)
}

// rangeOf returns the result of step i of a transaction, which must be a Get.
// It is empty if the server left it out.
func rangeOf(resp *clientv3.TxnResponse, i int) *pb.RangeResponse {
	if i < len(resp.Responses) {
		if r := resp.Responses[i].GetResponseRange(); r != nil {
			return r
		}
	}
	return &pb.RangeResponse{}
}

// timeLeft returns the time until the deadline of ctx, which that of an attempt of retry
// always has.
func timeLeft(ctx context.Context) time.Duration {
	end, _ := ctx.Deadline()
	return time.Until(end)
}

// finishCreate completes a createKey whose transaction succeeded, but whose answer was
// lost or does not have all keys created since rev. It returns false if our key is gone
// again.
func (m *Manager) finishCreate(ctx context.Context, held *heldKey, rev int64) (won bool, err error) {
	var newcomers *snapshot
	err = m.retry(ctx, "create our lease", func(attempt context.Context) (err error) {
		newcomers, err = m.list(ctx, m.leases(""), timeLeft(attempt), clientv3.WithMinCreateRev(rev+1), clientv3.WithKeysOnly())
		return err
	})
	if err != nil {
		return false, fmt.Errorf("create %s: %w", held.key, err)
	}
	for _, kv := range newcomers.kvs {
		if string(kv.Key) == held.key {
			return m.keepUnlessOverlapping(ctx, held, kv.CreateRevision, newcomers.kvs)
		}
	}
	return false, nil
}

// keepUnlessOverlapping records in held that our key was created at rev, and returns
// true; or it deletes the key and returns false, if an overlapping key was created before
// it, and since the list. newcomers are the keys created since the list, ours included.
func (m *Manager) keepUnlessOverlapping(ctx context.Context, held *heldKey, rev int64,
	newcomers []*mvccpb.KeyValue) (won bool, err error) {
	own := held.lease()
	for _, r := range m.records(newcomers) {
		if r.key == held.key || r.kv.CreateRevision >= rev || isFree(&own, []*subnet.Lease{r.lease}) {
			continue
		}
		// Only if nobody has changed the key since. After a lost answer the condition is
		// false, and the key is gone as well.
		err := m.retry(ctx, "delete an overlapping key", func(ctx context.Context) error {
			_, err := m.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(held.key), "=", rev)).
				Then(clientv3.OpDelete(held.key)).Commit()
			return err
		})
		return false, err
	}
	held.seen = seen{value: new(held.want), mod: rev, created: rev, id: held.id}
	return true, nil
}
