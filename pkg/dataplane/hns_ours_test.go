package dataplane

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"flannel/pkg/hns"
	"flannel/pkg/hns/hnstest"
)

// A route of ours that an earlier run left is no part of what the host has: when its peer is gone it goes for good, also
// if it was written down before this run knew the pod network.
func TestStaleRouteWrittenDown(t *testing.T) {
	onWindows(t, bridgeDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		if _, _, err := w.prepared(time.Minute); err != nil { // so that our routes outlive our network
			t.Fatal(err)
		}
		w.bring(time.Minute)
		w.restart()
		w.use(bridgeDevice(netip.MustParsePrefix("10.244.9.0/24")))
		w.state.Paths = w.state.Paths[1:]
		w.bring(time.Minute)
		w.m.ForgetLog()
		w.mends(time.Minute)
		if got := w.changed(); got != "" || strings.Contains(w.holds(), "10.244.3.0") || w.home.pending() {
			t.Errorf("a minute with nothing to do changed\n%s\nthe machine holds\n%s", got, w.holds())
		}
	})
}

// A network that has the name of ours for the switch, on another adapter, stays whoever made it.
func TestPrepareLeavesOthers(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		w.m.Plug(hns.Adapter{Name: "LAN 2", MAC: hns.MAC{2, 9}, MTU: 1500, Up: true})
		if err := w.m.Hand().CreateNetwork(strings.ReplaceAll(foreignSwitch, `"Ethernet"`, `"LAN 2"`)); err != nil {
			t.Fatal(err)
		}
		before := w.holds()
		if _, _, err := w.prepared(time.Minute); err == nil || !strings.Contains(err.Error(), "that flanneld did not make (its type is L2Bridge and not Overlay)") {
			t.Errorf("got %v", err)
		}
		if got := w.changed(); got != "" || w.holds() != before {
			t.Errorf("it changed\n%s\nthe machine holds\n%s", got, w.holds())
		}
		w.bring(time.Minute) // without it
	})
}
