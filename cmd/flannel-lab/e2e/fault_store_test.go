package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"flannel/cmd/flannel-lab/lab"
)

// A daemon is killed at random times, also during its start, while leases are
// added, changed and removed. The next one syncs everything, and no packet is
// lost.
func TestKilledUnderChurn(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2, Family: lab.Dual}, `{"Type":"vxlan"}`+apart)
	a, b := pair(t, l)
	must(t, errors.Join(reach(t.Context(), a, b), reach(t.Context(), b, a)))
	p := newBaseline(t, l)
	f := flood(t, a, b)
	stop := storm(t, l, 200)
	rounds, early := 0, 0
	for end := time.Now().Add(inFull(10*time.Second, 5*time.Minute)); time.Now().Before(end); rounds++ {
		n := l.Nodes[rand.IntN(2)]
		time.Sleep(rand.N(600 * time.Millisecond)) // so that the kill comes at any moment
		if ready(t, n) != nil {
			early++
		}
		must(t, n.Kill())
		time.Sleep(rand.N(100 * time.Millisecond)) // so that the kill comes at any moment
		must(t, n.Start())
	}
	stop()
	t.Logf("killed %d times, %d of them before it was ready", rounds, early)
	p.check(t)
	f.checkNoLoss(t, "killed under churn")
}

// Outages of etcd and of the network between etcd and a node. The network stays
// as it is, drift is repaired meanwhile, changes follow within seconds, and no
// packet is lost.
func TestEtcdDiesUnderChurn(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2, Family: lab.Dual}, `{"Type":"vxlan"}`+apart)
	n := l.Nodes[0]
	a, b := pair(t, l)
	must(t, errors.Join(reach(t.Context(), a, b), reach(t.Context(), b, a)))
	p := newBaseline(t, l)
	f := flood(t, a, b)

	stop := storm(t, l, 200)
	for range inFull(3, 30) {
		time.Sleep(rand.N(1500 * time.Millisecond)) // so that the kill comes at any moment
		must(t, l.Etcd.Kill())
		time.Sleep(rand.N(1500 * time.Millisecond)) // so that the kill comes at any moment
		must(t, l.Etcd.Start(t.Context()))
	}
	stop()
	p.check(t)

	key, v := fakePeer(126, 1)
	putLease(t, l, key, v)
	waitSynced(t, l, n)

	// While etcd is down, drift is repaired. Afterwards the next change arrives
	// within 10 s.
	before, err := entries(t.Context(), n)
	must(t, err)
	marks := map[*lab.Node]int{}
	for _, n := range l.Nodes {
		within(t, n.Name+" has recovered from the last outage", func() error {
			return silent(t, n, `"outage"`, l.Flanneld(), "status", "--json")
		})
		marks[n] = len(n.Log())
	}
	must(t, l.Etcd.Stop(t.Context()))
	away := inFull(8*time.Second, time.Minute)
	time.Sleep(away / 2)                 // of the outage
	routeRestored(t, n, "10.5.126.0/24") // not of a pinged pod, which would lose packets
	time.Sleep(away / 2)                 // of the outage
	if after, err := entries(t.Context(), n); err != nil || after != before {
		t.Errorf("without etcd the entries changed (%v) from\n%s\nto\n%s", err, before, after)
	}
	for _, n := range l.Nodes {
		logged(t, n, marks[n], "cause=store-silent")
		once(t, n, marks[n], "cause=store-silent")
	}
	must(t, l.Etcd.Start(t.Context()))
	key, v = fakePeer(125, 1)
	putLease(t, l, key, v)
	for _, n := range l.Nodes {
		within(t, fmt.Sprintf("%s has the lease that followed %v without etcd", n.Name, away), func() error {
			return says(t, n, strings.Split(key, "-")[0], "ip", "route")
		})
	}
	p.check(t)

	cutOffFromEtcd(t, l, n, p)
	f.checkNoLoss(t, "etcd killed under churn, away, cut off")
}

// cutOffFromEtcd drops packets between a node and etcd. The history of what
// happens meanwhile is compacted before the packets pass again.
func cutOffFromEtcd(t *testing.T, l *lab.Lab, n *lab.Node, p *baseline) {
	for i := 1; i < 128; i++ {
		key, v := fakePeer(i, 1)
		if i > 70 {
			v = nil
		}
		putLease(t, l, key, v)
	}
	waitSynced(t, l, n)
	before, err := entries(t.Context(), n)
	must(t, err)
	in(t, n.Namespaces, `nft 'table inet hole {
		chain out { type filter hook output priority -300; tcp dport 2379 drop; }
		chain in { type filter hook input priority -300; tcp sport 2379 drop; }
	}'`)
	silent := inFull(16*time.Second, 40*time.Second) // longer than the 13 s after which flanneld notices
	until := time.Now().Add(silent)
	for i := range 120 {
		key, v := fakePeer(i+1, 2)
		if i < 50 {
			v = nil
		}
		putLease(t, l, key, v)
	}
	must(t, l.Etcd.Compact(t.Context()))
	waitSynced(t, l, l.Nodes[1])
	time.Sleep(time.Until(until)) // the end of the outage
	if after, err := entries(t.Context(), n); err != nil || after != before {
		t.Errorf("cut off from etcd the entries changed (%v) from\n%s\nto\n%s", err, before, after)
	}
	in(t, n.Namespaces, "nft delete table inet hole")
	took := within(t, fmt.Sprintf("%s has caught up after an outage of %v", n.Name, silent), func() error {
		got, err := entries(t.Context(), n)
		if want := entriesOf(t, l, n); err == nil && got != want {
			stale, missing := differences(got, want)
			err = fmt.Errorf("%d entries are stale, %d missing", stale, missing)
		}
		return err
	})
	t.Logf("50 leases deleted, 20 changed, 50 added, compacted: synced %v after the outage", took)
	p.check(t)
}

// An etcd that is restored from a snapshot lacks the latest changes, and one
// that lost its disk lacks everything. Entries in the kernel stay, the daemons
// log it, and the nodes publish their leases again.
func TestEtcdComesBackOlderOrEmpty(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2, Family: lab.Dual}, `{"Type":"vxlan"}`+apart)
	n := l.Nodes[0]
	a, b := pair(t, l)
	must(t, errors.Join(reach(t.Context(), a, b), reach(t.Context(), b, a)))
	p := newBaseline(t, l)
	put := func(first, last, generation int) map[string]value { return putFakePeers(t, l, first, last, generation) }
	holds := func(why string, lacking map[string]value) { t.Helper(); p.hold(t, l, why, lacking) }
	put(1, 30, 1)
	must(t, l.Etcd.Save(t.Context()))
	put(1, 10, 2)
	newer := put(31, 40, 1)
	for i := 21; i <= 25; i++ {
		key, _ := fakePeer(i, 1)
		putLease(t, l, key, nil)
	}
	holds("has all", nil)
	f := flood(t, a, b)
	marks := map[*lab.Node]int{}
	mark := func() {
		for _, n := range l.Nodes {
			marks[n] = len(n.Log())
		}
	}
	loggedOnce := func() {
		t.Helper()
		for _, n := range l.Nodes {
			once(t, n, marks[n], "cause=store-replaced")
		}
	}
	mark()
	must(t, l.Etcd.Restore(t.Context()))
	holds("retains what the restored store lacks, and follows the rest", newer)
	loggedOnce()
	put(31, 40, 3)
	holds("has the leases that were restored", nil)
	p.check(t)

	every := leases(t, l)
	before, err := entries(t.Context(), n)
	must(t, err)
	mark()
	must(t, l.Etcd.Replace(t.Context()))
	holds("retains what the empty store lacks", every)
	if after, err := entries(t.Context(), n); err != nil || after != before {
		t.Errorf("with an empty store the entries changed (%v) from\n%s\nto\n%s", err, before, after)
	}
	loggedOnce()
	routeRestored(t, n, "10.5.35.0/24")
	must(t, l.SetConfig(t.Context(), l.Config(`{"Type":"vxlan"}`+apart)))
	put(1, 20, 4)
	for i := 1; i <= 20; i++ {
		key, v := fakePeer(i, 4)
		every[key] = *v
	}
	holds("follows those that came back and keeps the others", every)
	put(21, 40, 4)
	for i := 1; i <= 40; i += 2 { // in the new store a deletion is one
		key, _ := fakePeer(i, 4)
		putLease(t, l, key, nil)
	}
	holds("follows the new store", nil)
	p.check(t)
	f.checkNoLoss(t, "etcd restored, and replaced by an empty one")
}

func putFakePeers(t *testing.T, l *lab.Lab, first, last, generation int) map[string]value {
	t.Helper()
	some := map[string]value{}
	for i := first; i <= last; i++ {
		key, v := fakePeer(i, generation)
		putLease(t, l, key, v)
		some[key] = *v
	}
	return some
}

// hold waits until every node has its lease, and has the entries of the store
// and of the leases that the store lacks.
func (p *baseline) hold(t *testing.T, l *lab.Lab, why string, lacking map[string]value) {
	t.Helper()
	for _, n := range l.Nodes {
		within(t, n.Name+" has published its lease again", func() error {
			key, _, err := keyOf(t, l, n)
			if err == nil && key != p.keys[n] {
				err = fmt.Errorf("as %s, was %s", key, p.keys[n])
			}
			return err
		})
	}
	for _, n := range l.Nodes {
		all := leases(t, l)
		for key, v := range lacking {
			all[key] = v
		}
		eventually(t, n.Name+" "+why, entriesFrom(all, n),
			func(ctx context.Context) (string, error) { return entries(ctx, n) })
		becomesReady(t, n)
	}
}
