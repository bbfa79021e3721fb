package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"flannel/subnet/etcd/format"
)

// Whoever can write to the store can write values of etcd's request limit (1.5 MB, unless its operator raised it) under
// any number of keys. What the daemon holds of them is bounded: one message at a time, of each value at most format.MaxValue,
// and of keys that hold no lease the first maxRejects.
const (
	// maxMessage bounds one answer of etcd, in bytes. It exceeds etcd's default request limit, so that one key always fits.
	maxMessage = 4 << 20
	// firstPage and largestPage bound the keys of one answer. A page grows only after one that was small in bytes.
	firstPage, largestPage = 500, 8000
	// maxKey is the length in bytes up to which a key that holds no lease is named: a lease's key has less than 100.
	maxKey = 2048
	// maxRejects is how many keys that hold no lease are named; others are only counted.
	maxRejects = 1000
)

// oversized stands for every value above format.MaxValue: one slice for all, which DecodeValue rejects by its length.
var oversized = make([]byte, format.MaxValue+1)

// snapshot is a complete list and where it stands in the store's history.
type snapshot struct {
	kvs  []*mvccpb.KeyValue // with an oversized value replaced by the slice of that name
	more int                // keys that cannot be a lease's and are not in kvs
	at   position
	read time.Time
}

// list reads all of f at one revision, in pages. perPage bounds the wait for each: the whole may take longer, as long as
// pages arrive. opts must not change key, order or revision.
func (m *Manager) list(ctx context.Context, f feed, perPage time.Duration, opts ...clientv3.OpOption) (*snapshot, error) {
	for try := 0; ; try++ {
		l := listing{m: m, feed: f, perPage: perPage, opts: opts, next: f.key, limit: firstPage}
		err := l.readAll(ctx)
		switch {
		case err == nil:
			return &l.snap, nil
		case errors.Is(err, rpctypes.ErrCompacted) && try < 3: // the first page's revision is gone: list a newer one
			continue
		}
		return nil, fmt.Errorf("list %s: %w", f.key, m.denied(err, "read", f.key, f.end != ""))
	}
}

// listing is a list under way.
type listing struct {
	m       *Manager
	feed    feed
	perPage time.Duration
	opts    []clientv3.OpOption

	next  string // where the next page begins
	limit int64  // its keys
	junk  int    // keys in snap that cannot be a lease's
	snap  snapshot
}

func (l *listing) readAll(ctx context.Context) error {
	for {
		resp, err := l.page(ctx)
		if err != nil {
			return err
		}
		if more, err := l.take(resp); err != nil || !more {
			return err
		}
	}
}

// page reads the next page, of fewer keys while it exceeds maxMessage. A single value that exceeds it is not
// transferred: its key alone is read.
func (l *listing) page(ctx context.Context) (*clientv3.GetResponse, error) {
	for {
		resp, err := l.get(ctx)
		switch {
		case !tooLarge(err):
			return resp, err
		case l.limit > 1:
			l.limit = max(1, l.limit/4)
			continue
		}
		resp, err = l.get(ctx, clientv3.WithKeysOnly())
		if err == nil {
			for _, kv := range resp.Kvs {
				kv.Value = oversized
			}
		}
		return resp, err
	}
}

func (l *listing) get(ctx context.Context, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, l.perPage)
	defer cancel()
	opts = append(opts, clientv3.WithLimit(l.limit), clientv3.WithRev(l.snap.at.rev))
	if l.feed.end != "" {
		opts = append(opts, clientv3.WithRange(l.feed.end))
	}
	return l.m.client.Get(ctx, l.next, append(opts, l.opts...)...)
}

// tooLarge reports whether the client library refused an answer for its size. A server that is overloaded answers with
// the same gRPC code, which the client library turns into an error of etcd's own.
func tooLarge(err error) bool { return status.Code(err) == codes.ResourceExhausted }

// take adds a page to the list and reports whether another one follows.
func (l *listing) take(resp *clientv3.GetResponse) (more bool, err error) {
	at := position{cluster: resp.Header.GetClusterId(), rev: resp.Header.GetRevision()}
	switch {
	case l.snap.at.rev == 0:
		l.snap.at, l.snap.read = at, time.Now()
	case l.snap.at.replacedBy(at):
		return false, errors.New("the store was replaced between two pages of a list")
	}
	size, last := 0, ""
	for _, kv := range resp.Kvs {
		if !l.feed.holds(kv) {
			l.m.warnUnrequested(kv)
			continue
		}
		size, last = size+len(kv.Key)+len(kv.Value), string(kv.Key)
		l.add(kv)
	}
	if !resp.More || l.feed.end == "" {
		return false, nil
	}
	if last < l.next {
		return false, errors.New("etcd announced more keys and sent none")
	}
	l.next = last + "\x00"
	if size < maxMessage/5 {
		l.limit = min(l.limit*4, largestPage)
	}
	return true, nil
}

func (l *listing) add(kv *mvccpb.KeyValue) {
	l.feed.shrink(kv)
	if l.feed.leases && l.feed.end != "" {
		if _, _, err := format.ParseKey(string(kv.Key[len(l.feed.key):])); err != nil {
			if l.junk++; l.junk > maxRejects || len(kv.Key) > maxKey {
				l.snap.more++
				return
			}
		}
	}
	l.snap.at.setWitness(kv)
	l.snap.kvs = append(l.snap.kvs, kv)
}

// holds reports whether kv was asked for. A server that sends another key must not mislead or end us.
func (f feed) holds(kv *mvccpb.KeyValue) bool {
	switch {
	case kv == nil:
		return false
	case f.end == "":
		return string(kv.Key) == f.key
	}
	return bytes.HasPrefix(kv.Key, []byte(f.key))
}

// shrink drops a value that no lease has.
func (f feed) shrink(kv *mvccpb.KeyValue) {
	if f.leases && len(kv.Value) > format.MaxValue {
		kv.Value = oversized
	}
}

// warnUnrequested warns once of a server that sends what it was not asked for.
func (m *Manager) warnUnrequested(kv *mvccpb.KeyValue) {
	if kv == nil {
		kv = &mvccpb.KeyValue{}
	}
	m.unrequestedOnce.Do(func() {
		m.log.Warn("ignoring a key that etcd was not asked for; check the etcd servers and what is between",
			"key", format.Clip(string(kv.Key)), "prefix", m.prefix)
	})
}
