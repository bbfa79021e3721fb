package windows

import (
	"net/netip"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/pkg/windows/hns"
	"flannel/pkg/windows/hostconfig"
)

// passes makes passes for a while.
func (w *windows) passes(d time.Duration) {
	for began := time.Now(); time.Since(began) < d; time.Sleep(500 * time.Millisecond) {
		_ = w.pass()
	}
}

// The virtual adapter cannot have the MTU of the physical one: what it has instead never reaches the physical one, neither
// when the network is deleted nor after a boot.
func TestMTUStaysPhysical(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{Outage: 10 * time.Second, LoseMTU: true}, func(w *windows) {
		index := w.m.Admin().Adapter("Ethernet").Index
		for _, v6 := range []bool{false, true} {
			if err := w.m.SetInterface(index, v6, hns.Interface{MTU: 9000}); err != nil {
				t.Fatal(err)
			}
		}
		w.m.Fail(hnstest.Fault{Func: "SetIpInterfaceEntry", Match: "vEthernet", Code: hns.InvalidParameter})
		check := func(when string) {
			if a, stored := w.m.Admin().Adapter("Ethernet"), w.m.Admin().Stored("Ethernet"); a.MTU != 9000 || stored.MTU != 0 {
				t.Errorf("%s: the MTU is %d, stored %d", when, a.MTU, stored.MTU)
			}
		}
		w.bring(5 * time.Minute)
		w.mends(2 * time.Minute)
		w.reboot()
		w.passes(8 * time.Second) // longer than it takes to restore something
		check("after a boot")
		w.bring(5 * time.Minute)
		w.mends(2 * time.Minute)
		if _, err := w.cleanup(w.t.Context(), nil, false); err != nil {
			t.Fatal(err)
		}
		check("after cleanup")
	})
}

// rebootDown reboots the machine. The virtual adapter does not come up, and nothing has the host's addresses.
func (w *windows) rebootDown() {
	w.t.Helper()
	if err := w.Close(); err != nil {
		w.t.Fatal(err)
	}
	w.Driver = nil
	w.m.Turn(func(k *hnstest.Knobs) { k.RebootForgets, k.Outage = true, -1 })
	w.m.Reboot()
	if err := w.m.Admin().SetUp("vEthernet (Ethernet)", false); err != nil {
		w.t.Fatal(err)
	}
	w.restart()
}

// At a boot, the virtual adapter comes up late: the static configuration is still restored.
func TestLateAfterBoot(t *testing.T) {
	withSwitch(t, hnstest.Knobs{Outage: 10 * time.Second, BecomesDHCP: true}, func(w *windows) {
		w.rebootDown()
		if w.AwaitHostAddrs(w.t.Context()) == nil {
			t.Error("not waiting for the static address, and its adapter is down")
		}
		w.passes(90 * time.Second)
		time.Sleep(w.pace.Wait / 5) // between two ticks: it gets its lease as it comes up
		if err := w.m.Admin().SetUp("vEthernet (Ethernet)", true); err != nil {
			t.Fatal(err)
		}
		w.m.Turn(func(k *hnstest.Knobs) { k.Outage = 0 })
		w.bring(5 * time.Minute)
		w.mends(2 * time.Minute)
		w.isStatic("vEthernet (Ethernet)")
	})
}

// At a boot, the virtual adapter of our switch never comes up: the switch is deleted, and the host can be reached.
func TestRollBackAfterBoot(t *testing.T) {
	withSwitch(t, hnstest.Knobs{Outage: 10 * time.Second}, func(w *windows) {
		w.rebootDown()
		w.passes(3 * time.Minute)
		a := w.m.Admin().Adapter("Ethernet")
		if !hostconfig.HasAddress(a, hnstest.HostAddr.Addr()) || len(w.m.Admin().Networks()) != 0 || w.log.Count("cause="+causeRolledBack) != 1 {
			t.Errorf("Ethernet has %+v, logged\n%s", a.Addrs, w.log)
		}
	})
}

// Windows refuses a setting that the host had before the boot. What it has got since, such as a route to a metadata service,
// is nevertheless saved before a network is made.
func TestRoutesSinceBoot(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{Outage: 10 * time.Second}, func(w *windows) {
		index := w.m.Admin().Adapter("Ethernet").Index
		if err := w.m.SetInterface(index, false, hns.Interface{Metric: 7, MTU: 1500}); err != nil {
			t.Fatal(err)
		}
		w.bring(5 * time.Minute)
		w.mends(time.Minute)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		w.Driver = nil
		w.m.Turn(func(k *hnstest.Knobs) { k.Outage, k.LoseRoutes = 0, true })
		w.m.Reboot()
		w.m.Turn(func(k *hnstest.Knobs) { k.Outage = 10 * time.Second })
		metadata := hns.Route{Dst: netip.MustParsePrefix("169.254.169.254/32"), NextHop: hnstest.Gateway, Index: index, Metric: 1, Ours: true}
		if err := w.m.AddRoute(metadata); err != nil {
			t.Fatal(err)
		}
		w.m.Fail(hnstest.Fault{Func: "SetIpInterfaceEntry", Code: hns.InvalidParameter})
		w.restart()
		w.bring(5 * time.Minute)
		w.mends(2 * time.Minute)
		metadata.Index = w.m.Admin().Adapter("vEthernet (Ethernet)").Index
		for _, r := range w.m.Admin().Routes() {
			if r == metadata {
				return
			}
		}
		t.Errorf("the route is lost: %+v", w.m.Admin().Routes())
	})
}

// A network is not deleted because an adapter of an earlier configuration is gone.
func TestNoRollBackOfOthers(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		w.bring(time.Minute)
		w.mends(time.Minute)
		id := w.network.ID
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		w.Driver = nil
		j, err := hostconfig.ReadJournal(w.opts.journalPath())
		if err != nil {
			t.Fatal(err)
		}
		j.Snapshot = &hostconfig.Snapshot{Adapter: "gone", GUID: "gone",
			Addresses: []hostconfig.SavedAddress{{Prefix: netip.MustParsePrefix("10.98.0.2/24"), Manual: true}}}
		if err := hostconfig.WriteJournal(w.opts.journalPath(), j); err != nil {
			t.Fatal(err)
		}
		w.restart()
		w.passes(5 * time.Minute)
		if w.network == nil || w.network.ID != id {
			t.Errorf("logged\n%s", w.log)
		}
	})
}

// HNS refuses for some time to delete the network. That does not delay the next attempt.
func TestRollBackRefused(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{Outage: 10 * time.Second, VirtualDown: true}, func(w *windows) {
		w.m.Fail(hnstest.Fault{Func: "HcnDeleteNetwork", Times: 5, Code: hns.InvalidParameter})
		w.passes(5 * time.Minute)
		w.isStatic("Ethernet")
		w.m.Turn(func(k *hnstest.Knobs) { k.VirtualDown = false })
		w.bring(10 * time.Minute)
		w.mends(time.Minute)
	})
}
