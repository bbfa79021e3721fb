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
)

// Anyone with write permission can store values of up to etcd's request limit
// (1.5 MB by default) under any number of keys. What the daemon keeps in memory
// is bounded: one message at a time, maxValue bytes of each value, and
// the first maxRejects of the keys that are not those of leases.
const (
	// maxMessage bounds one response of etcd, in bytes. It exceeds the default
	// request limit, so that every value fits.
	maxMessage = 4 << 20
	// firstPage and largestPage bound the keys of one page. The page size grows
	// while pages are small in bytes: 500 of the largest leases fit into a message,
	// and 8,000 usual ones have 2 MB.
	firstPage, largestPage = 500, 8000
	// maxKey is the longest invalid key that is reported by name, in bytes. Keys of
	// leases have less than 100.
	maxKey = 2048
	// maxRejects is how many invalid keys, which are not those of leases, are reported by
	// name. The others are only counted.
	maxRejects = 1000
)

// oversized replaces every value above maxValue. decodeValue rejects it
// for its length.
var oversized = make([]byte, maxValue+1)

// snapshot is a complete list of a feed's keys (follow.go), and its position in the
// store (replaced.go).
type snapshot struct {
	kvs  []*mvccpb.KeyValue // in the order of the keys; too large values are replaced by oversized
	at   position           // of the list
	read time.Time          // when the first page arrived; zero: kvs was not read, and is empty

	unnamed int // number of invalid keys that are not in kvs
}

// list reads all keys of f at one revision, in pages. perPage bounds the time
// for each page, not for the whole list. opts must not change the keys, their
// order or the revision. It does not retry after an outage; its callers do, which
// are follow and Acquire.
func (m *Manager) list(ctx context.Context, f feed, perPage time.Duration, opts ...clientv3.OpOption) (*snapshot, error) {
	for try := 0; ; try++ {
		l := listing{m: m, feed: f, perPage: perPage, opts: opts, next: f.key, limit: firstPage}
		err := l.readAll(ctx)
		switch {
		case err == nil:
			return &l.snap, nil
		case errors.Is(err, rpctypes.ErrCompacted) && try < 3: // the revision of the first page was compacted: start again
			continue
		}
		return nil, fmt.Errorf("list %s: %w", f.key, m.denied(err, "read", f.key, f.end != ""))
	}
}

// listing is the state of a list that is being read.
type listing struct {
	m       *Manager
	feed    feed
	perPage time.Duration       // the time limit of a page
	opts    []clientv3.OpOption // of each page, from the caller of Manager.list

	next    string   // the key with which the next page begins
	limit   int64    // the largest number of its keys
	invalid int      // number of invalid keys so far
	snap    snapshot // what was read so far; at.rev is 0 before the first page
}

// readAll reads all pages into l.snap.
func (l *listing) readAll(ctx context.Context) error {
	for {
		resp, err := l.page(ctx)
		if err != nil {
			return err
		}
		more, err := l.take(resp)
		if err != nil || !more {
			return err
		}
	}
}

// page reads the next page. While the response exceeds maxMessage, it retries
// with fewer keys. If the value of a single key exceeds maxMessage, it reads the key
// without its value.
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

// get requests a page. The first one has revision 0, the latest; all others have the
// revision of the first.
func (l *listing) get(ctx context.Context, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, l.perPage)
	defer cancel()
	opts = append(opts, clientv3.WithLimit(l.limit), clientv3.WithRev(l.snap.at.rev))
	if l.feed.end != "" {
		opts = append(opts, clientv3.WithRange(l.feed.end))
	}
	return l.m.client.Get(ctx, l.next, append(opts, l.opts...)...)
}

// tooLarge reports whether the client library rejected a response for its size.
// An overloaded server uses the same gRPC code, but the client library turns
// that into an error of its own.
func tooLarge(err error) bool { return status.Code(err) == codes.ResourceExhausted }

// take adds a page to the list and reports whether there is another one. It also chooses
// the size of the next page. An error means that the list must begin again.
func (l *listing) take(resp *clientv3.GetResponse) (more bool, err error) {
	at := positionOf(resp.Header)
	switch {
	case l.snap.at.rev == 0:
		l.snap.at, l.snap.read = at, time.Now()
	case l.snap.at.replacedBy(at):
		return false, errors.New("store was replaced between two pages of a list")
	}
	size, last := 0, "" // bytes of the page, and its last key
	for _, kv := range resp.Kvs {
		if !l.feed.requested(kv) {
			l.m.warnUnrequested(kv)
			continue
		}
		size, last = size+len(kv.Key)+len(kv.Value), string(kv.Key)
		l.add(kv)
	}
	if !resp.More || l.feed.end == "" { // end "": the feed is a single key
		return false, nil
	}
	if last < l.next { // also "", if the page had no key
		return false, errors.New("etcd announced more keys and sent none")
	}
	l.next = last + "\x00"   // the first key after last in etcd's order, that of bytes
	if size < maxMessage/5 { // so that a page of four times as many keys probably fits
		l.limit = min(l.limit*4, largestPage)
	}
	return true, nil
}

// add adds one key to the list, unless it is an invalid key beyond the limits. Of the
// feeds, only that of all leases can have invalid keys (leases, and an end).
func (l *listing) add(kv *mvccpb.KeyValue) {
	l.feed.limitValue(kv)
	if l.feed.leases && l.feed.end != "" {
		if _, _, err := parseKey(string(kv.Key[len(l.feed.key):])); err != nil {
			if l.invalid++; l.invalid > maxRejects || len(kv.Key) > maxKey {
				l.snap.unnamed++
				return
			}
		}
	}
	l.snap.at.setWitness(kv) // the last key stays: by it, check recognizes the store later
	l.snap.kvs = append(l.snap.kvs, kv)
}

// requested reports whether kv is one of the keys of f. A faulty server may
// send other keys, or nil.
func (f feed) requested(kv *mvccpb.KeyValue) bool {
	if f.end == "" {
		return kv != nil && string(kv.Key) == f.key
	}
	return kv != nil && bytes.HasPrefix(kv.Key, []byte(f.key))
}

// limitValue replaces a value that is too large for a lease.
func (f feed) limitValue(kv *mvccpb.KeyValue) {
	if f.leases && len(kv.Value) > maxValue {
		kv.Value = oversized
	}
}

// warnUnrequested logs once that the server sends keys that were not requested.
func (m *Manager) warnUnrequested(kv *mvccpb.KeyValue) {
	if kv == nil {
		kv = &mvccpb.KeyValue{}
	}
	m.unrequestedOnce.Do(func() {
		m.log.Warn("ignoring a key that was not requested from etcd; check the etcd servers and any proxy",
			"key", clipText(string(kv.Key)), "prefix", m.prefix)
	})
}
