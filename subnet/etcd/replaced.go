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

// A store can be replaced under us: restored from a backup, or started anew with an empty disk. What is missing in it
// was not deleted by anybody, and revisions of the former store mean nothing in it. It must not cost the cluster its
// network: peers stay until they come back, and our own key is put back. This file notices it.

// position is a point in the history of one store.
type position struct {
	cluster uint64
	rev     int64 // everything up to this revision is known; 0: nothing is
	stale   bool  // the watch cannot go on from here

	witness string // a key that exists at rev, empty if none is known
	mod     int64  // its last change
}

// seen makes a key the witness of the position that it was read at.
func (p *position) setWitness(kv *mvccpb.KeyValue) { p.witness, p.mod = string(kv.Key), kv.ModRevision }

// handle moves the position behind an event.
func (p *position) advance(e *mvccpb.Event) {
	p.rev = max(p.rev, e.Kv.ModRevision)
	switch {
	case e.Type == mvccpb.PUT:
		p.setWitness(e.Kv)
	case string(e.Kv.Key) == p.witness:
		p.witness = ""
	}
}

// replacedBy tells whether a store that stands at o cannot be the one of p: histories only grow.
func (p position) replacedBy(o position) bool {
	return p.rev != 0 && (p.cluster != o.cluster || o.rev < p.rev)
}

// rewound reports whether a list that should be later than p is of an older store: a change that we know of never
// handle there. One that was restored from a snapshot says nothing else of it when its revisions were bumped; if the
// snapshot lacks the witness, it cannot be told from a store in which somebody deleted much.
func (p position) rewound(kvs []*mvccpb.KeyValue) bool {
	return slices.ContainsFunc(kvs, func(kv *mvccpb.KeyValue) bool {
		return string(kv.Key) == p.witness && kv.ModRevision < p.mod
	})
}

// check asks, after a lost connection, whether the store is still the one of our position: what we know to have been
// there at that revision must be in its history. A new store may have the same cluster ID, and may have come as far.
func (s *session) check(ctx context.Context) error {
	if s.at.witness == "" {
		s.at.stale = true
		return errRelist
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	resp, err := s.m.client.Get(ctx, s.at.witness, clientv3.WithRev(s.at.rev), clientv3.WithKeysOnly())
	switch {
	case errors.Is(err, rpctypes.ErrCompacted):
		s.at.stale = true // the list will show
		return errRelist
	case errors.Is(err, rpctypes.ErrFutureRev):
		s.replaced = true
		return errRelist
	case err != nil:
		return fmt.Errorf("check %s: %w", s.at.witness, s.m.denied(err, "read", s.at.witness, false))
	case s.at.replacedBy(positionOf(resp.Header)) || len(resp.Kvs) != 1 || resp.Kvs[0].ModRevision != s.at.mod:
		s.replaced = true
		return errRelist
	}
	return nil
}
