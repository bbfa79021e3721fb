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

// retains waits until a node retains so many peers, by its metrics and its status.
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

// Somebody deletes all leases of a cluster: no packet is lost, and in the end all are there again.
func TestAllLeasesDeleted(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 7, Retain: 120}, `{"Type":"vxlan"}`)
	a, b := pair(t, l)
	must(t, errors.Join(reach(t.Context(), a, b), reach(t.Context(), b, a)))
	before := map[*lab.Node]string{}
	keys := map[*lab.Node]string{}
	for _, n := range l.Nodes {
		within(t, n.Name+" is up to date", func() error { return outOfStep(t, l, n) })
		var err error
		before[n], err = entries(t.Context(), n)
		must(t, err)
		keys[n], _ = leaseOf(t, l, n)
	}
	f := flood(t, a, b)
	_, err := etcdClient(t, l).Delete(t.Context(), subnetKeys, clientv3.WithPrefix())
	must(t, err)
	for _, n := range l.Nodes { // some may be back by the time that a slow machine asks
		logged(t, n, 0, "cause=mass-withdrawal", "retained=6")
	}
	for _, n := range l.Nodes {
		withinOf(t, 3*time.Minute, n.Name+" has put its lease back", func() error {
			key, _, err := keyOf(t, l, n)
			if err == nil && key != keys[n] {
				err = fmt.Errorf("its lease is %s now, and was %s", key, keys[n])
			}
			return err
		})
	}
	for _, n := range l.Nodes {
		retains(t, l, n, 0)
		must(t, ready(t, n))
		if after, err := entries(t.Context(), n); err != nil || after != before[n] {
			t.Errorf("%s has (%v)\n%s\nand had\n%s", n.Name, err, after, before[n])
		}
		once(t, n, 0, "cause=mass-withdrawal")
	}
	f.lostNone(t, "all leases deleted, and put back")
}

// A few peers go at once. Of many, one goes when another node has its address, and the others when the operator says
// so: without waiting, whatever is left of their time.
func TestWithdrawalAccepted(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 1, Family: lab.Dual, Retain: 3600}, `{"Type":"vxlan"}`+apart)
	n := l.Nodes[0]
	for i := range 9 {
		key, v := phantom(i+1, 1)
		putLease(t, l, key, v)
	}
	inStep(t, l, n)
	remove := func(first, last int) {
		for i := first; i <= last; i++ {
			key, _ := phantom(i, 1)
			putLease(t, l, key, nil)
		}
	}
	remove(1, 3)
	inStep(t, l, n)
	before, err := entries(t.Context(), n)
	must(t, err)

	remove(4, 8)
	retains(t, l, n, 8) // the first three, too: they went together with them
	if err := outOfStep(t, l, n); err == nil {
		t.Error("the entries are those of the only lease")
	}
	now, err := entries(t.Context(), n)
	must(t, err)
	for line := range strings.Lines(before) {
		if !strings.Contains(now, line) {
			t.Errorf("it no longer has %s", line)
		}
	}
	_, four := phantom(4, 1)
	key, another := phantom(20, 1)
	another.PublicIP = four.PublicIP
	putLease(t, l, key, another)
	retains(t, l, n, 7)

	for _, want := range []int{7, 0} {
		must(t, says(t, n, fmt.Sprintf(`"dropped": %d`, want), l.Flanneld(), "accept-withdrawal", "--json"))
		inStep(t, l, n)
	}
	retains(t, l, n, 0)
}

// A daemon that starts while the store is empty has no memory of the peers; the kernel has. No packet is lost, and when
// the peers are back, nothing is left of it.
func TestStartWithEmptyStore(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 7, Retain: 3600}, `{"Type":"vxlan"}`)
	a, b := pair(t, l)
	must(t, errors.Join(reach(t.Context(), a, b), reach(t.Context(), b, a)))
	before := map[*lab.Node]string{}
	for _, n := range l.Nodes {
		inStep(t, l, n)
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
	must(t, ready(t, first))
	if now, err := entries(t.Context(), first); err != nil || now != before[first] {
		t.Errorf("%s has (%v)\n%s\nand had\n%s", first.Name, err, now, before[first])
	}
	for _, n := range l.Nodes[1:] {
		must(t, n.Start())
	}
	for _, n := range l.Nodes {
		must(t, n.Ready(t.Context()))
		retains(t, l, n, 0)
		inStep(t, l, n)
		if after, err := entries(t.Context(), n); err != nil || after != before[n] {
			t.Errorf("%s has (%v)\n%s\nand had\n%s", n.Name, err, after, before[n])
		}
	}
	f.lostNone(t, "started with an empty store")
}

// What is retained at a start goes when another node has its address, and when the operator says so. Until then the next
// start retains it again; afterwards there is nothing to retain, and a few peers go at once.
func TestWithdrawalBeforeStartAccepted(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 1, Family: lab.Dual, Retain: 3600}, `{"Type":"vxlan"}`+apart)
	n := l.Nodes[0]
	startWithout := func(gone ...int) {
		t.Helper()
		must(t, n.Kill())
		for _, i := range gone {
			key, _ := phantom(i, 1)
			putLease(t, l, key, nil)
		}
		must(t, n.Start())
		must(t, n.Ready(t.Context()))
	}
	put := func(first, last int) {
		t.Helper()
		for i := first; i <= last; i++ {
			key, v := phantom(i, 1)
			putLease(t, l, key, v)
		}
		inStep(t, l, n)
	}
	put(1, 9)
	before, err := entries(t.Context(), n)
	must(t, err)
	startWithout(1, 2, 3, 4, 5, 6, 7, 8)
	retains(t, l, n, 16) // eight peers, each with a subnet of each family
	now, err := entries(t.Context(), n)
	must(t, err)
	if now != before {
		t.Errorf("it has\n%s\nand had\n%s", now, before)
	}
	_, four := phantom(4, 1)
	key, another := phantom(20, 1)
	another.PublicIP, another.PublicIPv6 = four.PublicIP, four.PublicIPv6
	putLease(t, l, key, another)
	retains(t, l, n, 14)
	startWithout()
	retains(t, l, n, 14)

	for _, want := range []int{14, 0} {
		must(t, says(t, n, fmt.Sprintf(`"dropped": %d`, want), l.Flanneld(), "accept-withdrawal", "--json"))
		inStep(t, l, n)
	}
	retains(t, l, n, 0)
	put(1, 3)
	startWithout(1, 2, 3)
	inStep(t, l, n)
	retains(t, l, n, 0)
}
