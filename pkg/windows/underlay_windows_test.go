package windows

import (
	"context"
	"testing"
	"time"

	"flannel/internal/test/eventually"
	"flannel/internal/test/hnstest"
	"flannel/internal/test/hnstest/wine"
	"flannel/pkg/reconcile"
	"flannel/pkg/underlay"
)

// TestReadUnderlay goes through the IP Helper API of the simulated machine.
func TestReadUnderlay(t *testing.T) {
	m := hnstest.NewFor(t)
	wine.Play(t, m)
	ctx, cancel := context.WithCancel(t.Context())
	defer func() { // what it registered for is given back to this machine, not to the next test's
		cancel()
		eventually.True(t, "no handle is open", func() bool { return m.OpenHandles() == 0 })
	}()
	changes := make(chan struct{}, 1)
	if err := WatchUnderlay(ctx, func() { reconcile.Notify(changes) }); err != nil {
		t.Fatal(err)
	}
	choose := func(o underlay.Options) underlay.Link {
		t.Helper()
		s, err := ReadUnderlay(o)
		if err != nil {
			t.Fatal(err)
		}
		link, err := underlay.Choose(s, o, true, false)
		if err != nil {
			t.Fatal(err)
		}
		return link
	}
	before := choose(underlay.Options{CanReach: ip("1.1.1.1")})
	overlayOn(t, m, "Ethernet", "flannel.4096")
	select {
	case <-changes:
	case <-time.After(2 * time.Minute):
		t.Error("nobody told that the address moved")
	}
	after := choose(underlay.Options{Iface: []string{"Ethernet"}})
	if after.Index == before.Index {
		t.Errorf("%+v, before %+v", after, before)
	}
	if before.Index = after.Index; !after.Equal(before) {
		t.Errorf("%+v, want %+v", after, before)
	}
}
