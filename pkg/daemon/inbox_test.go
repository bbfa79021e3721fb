package daemon

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"flannel/pkg/reconcile"
	"flannel/subnet"
)

// The loop takes sets when it can: however many came meanwhile, the changes lead from the one that it took last to the
// latest one. A node that joins again begins anew.
func TestChangesOfSeveralSetsAreOne(t *testing.T) {
	in := newInbox()
	a, b, c := leaseAt(1, "vxlan"), leaseAt(2, "vxlan"), leaseAt(3, "vxlan")
	again := *b
	var taken []*subnet.Lease
	take := func(when string, want ...*subnet.Lease) {
		t.Helper()
		set, complete := in.takePeers()
		if taken = reconcile.ApplyChanges(taken, set.Changes, subnet.Compare); !complete || !slices.Equal(taken, set.Leases) || !slices.Equal(taken, want) {
			t.Errorf("%s: %d changes lead to %v; the leases are %v, complete: %t", when, len(set.Changes), taken, set.Leases, complete)
		}
	}
	put := func(leases []*subnet.Lease, made ...reconcile.Change[subnet.Lease]) {
		in.setPeers(subnet.Set{Leases: leases, Changes: made})
	}
	put([]*subnet.Lease{a, b})
	if set, _ := in.takePeers(); len(set.Changes) != 0 || len(set.Leases) != 2 {
		t.Errorf("the first set: %d leases, %d changes", len(set.Leases), len(set.Changes))
	}
	taken = []*subnet.Lease{a, b}
	put([]*subnet.Lease{a, b, c}, reconcile.Change[subnet.Lease]{New: c})
	put([]*subnet.Lease{a, &again, c}, reconcile.Change[subnet.Lease]{Old: b, New: &again})
	put([]*subnet.Lease{&again, c}, reconcile.Change[subnet.Lease]{Old: a})
	put([]*subnet.Lease{c}, reconcile.Change[subnet.Lease]{Old: &again})
	if set, _, _ := in.marked(); len(set.Leases) != 1 {
		t.Error("a look at the peers is not the latest set")
	}
	take("four sets", c)
	take("none", c)
	put([]*subnet.Lease{b, c}, reconcile.Change[subnet.Lease]{New: b})
	in.reset()
	if set, complete := in.takePeers(); complete || len(set.Changes) > 0 {
		t.Errorf("joining again: complete %t, %d changes", complete, len(set.Changes))
	}
}

// A lease that is gone does not stay in memory with the changes that the loop has taken.
func TestInboxForgetsChanges(t *testing.T) {
	in := newInbox()
	l := leaseAt(1, "vxlan")
	former := weak.Make(l)
	in.setPeers(subnet.Set{Leases: []*subnet.Lease{l}})
	in.setPeers(subnet.Set{Changes: []reconcile.Change[subnet.Lease]{{Old: l}}})
	if set, _ := in.takePeers(); len(set.Changes) != 1 {
		t.Fatalf("%d changes, want one", len(set.Changes))
	}
	l = nil
	if runtime.GC(); former.Value() != nil {
		t.Error("the lease is in memory")
	}
	runtime.KeepAlive(in)
}

// A lease that was requested again while another one was written is written again, and so is one after an error: the store
// may have either.
func TestPublishesTheFormerLeaseAgain(t *testing.T) {
	for _, result := range []error{nil, errors.New("invalid")} {
		in := newInbox()
		former, other := *leaseAt(1, "vxlan"), *leaseAt(2, "vxlan")
		in.requestPublish(former)
		in.setPublished(in.unpublished(), nil)
		if known, _ := in.requestPublish(former); !known || in.unpublished() != nil {
			t.Fatal("the first lease is not published")
		}
		in.requestPublish(other)
		writing := in.unpublished()
		in.requestPublish(former)
		in.setPublished(writing, result)
		if l := in.unpublished(); l == nil || !l.Equal(&former) {
			t.Errorf("after %v from the other one, the next to write is %v", result, l)
		}
	}
}

// refusingStore answers after a moment, and does not take a lease.
type refusingStore struct {
	movingManager
	asked atomic.Int64
	takes atomic.Bool // it takes leases
}

func (s *refusingStore) Publish(context.Context, subnet.Lease) error {
	s.asked.Add(1)
	time.Sleep(5 * time.Millisecond)
	if s.takes.Load() {
		return nil
	}
	return errors.New("the lease is invalid")
}

// A store that does not take the lease is asked with growing pauses, however many passes there are, and at once when the
// lease is another one.
func TestRefusedLeaseIsPublishedMoreRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _, _ := newDaemon(t)
		_, l := startedNode(t, d)
		s := &refusingStore{}
		d.Manager, d.Settings.CompareAll = s, time.Hour
		ctx, cancel := context.WithCancel(t.Context())
		var tasks sync.WaitGroup
		tasks.Go(func() { _ = d.newLoop(l.node, l.in).run(ctx) })
		tasks.Go(func() { _ = d.publish(ctx, l.in) })
		time.Sleep(10 * time.Minute)
		asked := s.asked.Load()
		if asked < 10 || asked > 25 { // about 1 + 2 + … + 32 seconds, and then once a minute
			t.Errorf("asked %d times in 10 minutes", asked)
		}
		l.in.setConfig([]byte("two 10.5.0.0/16"))
		if time.Sleep(100 * time.Millisecond); s.asked.Load() != asked+1 {
			t.Errorf("with another lease, asked %d times", s.asked.Load()-asked)
		}
		s.takes.Store(true)
		if time.Sleep(2 * firstRepublish); !d.Board.Now().Ready {
			t.Errorf("the store takes the lease: %v", d.Board.Now().Problem)
		}
		cancel()
		tasks.Wait()
	})
}
