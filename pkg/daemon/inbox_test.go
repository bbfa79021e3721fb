package daemon

import (
	"runtime"
	"slices"
	"testing"
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
