package etcd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// newLeaseID chooses the ID of an etcd lease. Because we choose it, and not
// etcd, the grant can be repeated after a lost response without creating a
// second lease. It is never 0, which is NoLease.
func newLeaseID() clientv3.LeaseID { return clientv3.LeaseID(rand.Int64N(1<<63-1) + 1) }

// grant creates the etcd lease id. It is not an error if it exists already.
func (m *Manager) grant(ctx context.Context, id clientv3.LeaseID) error {
	_, err := pb.NewLeaseClient(m.client.ActiveConnection()).LeaseGrant(ctx,
		// TTL is in seconds, rounded up: 0 would be an error.
		&pb.LeaseGrantRequest{ID: int64(id), TTL: int64((m.ttl + time.Second - 1) / time.Second)}, streamOptions()...)
	if err = rpctypes.Error(err); err != nil && !errors.Is(err, rpctypes.ErrLeaseExist) {
		return fmt.Errorf("grant a lease: %w", err)
	}
	return nil
}

// revokeUnused revokes an etcd lease if no key is on it. It tries only once,
// because the lease expires anyway.
func (m *Manager) revokeUnused(ctx context.Context, id clientv3.LeaseID) {
	if id == clientv3.NoLease {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second) // also if ctx has ended, as in Hold
	defer cancel()
	if left, err := m.client.TimeToLive(ctx, id, clientv3.WithAttachedKeys()); err == nil && left.TTL > 0 && len(left.Keys) == 0 {
		_, _ = m.client.Revoke(ctx, id)
	}
}

// renewOnce renews an etcd lease and returns the remaining time, 0 if the lease
// does not exist. It sends one request, while KeepAliveOnce of the client
// library retries without a pause.
func (m *Manager) renewOnce(ctx context.Context, id clientv3.LeaseID) (time.Duration, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := pb.NewLeaseClient(m.client.ActiveConnection()).LeaseKeepAlive(ctx, streamOptions()...)
	if err == nil {
		err = stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)})
	}
	var resp *pb.LeaseKeepAliveResponse
	if err == nil {
		resp, err = stream.Recv()
	}
	if err != nil {
		return 0, fmt.Errorf("renew the lease: %w", rpctypes.Error(err))
	}
	return time.Duration(resp.TTL) * time.Second, nil
}
