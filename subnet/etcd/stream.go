package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// The client library's own watcher hides reconnections, and with them that the store behind may have become another
// one, in which our position means nothing. Hence the bare stream: when it breaks, the session checks and goes on.

type received struct {
	resp     *pb.WatchResponse
	progress bool // resp says only how far the store is
	err      error
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
		return nil, fmt.Errorf("watch %s: %w", f.key, m.denied(err, "read", f.key, f.end != ""))
	}
	in := make(chan received, 16)
	go func() {
		defer cancel()
		for {
			resp, err := stream.Recv()
			progress := resp != nil && len(resp.Events) == 0 && !resp.Fragment
			m.bound(f, resp)
			select {
			case in <- received{resp, progress, err}:
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
	case r.Canceled && strings.Contains(r.CancelReason, rpctypes.ErrorDesc(rpctypes.ErrGRPCPermissionDenied)):
		return rpctypes.ErrPermissionDenied
	case r.Canceled && r.CompactRevision == 0:
		return errors.New(r.CancelReason)
	case !r.Created:
		return errors.New("the watch was not created")
	case at.replacedBy(positionOf(r.Header)):
		// Either a member that lags behind, or another store: the check that comes next will tell.
		return errors.New("this member has not yet got as far as we")
	}
	return nil
}

// bound drops from a response what was not asked for and what no lease has, before it waits to be handed over.
func (m *Manager) bound(f feed, r *pb.WatchResponse) {
	if r == nil {
		return
	}
	r.Events = slices.DeleteFunc(r.Events, func(e *mvccpb.Event) bool {
		var kv *mvccpb.KeyValue
		if e != nil {
			kv = e.Kv
		}
		if !f.holds(kv) {
			m.warnUnrequested(kv)
			return true
		}
		f.shrink(kv)
		return false
	})
}

// So many events, or bytes of them, are handed over even if still more arrive.
const enough, enoughBytes = 10_000, 4 << 20

// batch is what several responses said.
type batch struct {
	events    []*mvccpb.Event
	carry     []*mvccpb.Event // of a revision whose other events are still to come
	rev       int64           // of the store when it said so; 0: unknown
	compacted bool
	err       error
}

// gather takes r and what else has already arrived: a burst of changes becomes one call of the consumer. carry is that
// of the batch before. A position must not lie within a revision, and a response in fragments may end within one: what
// is incomplete is carried over to the next batch.
func gather(ctx context.Context, carry []*mvccpb.Event, r received, in <-chan received) batch {
	b := batch{events: carry}
	size := 0
	fragment := len(carry) > 0
	for {
		switch {
		case r.err != nil:
			b.err = r.err
		case r.resp.CompactRevision != 0:
			b.compacted = true
		case r.resp.Canceled:
			b.err = errors.New(r.resp.CancelReason)
		}
		if b.err != nil || b.compacted {
			if fragment && !b.cut() {
				b.events = nil
			}
			return b
		}
		b.events = append(b.events, r.resp.Events...)
		for _, e := range r.resp.Events {
			size += len(e.Kv.Key) + len(e.Kv.Value)
		}
		fragment = r.resp.Fragment
		if r.progress {
			b.rev = r.resp.Header.GetRevision() // a progress report: everything up to here has been sent
		}
		full := len(b.events) > enough || size > enoughBytes
		switch {
		case full && !fragment, full && b.cut():
			return b
		case fragment:
			select {
			case r = <-in:
			case <-ctx.Done():
				return batch{err: ctx.Err()}
			}
			continue
		}
		select {
		case r = <-in:
		default:
			return b
		}
	}
}

// cut moves the events of the last revision to carry. It reports whether events of other revisions are left, and does
// nothing else if not.
func (b *batch) cut() bool {
	if len(b.events) == 0 {
		return false
	}
	last := b.events[len(b.events)-1].Kv.ModRevision
	i := slices.IndexFunc(b.events, func(e *mvccpb.Event) bool { return e.Kv.ModRevision == last })
	if i == 0 {
		return false
	}
	b.events, b.carry = b.events[:i:i], b.events[i:]
	return true
}
