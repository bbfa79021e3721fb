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

// A daemon that is killed at any moment, its first ones included, while leases come, change and go: the next one brings
// everything in step, and no packet notices.
func TestKilledUnderChurn(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2, Family: lab.Dual}, `{"Type":"vxlan"}`+apart)
	a, b := pair(t, l)
	must(t, errors.Join(reach(t.Context(), a, b), reach(t.Context(), b, a)))
	p := healthy(t, l)
	f := flood(t, a, b)
	stop := storm(t, l, 200)
	rounds, early := 0, 0
	for end := time.Now().Add(inFull(10*time.Second, 5*time.Minute)); time.Now().Before(end); rounds++ {
		n := l.Nodes[rand.IntN(2)]
		time.Sleep(rand.N(600 * time.Millisecond))
		if ready(t, n) != nil {
			early++
		}
		must(t, n.Kill())
		time.Sleep(rand.N(100 * time.Millisecond))
		must(t, n.Start())
	}
	stop()
	t.Logf("killed %d times, %d of them before it was ready", rounds, early)
	p.unharmed(t)
	f.lostNone(t, "killed under churn")
}

// What happens to etcd, and between it and us, in a bad year. The network stays as it is, is mended meanwhile, and
// follows within seconds; no packet is lost.
func TestEtcdDiesUnderChurn(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2, Family: lab.Dual}, `{"Type":"vxlan"}`+apart)
	n := l.Nodes[0]
	a, b := pair(t, l)
	must(t, errors.Join(reach(t.Context(), a, b), reach(t.Context(), b, a)))
	p := healthy(t, l)
	f := flood(t, a, b)

	stop := storm(t, l, 200)
	for range inFull(3, 30) {
		time.Sleep(rand.N(1500 * time.Millisecond))
		must(t, l.Etcd.Kill())
		time.Sleep(rand.N(1500 * time.Millisecond))
		must(t, l.Etcd.Start(t.Context()))
	}
	stop()
	p.unharmed(t)

	key, v := phantom(126, 1)
	putLease(t, l, key, v)
	inStep(t, l, n)

	// Away: what happens in the kernel is mended, and when it is back the next change arrives within 10 s.
	before, err := entries(t.Context(), n)
	must(t, err)
	marks := map[*lab.Node]int{}
	for _, n := range l.Nodes {
		within(t, n.Name+" is through with the last outage", func() error {
			return silent(t, n, `"outage"`, l.Flanneld(), "status", "--json")
		})
		marks[n] = len(n.Log())
	}
	must(t, l.Etcd.Stop(t.Context()))
	away := inFull(8*time.Second, time.Minute)
	time.Sleep(away / 2)
	mendedRoute(t, n, "10.5.126.0/24") // of nobody who is pinged: who is would lose a packet
	time.Sleep(away / 2)
	if now, err := entries(t.Context(), n); err != nil || now != before {
		t.Errorf("without etcd the entries changed (%v) from\n%s\nto\n%s", err, before, now)
	}
	for _, n := range l.Nodes {
		logged(t, n, marks[n], "cause=store-silent")
		once(t, n, marks[n], "cause=store-silent")
	}
	must(t, l.Etcd.Start(t.Context()))
	key, v = phantom(125, 1)
	putLease(t, l, key, v)
	for _, n := range l.Nodes {
		within(t, fmt.Sprintf("%s has what came after %v without etcd", n.Name, away), func() error {
			return says(t, n, strings.Split(key, "-")[0], "ip", "route")
		})
	}
	p.unharmed(t)

	cutOffFromEtcd(t, l, n, p)
	f.lostNone(t, "etcd killed under churn, away, cut off")
}

// cutOffFromEtcd has packets to etcd vanish without a word; what happens meanwhile is history when they get through again.
func cutOffFromEtcd(t *testing.T, l *lab.Lab, n *lab.Node, p *patient) {
	for i := 1; i < 128; i++ {
		key, v := phantom(i, 1)
		if i > 70 {
			v = nil
		}
		putLease(t, l, key, v)
	}
	inStep(t, l, n)
	before, err := entries(t.Context(), n)
	must(t, err)
	in(t, n.Namespaces, `nft 'table inet hole {
		chain out { type filter hook output priority -300; tcp dport 2379 drop; }
		chain in { type filter hook input priority -300; tcp sport 2379 drop; }
	}'`)
	silent := inFull(16*time.Second, 40*time.Second) // longer than the 13 s after which silence is noticed
	until := time.Now().Add(silent)
	for i := range 120 {
		key, v := phantom(i+1, 2)
		if i < 50 {
			v = nil
		}
		putLease(t, l, key, v)
	}
	must(t, l.Etcd.Compact(t.Context()))
	inStep(t, l, l.Nodes[1])
	time.Sleep(time.Until(until))
	if now, err := entries(t.Context(), n); err != nil || now != before {
		t.Errorf("cut off from etcd the entries changed (%v) from\n%s\nto\n%s", err, before, now)
	}
	in(t, n.Namespaces, "nft delete table inet hole")
	took := within(t, fmt.Sprintf("%s has caught up after %v of silence", n.Name, silent), func() error {
		got, err := entries(t.Context(), n)
		if want := entriesOf(t, l, n); err == nil && got != want {
			stale, missing := differences(got, want)
			err = fmt.Errorf("%d entries are stale, %d missing", stale, missing)
		}
		return err
	})
	t.Logf("50 leases deleted, 20 changed, 50 added, compacted: in step %v after the silence", took)
	p.unharmed(t)
}

// An etcd that is restored from a snapshot lacks what came after it, and one that lost its disk lacks everything: what
// works stays, is said, and the nodes publish themselves again.
func TestEtcdComesBackOlderOrEmpty(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2, Family: lab.Dual}, `{"Type":"vxlan"}`+apart)
	n := l.Nodes[0]
	a, b := pair(t, l)
	must(t, errors.Join(reach(t.Context(), a, b), reach(t.Context(), b, a)))
	p := healthy(t, l)
	put := func(first, last, generation int) map[string]value { return putPhantoms(t, l, first, last, generation) }
	holds := func(why string, lacking map[string]value) { t.Helper(); p.hold(t, l, why, lacking) }
	put(1, 30, 1)
	must(t, l.Etcd.Save(t.Context()))
	put(1, 10, 2)
	newer := put(31, 40, 1)
	for i := 21; i <= 25; i++ {
		key, _ := phantom(i, 1)
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
	said := func() {
		t.Helper()
		for _, n := range l.Nodes {
			once(t, n, marks[n], "cause=store-replaced")
		}
	}
	mark()
	must(t, l.Etcd.Restore(t.Context()))
	holds("keeps what the restored store lacks, and else follows it", newer)
	said()
	put(31, 40, 3)
	holds("has those that came back", nil)
	p.unharmed(t)

	every := leases(t, l)
	before, err := entries(t.Context(), n)
	must(t, err)
	mark()
	must(t, l.Etcd.Replace(t.Context()))
	holds("keeps what the empty store lacks", every)
	if now, err := entries(t.Context(), n); err != nil || now != before {
		t.Errorf("with an empty store the entries changed (%v) from\n%s\nto\n%s", err, before, now)
	}
	said()
	mendedRoute(t, n, "10.5.35.0/24")
	must(t, l.SetConfig(t.Context(), l.Config(`{"Type":"vxlan"}`+apart)))
	put(1, 20, 4)
	for i := 1; i <= 20; i++ {
		key, v := phantom(i, 4)
		every[key] = *v
	}
	holds("follows those that came back and keeps the others", every)
	put(21, 40, 4)
	for i := 1; i <= 40; i += 2 { // in the new store a deletion is one
		key, _ := phantom(i, 4)
		putLease(t, l, key, nil)
	}
	holds("follows the new store", nil)
	p.unharmed(t)
	f.lostNone(t, "etcd restored, and replaced by an empty one")
}

func putPhantoms(t *testing.T, l *lab.Lab, first, last, generation int) map[string]value {
	t.Helper()
	some := map[string]value{}
	for i := first; i <= last; i++ {
		key, v := phantom(i, generation)
		putLease(t, l, key, v)
		some[key] = *v
	}
	return some
}

// hold waits until every node has what the store says and what it lacks.
func (p *patient) hold(t *testing.T, l *lab.Lab, why string, lacking map[string]value) {
	t.Helper()
	for _, n := range l.Nodes {
		within(t, n.Name+" is known again", func() error {
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
		eventually(t, n.Name+" "+why, entriesFrom(all, n), func(ctx context.Context) (string, error) { return entries(ctx, n) })
		within(t, n.Name+" is in step", func() error { return ready(t, n) })
	}
}
