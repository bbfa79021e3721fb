package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
)

// While flanneld is not running, leases are removed, changed and added. At its
// start it finds the former entries in the kernel, and must bring them to the
// new state.
func TestRestartAfterLeasesChanged(t *testing.T) {
	t.Parallel()
	l := prepare(t, lab.Options{Nodes: 2, Family: lab.Dual}, `{"Type":"vxlan"}`+apart)
	for i := range 60 {
		key, v := fakeLease(i+1, 1)
		putLease(t, l, key, v)
	}
	must(t, l.StartAll(t.Context()))
	n := l.Nodes[0]
	t.Logf("62 leases: synced after %v", waitSynced(t, l, n))
	a, b := pair(t, l)
	must(t, reach(t.Context(), a, b))

	must(t, n.Kill())
	before, err := entries(t.Context(), n)
	must(t, err)
	for i := range 20 {
		key, _ := fakeLease(i+1, 1)
		putLease(t, l, key, nil)
	}
	for i := 20; i < 30; i++ { // change the MAC, the PublicIP, or both
		key, old := fakeLease(i+1, 1)
		_, v := fakeLease(i+1, 2)
		switch i % 3 {
		case 0:
			v.PublicIP, v.PublicIPv6 = old.PublicIP, old.PublicIPv6
		case 1:
			v.BackendData, v.BackendV6Data = old.BackendData, old.BackendV6Data
		}
		putLease(t, l, key, v)
	}
	for i := 60; i < 70; i++ {
		key, v := fakeLease(i+1, 1)
		putLease(t, l, key, v)
	}
	if after, err := entries(t.Context(), n); err != nil || after != before {
		t.Fatalf("the kernel changed while flanneld was not running (%v)", err)
	}
	must(t, n.Start())
	began := time.Now()
	eventually(t, "synced after the restart", entriesOf(t, l, n),
		func(ctx context.Context) (string, error) { return entries(ctx, n) })
	got, err := entries(t.Context(), n)
	must(t, err)
	stale, missing := differences(got, entriesOf(t, l, n))
	t.Logf("20 leases removed, 10 changed, 10 added: synced %v after the start; %d entries, %d stale, %d missing",
		time.Since(began).Round(time.Millisecond), strings.Count(got, "\n")+1, stale, missing)
	must(t, reach(t.Context(), a, b))
	eventually(t, "a nexthop object for each route", fmt.Sprint(51*2), func(ctx context.Context) (string, error) {
		return try(ctx, n.Namespaces, "ip nexthop show proto 70 | wc -l")
	})
}

// differences returns the number of lines that only one of two texts has.
func differences(got, want string) (stale, missing int) {
	there := map[string]int{}
	for line := range strings.Lines(got + "\n") {
		there[line]++
	}
	for line := range strings.Lines(want + "\n") {
		there[line]--
	}
	for _, n := range there {
		stale, missing = stale+max(n, 0), missing+max(-n, 0)
	}
	return stale, missing
}

// The VTEP MAC, which the peers know, survives the process and the device.
func TestVTEPStaysTheSame(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2, Family: lab.Dual}, `{"Type":"vxlan"}`)
	n := l.Nodes[0]
	a, b := pair(t, l)
	macs := func() string {
		return shell(t, n.Namespaces, "for d in flannel.1 flannel-v6.1; do cat /sys/class/net/$d/address; done")
	}
	first, published := macs(), fmt.Sprint(ours(t, l, n))
	for _, s := range []struct {
		name string
		do   func()
	}{
		{"restart", func() { _, err := n.Stop(t.Context()); must(t, err) }},
		{"kill -9", func() { must(t, n.Kill()) }},
		{"devices deleted", func() { shell(t, n.Namespaces, "ip link del flannel.1; ip link del flannel-v6.1") }},
		{"devices deleted while flanneld was dead", func() {
			must(t, n.Kill())
			shell(t, n.Namespaces, "ip link del flannel.1; ip link del flannel-v6.1")
		}},
	} {
		s.do()
		if !n.Running() {
			must(t, n.Start())
		}
		_, err := machine.Until(t.Context(), timeout, func(ctx context.Context) error {
			_, err := try(ctx, n.Namespaces, "test -e /sys/class/net/flannel.1; test -e /sys/class/net/flannel-v6.1")
			return err
		})
		must(t, err)
		must(t, n.Ready(t.Context()))
		if got := macs(); got != first {
			t.Errorf("%s: MACs are %q, were %q", s.name, got, first)
		}
		if got := fmt.Sprint(ours(t, l, n)); got != published {
			t.Errorf("%s: published %s, was %s", s.name, got, published)
		}
		must(t, reach(t.Context(), a, b))
	}
}

// ours returns the own lease of a node as others see it: key and MACs.
func ours(t *testing.T, l *lab.Lab, n *lab.Node) (parts []string) {
	t.Helper()
	for key, v := range leases(t, l) {
		if v.PublicIP == n.IP4.String() {
			parts = append(parts, key)
			for _, d := range []*vtep{v.BackendData, v.BackendV6Data} {
				if d != nil {
					parts = append(parts, fmt.Sprintf("%d %s", d.VNI, d.VtepMAC))
				}
			}
		}
	}
	return parts
}
