package windows

import (
	"net/netip"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
	"flannel/pkg/windows/hostconfig"
)

// A host with two adapters, of which each loses its static address to DHCP whenever its switch changes.

// isStaticOther tells in what the addresses of LAN 2, on this adapter, differ from those of plugOther.
func (w *windows) isStaticOther(name string) {
	w.t.Helper()
	a := w.m.Admin().Adapter(name)
	if addrs := hostconfig.Addresses(a); len(addrs) != 1 || addrs[0].Prefix.String() != "10.98.0.2/24" || !addrs[0].Manual || a.DHCP {
		w.t.Errorf("%s has %+v, DHCP %t", name, a.Addrs, a.DHCP)
	}
}

// makeOther creates the network flannel.4097 on LAN 2, as an earlier run would.
func (w *windows) makeOther() {
	w.t.Helper()
	if err := w.m.Admin().CreateNetwork(`{"Name":"flannel.4097","Type":"Overlay","Policies":[{"Type":"NetAdapterName","Settings":{"NetworkAdapterName":"LAN 2"}}],"Ipams":[{"Type":"Static","Subnets":[{"IpAddressPrefix":"10.244.9.0/24","Policies":[{"Type":"VSID","Settings":{"IsolationId":4097}}]}]}],"SchemaVersion":{"Major":2,"Minor":0}}`); err != nil {
		w.t.Fatal(err)
	}
}

// The underlay becomes another adapter: the former one gets its address back before the network takes the new one's.
func TestUnderlayMoves(t *testing.T) {
	for _, kind := range kinds {
		onWindows(t, devicesOf(kind), hnstest.Knobs{Outage: 20 * time.Second, BecomesDHCP: true}, func(w *windows) {
			w.plugOther()
			w.bring(5 * time.Minute)
			w.mends(2 * time.Minute)
			w.isStatic("vEthernet (Ethernet)")
			w.devices = []dataplane.Device{w.devices[0]}
			edit(&w.devices[0], func(n *dataplane.Network) { n.Parent, n.Local = "LAN 2", netip.MustParseAddr("10.98.0.2") })
			w.bring(10 * time.Minute)
			w.mends(2 * time.Minute)
			w.isStatic("Ethernet")
			w.isStaticOther("vEthernet (LAN 2)")
			if w.network.Adapter != "LAN 2" {
				t.Errorf("the network is on %s", w.network.Adapter)
			}
		})
	}
}

// Networks of ours are on both adapters, and cleanup deletes them: both adapters get back what they had.
func TestCleanupOfTwoAdapters(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{Outage: 20 * time.Second}, func(w *windows) {
		w.plugOther()
		w.bring(5 * time.Minute)
		w.mends(time.Minute)
		w.makeOther()
		time.Sleep(30 * time.Second) // until LAN 2 has its address
		w.isStaticOther("vEthernet (LAN 2)")
		w.restart()
		w.m.Turn(func(k *hnstest.Knobs) { k.BecomesDHCP = true })
		removed, err := w.cleanup(w.t.Context(), []netip.Prefix{winNetwork}, false)
		if err != nil || len(removed) != 2 || len(w.m.Admin().Networks()) != 0 {
			t.Errorf("removed %q, %v", removed, err)
		}
		w.isStatic("Ethernet")
		w.isStaticOther("LAN 2")
	})
}

// cleanup on a host by DHCP without a cable: the address comes with the cable, which is no error.
func TestCleanupWithoutCable(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{Outage: 10 * time.Second}, func(w *windows) {
		admin := w.m.Admin()
		if err := admin.Configure("Ethernet", hns.Persistent{DHCP: true}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		w.local(hostconfig.Addresses(admin.Adapter("Ethernet"))[0].Prefix)
		w.bring(5 * time.Minute)
		w.mends(time.Minute)
		w.m.Turn(func(k *hnstest.Knobs) { k.Outage = -1 })
		for _, a := range []string{"Ethernet", "vEthernet (Ethernet)"} {
			if err := admin.SetUp(a, false); err != nil {
				t.Fatal(err)
			}
		}
		w.restart()
		if removed, err := w.cleanup(w.t.Context(), []netip.Prefix{winNetwork}, false); err != nil || len(removed) != 1 || len(admin.Networks()) != 0 {
			t.Errorf("removed %q, %v", removed, err)
		}
		if a := admin.Adapter("Ethernet"); len(a.Addrs) > 0 || !w.hostConfig.HasSnapshot() {
			t.Errorf("the host has %+v; the snapshot remains: %t", a.Addrs, w.hostConfig.HasSnapshot())
		}
	})
}
