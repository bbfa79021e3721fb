package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// The client library's own watcher hides reconnections, and with them that the store behind may have become another
// one, in which our position means nothing. Hence the bare stream: when it breaks, the session checks and goes on.

type received struct {
	resp *pb.WatchResponse
	err  error
}

// openWatch starts a watch behind the position at and returns when it stands. It ends with ctx, or after an error.
func (m *Manager) openWatch(ctx context.Context, f feed, at position) (<-chan received, error) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	// Opening waits for a connection. If that takes long, the outage must be told, and the position checked again.
	impatience := time.AfterFunc(requestTimeout, cancel)
	stream, err := pb.NewWatchClient(m.client.ActiveConnection()).Watch(ctx, streamOptions()...)
	if err == nil {
		err = stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
			Key: []byte(f.key), RangeEnd: []byte(f.end), StartRevision: at.rev + 1,
			ProgressNotify: true, // keeps the position of a quiet key ahead of compactions
			Fragment:       true,
		}}})
	}
	var first *pb.WatchResponse
	if err == nil {
		first, err = stream.Recv()
	}
	if err == nil {
		err = created(first, at)
	}
	if err == nil && !impatience.Stop() {
		err = context.DeadlineExceeded
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("watch %s: %w", f.key, err)
	}
	in := make(chan received, 64)
	go func() {
		defer cancel()
		for {
			resp, err := stream.Recv()
			select {
			case in <- received{resp, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return in, nil
}

// created checks the answer to the request for a watch.
func created(r *pb.WatchResponse, at position) error {
	switch {
	case r.Canceled && r.CompactRevision == 0:
		return errors.New(r.CancelReason)
	case !r.Created:
		return errors.New("the watch was not created")
	case at.replacedBy(standing(r.Header)):
		// Either a member that lags behind, or another store: the check that comes next will tell.
		return errors.New("this member has not yet got as far as we")
	}
	return nil
}

// enough events are handed over even if still more arrive.
const enough = 10_000

// batch is what several responses said.
type batch struct {
	events    []*mvccpb.Event
	rev       int64 // of the store when it said so; 0: unknown
	compacted bool
	err       error
}

// gather takes r and what else has already arrived: a burst of changes becomes one call of the consumer. A response
// in fragments is waited for, because a position must not lie within a revision.
func gather(ctx context.Context, r received, in <-chan received) batch {
	var b batch
	for {
		switch {
		case r.err != nil:
			b.err = r.err
			return b
		case r.resp.CompactRevision != 0:
			b.compacted = true
			return b
		case r.resp.Canceled:
			b.err = errors.New(r.resp.CancelReason)
			return b
		}
		b.events = append(b.events, r.resp.Events...)
		if len(r.resp.Events) == 0 {
			b.rev = r.resp.Header.GetRevision() // a progress report: everything up to here has been sent
		}
		if r.resp.Fragment {
			select {
			case r = <-in:
				continue
			case <-ctx.Done():
				return batch{err: ctx.Err()}
			}
		}
		if len(b.events) > enough {
			return b
		}
		select {
		case r = <-in:
		default:
			return b
		}
	}
}
