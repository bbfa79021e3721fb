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

// The watcher of the client library reconnects without telling its user. But
// after each reconnection the store must be checked, because it may have been
// replaced and our position may have no meaning in it. So this file uses the
// gRPC stream itself: when it fails, the session (follow.go) checks the store and opens the
// next one.

// received is a message of the watch, or the error that ended it. The goroutine of
// openWatch sends it to that of session.watch.
type received struct {
	resp     *pb.WatchResponse // nil with err
	progress bool              // resp came without events, before sanitize dropped any: all events up to its revision were sent
	err      error
}

// openWatch starts a watch behind the position at, and returns when the server
// has confirmed it. The watch ends with ctx or after an error, which is the last value
// of the channel. The channel is never closed.
func (m *Manager) openWatch(ctx context.Context, f feed, at position, timeout time.Duration) (<-chan received, error) {
	// An etcd member without a leader, which gets no changes, ends the watch.
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx)) // cancel: by the goroutine below, or on failure
	// Opening waits for a connection. After timeout it fails, so that the outage is
	// recorded and the store checked.
	timer := time.AfterFunc(timeout, cancel)
	stream, err := pb.NewWatchClient(m.client.ActiveConnection()).Watch(ctx, streamOptions()...)
	if err == nil {
		err = stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
			Key: []byte(f.key), RangeEnd: []byte(f.end), StartRevision: at.rev + 1,
			ProgressNotify: true, // moves the position forward even without events, ahead of compactions
			Fragment:       true, // a large response comes as several messages
		}}})
	}
	var first *pb.WatchResponse
	if err == nil {
		first, err = stream.Recv()
	}
	if err == nil {
		err = checkCreated(first, at)
	}
	if err == nil && !timer.Stop() { // cancel is being called: the stream ends
		err = context.DeadlineExceeded
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("watch %s: %w", f.key, m.denied(err, "read", f.key, f.end != ""))
	}
	// The goroutine ends with ctx or the stream. What waits in the channel is bounded by
	// 16 messages; then gRPC's flow control stops the server.
	in := make(chan received, 16)
	go func() {
		defer cancel()
		for {
			resp, err := stream.Recv()
			progress := resp != nil && len(resp.Events) == 0 && !resp.Fragment
			m.sanitize(f, resp)
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

// checkCreated checks the response to the request for a watch. If the position was
// compacted, etcd says so in the next message, which gather reads.
func checkCreated(r *pb.WatchResponse, at position) error {
	switch {
	case r.Canceled && strings.Contains(r.CancelReason, rpctypes.ErrorDesc(rpctypes.ErrGRPCPermissionDenied)):
		return rpctypes.ErrPermissionDenied
	case r.Canceled && r.CompactRevision == 0:
		return errors.New(r.CancelReason)
	case !r.Created:
		return errors.New("the watch was not created")
	case at.replacedBy(positionOf(r.Header)):
		// Either this etcd member lags, or the store was replaced. The next check finds out.
		return errors.New("etcd member is behind our position")
	}
	return nil
}

// sanitize drops keys that were not requested and oversized values, before the
// response waits in the channel.
func (m *Manager) sanitize(f feed, r *pb.WatchResponse) {
	if r == nil {
		return
	}
	r.Events = slices.DeleteFunc(r.Events, func(e *mvccpb.Event) bool {
		var kv *mvccpb.KeyValue
		if e != nil {
			kv = e.Kv
		}
		if !f.requested(kv) {
			m.warnUnrequested(kv)
			return true
		}
		f.limitValue(kv)
		return false
	})
}

// A batch is handed over when it exceeds these numbers of events or bytes, even
// if more events are waiting: it is in memory as a whole, and peers wait for it.
const maxBatch, maxBatchBytes = 10_000, 4 << 20

// batch is the content of one response or several.
type batch struct {
	events    []*mvccpb.Event
	carry     []*mvccpb.Event // events of a revision of which more events will come
	rev       int64           // all events up to this revision were sent; 0: unknown
	compacted bool            // etcd no longer has the events after our position: the watch has ended
	err       error           // why the watch has ended otherwise; nil: it goes on
}

// gather combines r with the responses that have already arrived, so that a
// burst of changes becomes one call of the consumer. A position must not lie
// within a revision: events of one transaction have the same revision. But a fragmented
// response may end within one, and then its last revision is carried over to the next
// batch (batch.carry). carry is what the batch before has carried over.
func gather(ctx context.Context, carry []*mvccpb.Event, r received, in <-chan received) batch {
	b := batch{events: carry}  // they precede those of r
	size := 0                  // of the events in bytes, without those of carry
	fragment := len(carry) > 0 // more events of the last revision in b will come
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
			// With fragment, the last revision is incomplete: the next watch sends all of it
			// again, and the caller drops carry.
			if fragment && !b.cut() {
				b.events = nil // there is no other revision
			}
			return b
		}
		b.events = append(b.events, r.resp.Events...)
		for _, e := range r.resp.Events {
			size += len(e.Kv.Key) + len(e.Kv.Value)
		}
		fragment = r.resp.Fragment
		if r.progress {
			b.rev = r.resp.Header.GetRevision() // all events up to here have been sent
		}
		full := len(b.events) > maxBatch || size > maxBatchBytes
		switch {
		case full && !fragment, full && b.cut(): // if cut finds one revision only, wait for the rest of it
			return b
		case fragment:
			select {
			case r = <-in: // wait, since the rest of the revision must come
			case <-ctx.Done():
				return batch{err: ctx.Err()}
			}
			continue
		}
		select {
		case r = <-in:
		default: // nothing else has arrived
			return b
		}
	}
}

// cut moves the events of the last revision to carry and reports whether events
// of other revisions are left. If all events are of one revision, it moves nothing, and
// returns false.
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
