package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"flannel/cmd/flannel-lab/lab"
)

// retains waits until a node retains count peers, according to its metrics and
// its status.
func retains(t *testing.T, l *lab.Lab, n *lab.Node, count int) {
	t.Helper()
	within(t, fmt.Sprintf("%s retains %d peers", n.Name, count), func() error {
		if got := numbers(t, n)["flanneld_retained_peers"]; got != float64(count) {
			return fmt.Errorf("flanneld_retained_peers is %v", got)
		}
		if count == 0 {
			return silent(t, n, `"retained"`, l.Flanneld(), "status", "--json")
		}
		return says(t, n, fmt.Sprintf(`"count": %d,`, count), l.Flanneld(), "status", "--json")
	})
}

// Somebody deletes all leases of a cluster. No packet is lost, and all leases
// are restored.
func TestAllLeasesDeleted(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 7, Retain: 120}, `{"Type":"vxlan"}`)
	a, b := pair(t, l)
	must(t, errors.Join(reach(t.Context(), a, b), reach(t.Context(), b, a)))
	before := map[*lab.Node]string{}
	keys := map[*lab.Node]string{}
	for _, n := range l.Nodes {
		within(t, n.Name+" is up to date", func() error { return checkSynced(t, l, n) })
		var err error
		before[n], err = entries(t.Context(), n)
		must(t, err)
		keys[n], _ = leaseOf(t, l, n)
	}
	f := flood(t, a, b)
	_, err := etcdClient(t, l).Delete(t.Context(), subnetKeys, clientv3.WithPrefix())
	must(t, err)
	for _, n := range l.Nodes { // by the log, because some leases may be restored already
		logged(t, n, 0, "cause=mass-withdrawal", "retained=6")
	}
	for _, n := range l.Nodes {
		withinOf(t, 3*time.Minute, n.Name+" has restored its lease", func() error {
			key, _, err := keyOf(t, l, n)
			if err == nil && key != keys[n] {
				err = fmt.Errorf("its lease is %s, was %s", key, keys[n])
			}
			return err
		})
	}
	for _, n := range l.Nodes {
		retains(t, l, n, 0)
		becomesReady(t, n)
		if after, err := entries(t.Context(), n); err != nil || after != before[n] {
			t.Errorf("the state of %s is (%v)\n%s\nand was\n%s", n.Name, err, after, before[n])
		}
		once(t, n, 0, "cause=mass-withdrawal") // all leases were deleted at once
	}
	f.checkNoLoss(t, "all leases deleted and restored")
}

// A few deleted peers are removed immediately. If many are deleted, they are
// retained. One of these is removed when another node gets its address, the
// others when the operator accepts the withdrawal, regardless of the remaining
// time.
func TestWithdrawalAccepted(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 1, Family: lab.Dual, Retain: 3600}, `{"Type":"vxlan"}`+apart)
	n := l.Nodes[0]
	for i := range 9 {
		key, v := fakePeer(i+1, 1)
		putLease(t, l, key, v)
	}
	waitSynced(t, l, n)
	remove := func(first, last int) {
		for i := first; i <= last; i++ {
			key, _ := fakePeer(i, 1)
			putLease(t, l, key, nil)
		}
	}
	remove(1, 3)
	waitSynced(t, l, n)
	before, err := entries(t.Context(), n)
	must(t, err)

	remove(4, 8)
	retains(t, l, n, 8) // including the first three, because all belong to one withdrawal
	if err := checkSynced(t, l, n); err == nil {
		t.Error("the retained peers have no entries")
	}
	after, err := entries(t.Context(), n)
	must(t, err)
	for line := range strings.Lines(before) {
		if !strings.Contains(after, line) {
			t.Errorf("it lost the entry %s", line)
		}
	}
	_, four := fakePeer(4, 1)
	key, another := fakePeer(20, 1)
	another.PublicIP = four.PublicIP
	putLease(t, l, key, another)
	retains(t, l, n, 7)

	for _, want := range []int{7, 0} {
		must(t, says(t, n, fmt.Sprintf(`"dropped": %d`, want), l.Flanneld(), "accept-withdrawal", "--json")) // the command does it
		waitSynced(t, l, n)
	}
	retains(t, l, n, 0)
}

// A daemon that starts while the store is empty does not know the peers, but
// the kernel has their entries. No packet is lost, and when the peers are back,
// nothing is retained any more.
func TestStartWithEmptyStore(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 7, Retain: 3600}, `{"Type":"vxlan"}`)
	a, b := pair(t, l)
	must(t, errors.Join(reach(t.Context(), a, b), reach(t.Context(), b, a)))
	before := map[*lab.Node]string{}
	for _, n := range l.Nodes {
		waitSynced(t, l, n)
		var err error
		before[n], err = entries(t.Context(), n)
		must(t, err)
	}
	f := flood(t, a, b)
	for _, n := range l.Nodes {
		must(t, n.Kill())
	}
	_, err := etcdClient(t, l).Delete(t.Context(), subnetKeys, clientv3.WithPrefix())
	must(t, err)
	first := l.Nodes[0]
	mark := len(first.Log())
	must(t, first.Start())
	logged(t, first, mark, "cause=missing-at-start", "retained=6", "present=0")
	retains(t, l, first, 6)
	becomesReady(t, first)
	if after, err := entries(t.Context(), first); err != nil || after != before[first] {
		t.Errorf("the state of %s is (%v)\n%s\nand was\n%s", first.Name, err, after, before[first])
	}
	for _, n := range l.Nodes[1:] {
		must(t, n.Start())
	}
	for _, n := range l.Nodes {
		must(t, n.Ready(t.Context()))
		retains(t, l, n, 0)
		waitSynced(t, l, n)
		if after, err := entries(t.Context(), n); err != nil || after != before[n] {
			t.Errorf("the state of %s is (%v)\n%s\nand was\n%s", n.Name, err, after, before[n])
		}
	}
	f.checkNoLoss(t, "started with an empty store")
}

// Peers that are retained at a start are removed when another node gets their
// address, or when the operator accepts the withdrawal. Until then, the next
// start retains them again. Afterwards nothing is retained, and a few deleted
// peers are removed immediately.
func TestWithdrawalBeforeStartAccepted(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 1, Family: lab.Dual, Retain: 3600}, `{"Type":"vxlan"}`+apart)
	n := l.Nodes[0]
	startWithout := func(gone ...int) {
		t.Helper()
		must(t, n.Kill())
		for _, i := range gone {
			key, _ := fakePeer(i, 1)
			putLease(t, l, key, nil)
		}
		must(t, n.Start())
		must(t, n.Ready(t.Context()))
	}
	put := func(first, last int) {
		t.Helper()
		for i := first; i <= last; i++ {
			key, v := fakePeer(i, 1)
			putLease(t, l, key, v)
		}
		waitSynced(t, l, n)
	}
	put(1, 9)
	before, err := entries(t.Context(), n)
	must(t, err)
	startWithout(1, 2, 3, 4, 5, 6, 7, 8)
	retains(t, l, n, 16) // eight peers with a subnet in each family
	after, err := entries(t.Context(), n)
	must(t, err)
	if after != before {
		t.Errorf("the entries are\n%s\nand were\n%s", after, before)
	}
	_, four := fakePeer(4, 1)
	key, another := fakePeer(20, 1)
	another.PublicIP, another.PublicIPv6 = four.PublicIP, four.PublicIPv6
	putLease(t, l, key, another)
	retains(t, l, n, 14)
	startWithout()
	retains(t, l, n, 14)

	for _, want := range []int{14, 0} {
		must(t, says(t, n, fmt.Sprintf(`"dropped": %d`, want), l.Flanneld(), "accept-withdrawal", "--json")) // the command does it
		waitSynced(t, l, n)
	}
	retains(t, l, n, 0)
	put(1, 3)
	startWithout(1, 2, 3)
	waitSynced(t, l, n)
	retains(t, l, n, 0)
}
