package main

import (
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"flannel/internal/test/logtest"
	"flannel/pkg/reconcile"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

// A burst of changes wakes the daemon once, 50 ms after the first of them, and a later change wakes it again.
func TestChangesOfTheUnderlayAreCoalesced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		changes := make(chan struct{}, 1)
		changed := coalesce(t.Context(), changes)
		start := time.Now()
		go func() {
			for range 5 { // at 0, 10, … 40 ms
				reconcile.Notify(changes)
				time.Sleep(10 * time.Millisecond)
			}
			time.Sleep(time.Second)
			reconcile.Notify(changes) // at 1050 ms
		}()
		var woken []time.Duration
		ended := time.After(time.Minute)
		for running := true; running; {
			select {
			case <-changed:
				woken = append(woken, time.Since(start))
			case <-ended:
				running = false
			}
		}
		if want := []time.Duration{50 * time.Millisecond, 1100 * time.Millisecond}; !slices.Equal(woken, want) {
			t.Errorf("woken after %v, want %v", woken, want)
		}
	})
}

// The choice of the interface is one line at the debug level, with its reasons, and another one when it changes.
func TestUnderlayIsLogged(t *testing.T) {
	address := func(text string) []underlay.Addr { return []underlay.Addr{{IP: netip.MustParseAddr(text)}} }
	s := underlay.Snapshot{Interfaces: []underlay.Interface{
		{Name: "eth0", Index: 2, MTU: 1500, Up: true, Addrs: address("192.0.2.1")},
		{Name: "eth1", Index: 3, MTU: 1500, Addrs: address("192.0.2.2")},
	}}
	var log, quiet logtest.Log
	for _, l := range []*logtest.Log{&log, &quiet} {
		s.Interfaces[1].Up = false
		u := &machineUnderlay{options: underlay.Options{Iface: []string{"eth9", "eth1", "eth0"}}, log: l.Logger(),
			read: func(underlay.Options) (underlay.Snapshot, error) { return s, nil }}
		if l == &log {
			u.log = l.Debug()
		}
		for _, up := range []bool{false, false, true, true} {
			s.Interfaces[1].Up = up
			if _, _, err := u.Choose(true, false, subnet.PublicIPs{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	lines := log.With("level=DEBUG")
	if len(lines) != 2 || len(lines[:1].With("why=--iface=eth0", "untried=0").Naming("rejected", "eth9", "eth1").Naming("interface", "eth0", "192.0.2.1")) != 1 ||
		len(lines[1:].With("why=--iface=eth1", "untried=1").Naming("rejected", "eth9")) != 1 {
		t.Errorf("two choices:\n%s", &log)
	}
	if quiet.Count() != 0 {
		t.Errorf("without -v=4:\n%s", &quiet)
	}
}
