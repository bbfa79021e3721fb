package windows

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/pkg/dataplane"
	"flannel/pkg/underlay"
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

// Two adapters have addresses by DHCP and default routes, and the daemon chooses between them. While the network is made, and
// while the cable is out, the second one becomes the underlay after half a minute, for a moment: the network stays, also if the
// cable is out twice, and HNS does not answer in between. If the cable stays out, the network moves. If the network is made in
// less time, the second one is not chosen.
func TestUnderlayMovesForAMoment(t *testing.T) {
	for _, c := range []struct {
		kind   netKind
		outage time.Duration
	}{{overlayKind, 20 * time.Second}, {bridgeKind, 20 * time.Second}, {overlayKind, 40 * time.Second}, {bridgeKind, 40 * time.Second}} {
		onWindows(t, devicesOf(c.kind), hnstest.Knobs{Outage: c.outage}, func(w *windows) {
			short := c.outage < 30*time.Second
			admin := w.m.Admin()
			w.m.Plug(hns.Adapter{Name: "LAN 2", Description: "another", MTU: 1500, MAC: dataplane.MAC{2, 0, 0, 0, 0, 9}, Up: true, DHCP: true,
				Addrs: []hns.Address{{Prefix: netip.MustParsePrefix("10.98.0.2/24"), Preferred: true}}},
				hns.Route{Dst: netip.MustParsePrefix("0.0.0.0/0"), NextHop: netip.MustParseAddr("10.98.0.1"), Metric: 500, Ours: true})
			if err := admin.Configure("Ethernet", hns.Persistent{DHCP: true}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(50 * time.Second)
			var chooser underlay.Chooser
			chosen := map[string]bool{}
			follow := func(d time.Duration) { // as the daemon's loop does
				for began := time.Now(); time.Since(began) < d; time.Sleep(500 * time.Millisecond) {
					if w.AwaitHostAddrs(t.Context()) == nil {
						if c, err := chooser.Choose(time.Now(), snap(t, w.m, underlay.Options{}), underlay.Options{}, true, false); err == nil {
							w.devices = slices.Clone(w.devices)
							edit(&w.devices[0], func(n *dataplane.Network) { n.Parent, n.Local = c.Link.Name, c.Link.V4 })
							chosen[c.Link.Name] = true
						}
					}
					_ = w.pass()
				}
			}
			follow(3 * time.Minute)
			if n := w.log.Count("cause=" + causeNetworkMade); n != 1 || !w.step || chosen["LAN 2"] == short {
				t.Fatalf("%d networks were made, chosen were %v: %q", n, chosen, w.problems)
			}
			if short {
				return
			}
			id := w.network.ID
			plug := func(up bool) {
				for _, a := range []string{"Ethernet", "vEthernet (Ethernet)"} {
					if err := admin.SetUp(a, up); err != nil {
						t.Fatal(err)
					}
				}
			}
			out := func() {
				t.Helper()
				clear(chosen)
				plug(false)
				follow(28 * time.Second)
				if chosen["LAN 2"] {
					t.Fatal("LAN 2 was chosen at once")
				}
				follow(4 * time.Second)
				if !chosen["LAN 2"] {
					t.Fatalf("chosen were %v: %q", chosen, w.problems)
				}
			}
			stays := func() {
				t.Helper()
				plug(true)
				follow(time.Minute)
				if w.network == nil || w.network.ID != id || !w.step {
					t.Fatalf("the network was made again, chosen were %v: %q", chosen, w.problems)
				}
			}
			out()
			stays()
			out()
			w.m.Fail(hnstest.Fault{Code: hns.RPCServerUnavailable})
			plug(true)
			follow(100 * time.Second)
			if n, _ := dataplane.NetworkOf(w.devices[0].Kind); n.Parent == "LAN 2" {
				t.Fatal("the first adapter is not wanted again")
			}
			out()
			w.m.Heal()
			follow(5 * time.Second)
			stays()
			plug(false)
			follow(4 * time.Minute)
			if w.network == nil || w.network.Adapter != "LAN 2" || !w.step {
				t.Errorf("the network did not move: %q", w.problems)
			}
		})
	}
}

// prepare for another adapter moves its network there without waiting, since its adapter is fixed.
func TestPrepareMoves(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{Outage: 10 * time.Second}, func(w *windows) {
		w.plugOther()
		if _, _, err := w.prepared(time.Minute); err != nil {
			t.Fatal(err)
		}
		edit(&w.devices[0], func(n *dataplane.Network) { n.Parent, n.Local = "LAN 2", netip.MustParseAddr("10.98.0.2") })
		p, waits, err := w.prepared(5 * time.Minute)
		if err != nil || p.Adapter != "LAN 2" || slices.Contains(waits, causeUnderlayMoves) {
			t.Errorf("%+v, %v, waited for %q", p, err, waits)
		}
	})
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
