package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// The store can be replaced while we run: restored from a backup, or started
// anew with an empty disk. Nobody deleted the keys that it lacks, and revisions
// of the former store have no meaning in it. This must not interrupt the pod
// network: peers are retained (stay in use) until they return (package peerset), and our
// own key is written again.
//
// A replaced store may have the same cluster ID, and may have reached a later
// revision. So a position has a witness, a key that exists at its revision.
// Example: we have followed the store up to revision 120, where the last change
// was that of /coreos.com/network/subnets/10.5.34.0-24. After a lost connection
// we read that key at revision 120. The same store returns it with ModRevision
// 120. A store that was restored from a backup of revision 80 rejects the
// request, as it has not reached revision 120, or returns another ModRevision,
// or no key.
//
// The methods of session (follow.go) run on the goroutine of follow.

// position is a point in the history of one store. Each feed has one, of its
// own goroutine (session.at).
type position struct {
	cluster uint64 // the store's ID
	rev     int64  // all changes of the feed's keys up to this revision are known; 0: none, list first
	stale   bool   // a watch cannot begin here, such as after a compaction: list first

	witness string // a key that exists at rev; "": none is known
	mod     int64  // the ModRevision of witness
}

// setWitness makes a key that was read at this position the position's witness.
func (p *position) setWitness(kv *mvccpb.KeyValue) { p.witness, p.mod = string(kv.Key), kv.ModRevision }

// advance moves the position behind an event, which was handed over.
func (p *position) advance(e *mvccpb.Event) {
	p.rev = max(p.rev, e.Kv.ModRevision)
	switch {
	case e.Type == mvccpb.PUT:
		p.setWitness(e.Kv)
	case string(e.Kv.Key) == p.witness: // the witness was deleted
		p.witness = ""
	}
}

// passOwnWrite moves the position behind our last write of the feed's key, and reports
// whether the position was before that write. The watch may have ended before it has
// handed the write over. Without this, a store that was restored from a backup without the
// write would pass the check, because it has the position before the write, too.
func (s *session) passOwnWrite() (moved bool) {
	if s.feed.written == nil || s.at.rev == 0 {
		return false
	}
	mod := s.feed.written()
	if mod <= s.at.rev {
		return false
	}
	s.at.rev, s.at.witness, s.at.mod = mod, s.feed.key, mod
	return true
}

// replacedBy reports whether o, which was read later, is a position of another store than
// p, or of an older one: revisions of a store only grow. Nothing replaces the zero position.
func (p position) replacedBy(o position) bool {
	return p.rev != 0 && (p.cluster != o.cluster || o.rev < p.rev)
}

// rewound reports whether a list (kvs) that was read after p comes from an older store,
// because it has an older version of the witness. This detects a store restored with
// --bump-revision, whose revisions are later than ours. If the list lacks the witness, the
// store need not be another one: someone may have deleted the key.
func (p position) rewound(kvs []*mvccpb.KeyValue) bool {
	return slices.ContainsFunc(kvs, func(kv *mvccpb.KeyValue) bool {
		return string(kv.Key) == p.witness && kv.ModRevision < p.mod
	})
}

// check finds out, after a lost connection, whether our position is one of this
// store. It returns nil if it is: the watch can go on from there. It returns errRelist,
// with which follow lists at once, if it is not, or if that cannot be found out. Then
// replaced or stale is set. After another error, follow tries again after a pause.
func (s *session) check(ctx context.Context) error {
	if s.at.witness == "" { // the feed had no key, or the witness was deleted
		s.at.stale = true
		return errRelist
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout())
	defer cancel()
	resp, err := s.m.client.Get(ctx, s.at.witness, clientv3.WithRev(s.at.rev), clientv3.WithKeysOnly())
	switch {
	case errors.Is(err, rpctypes.ErrCompacted):
		s.at.stale = true // a list shows whether the store was replaced
		return errRelist
	case errors.Is(err, rpctypes.ErrFutureRev):
		s.replaced = true
		return errRelist
	case err != nil:
		return fmt.Errorf("check %s: %w", s.at.witness, s.m.denied(err, "read", s.at.witness, false))
	// The request is for one key at revision s.at.rev, where this store had it with s.at.mod.
	case s.at.replacedBy(positionOf(resp.Header)) || len(resp.Kvs) != 1 || resp.Kvs[0].ModRevision != s.at.mod:
		s.replaced = true
		return errRelist
	}
	return nil
}
