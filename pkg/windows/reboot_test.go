package windows

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/internal/test/logtest"
	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
	"flannel/pkg/windows/hostconfig"
)

// reboot restarts the machine and then the daemon.
func (w *windows) reboot() {
	w.t.Helper()
	if err := w.Close(); err != nil {
		w.t.Fatal(err)
	}
	w.Driver = nil
	w.m.Reboot()
	w.restart()
}

// local sets the underlay's address, as the daemon does when the host's changes.
func (w *windows) local(p netip.Prefix) {
	w.devices = slices.Clone(w.devices)
	edit(&w.devices[0], func(n *dataplane.Network) { n.Local = p.Addr() })
}

// isStatic tells in what the host's IPv4 configuration on an adapter differs from that of hnstest.New, in the active store
// and in the registry.
func (w *windows) isStatic(name string) {
	w.t.Helper()
	a := w.m.Admin().Adapter(name)
	if len(a.Addrs) != 1 || a.Addrs[0].Prefix != hnstest.HostAddr || !a.Addrs[0].Manual || a.DHCP {
		w.t.Errorf("%s has %+v, DHCP %t", name, a.Addrs, a.DHCP)
	}
	if !slices.Equal(a.DNS, []netip.Addr{hnstest.Gateway}) {
		w.t.Errorf("the host's DNS servers are %v", a.DNS)
	}
	var defaults []hns.Route
	for _, r := range w.m.Admin().Routes() {
		if r.Dst.Bits() == 0 {
			defaults = append(defaults, r)
		}
	}
	want := hns.Route{Dst: netip.MustParsePrefix("0.0.0.0/0"), NextHop: hnstest.Gateway, Index: a.Index, Metric: 10, Ours: true}
	if !slices.Equal(defaults, []hns.Route{want}) {
		w.t.Errorf("the default routes are %+v", defaults)
	}
	stored := w.m.Admin().Stored(name)
	if stored.DHCP || !slices.Equal(stored.Addrs, []netip.Prefix{hnstest.HostAddr}) || !slices.Equal(stored.Gateways, []hns.Gateway{{Addr: hnstest.Gateway, Metric: 10}}) {
		w.t.Errorf("the registry has %+v", stored)
	}
}

// awaitsStatic checks that the driver says so until an adapter has the host's static address.
func (w *windows) awaitsStatic(name string) {
	w.t.Helper()
	waited := false
	for {
		err := w.AwaitHostAddrs(w.t.Context())
		if err == nil && !hostconfig.HasAddress(w.m.Admin().Adapter(name), hnstest.HostAddr.Addr()) {
			w.t.Fatalf("not waiting for the static address, but %s has %+v", name, w.m.Admin().Adapter(name).Addrs)
		}
		if err == nil {
			break
		}
		waited = true
		time.Sleep(100 * time.Millisecond)
	}
	if !waited {
		w.t.Errorf("%s had its static address at once", name)
	}
}

// A static configuration that becomes DHCP when the switch is bound is restored, whether or not the DHCP client does as it
// is told, and is still there after a reboot, even if flanneld does not run then.
func TestStaticBecomesDHCP(t *testing.T) {
	for _, kind := range kinds {
		for _, storedOnly := range []bool{false, true} {
			knobs := hnstest.Knobs{Outage: 20 * time.Second, BecomesDHCP: true, StoredOnly: storedOnly}
			onWindows(t, devicesOf(kind), knobs, func(w *windows) {
				w.bring(5 * time.Minute)
				w.mends(2 * time.Minute)
				if storedOnly { // the address is there, and the registry is right; that DHCP stays on is logged
					w.m.Turn(func(k *hnstest.Knobs) { k.StoredOnly = false })
					if w.log.Count("level=WARN") == 0 || !hostconfig.HasAddress(w.m.Admin().Adapter("vEthernet (Ethernet)"), hnstest.HostAddr.Addr()) {
						t.Errorf("%+v, logged\n%s", w.m.Admin().Adapter("vEthernet (Ethernet)"), w.log)
					}
				} else {
					w.isStatic("vEthernet (Ethernet)")
				}
				if w.log.Count("cause=static-restored") == 0 {
					t.Errorf("logged\n%s", w.log)
				}
			})
		}
	}
}

// withSwitch prepares the machine and starts the daemon's network on the switch, which outlasts a reboot.
func withSwitch(t *testing.T, knobs hnstest.Knobs, test func(*windows)) {
	onWindows(t, overlayDevice(ownSubnet), knobs, func(w *windows) {
		if _, _, err := w.prepared(5 * time.Minute); err != nil {
			t.Fatal(err)
		}
		w.bring(5 * time.Minute)
		w.mends(time.Minute)
		test(w)
	})
}

// What was restored to the registry is there after a reboot without flanneld; what Windows forgets at each boot is
// restored by flanneld at each boot.
func TestRebootForgets(t *testing.T) {
	for _, forgets := range []bool{false, true} {
		withSwitch(t, hnstest.Knobs{Outage: 20 * time.Second, BecomesDHCP: true}, func(w *windows) {
			w.isStatic("vEthernet (Ethernet)")
			w.m.Turn(func(k *hnstest.Knobs) { k.RebootForgets = forgets })
			for range 2 {
				w.reboot()
				if forgets {
					w.awaitsStatic("vEthernet (Ethernet)")
				} else {
					time.Sleep(30 * time.Second)
					w.isStatic("vEthernet (Ethernet)")
				}
				w.bring(5 * time.Minute)
				w.mends(2 * time.Minute)
				w.isStatic("vEthernet (Ethernet)")
			}
			if made := w.log.Count("cause=" + causeNetworkMade); made != 4 { // External; and ours, which no boot survives
				t.Errorf("%d networks were made", made)
			}
		})
	}
}

// A static configuration is in the journal as the last good one soon after the network works, although nothing changes any
// more that would cause a pass.
func TestLastGoodIsRecorded(t *testing.T) {
	for _, kind := range kinds {
		onWindows(t, devicesOf(kind), hnstest.Knobs{Outage: 10 * time.Second}, func(w *windows) {
			w.bring(time.Minute)
			w.mends(time.Minute)
			if j, err := hostconfig.ReadJournal(w.opts.journalPath()); err != nil || j.Snapshot != nil || j.LastGood == nil {
				t.Errorf("%s: the journal holds %+v, %v", kind, j, err)
			}
		})
	}
}

// An administrator's decisions are kept: another static address, or DHCP, at any time at which flanneld does not change
// the switch.
func TestReconfiguredByAdministrator(t *testing.T) {
	other := netip.MustParsePrefix("10.99.0.77/24")
	withSwitch(t, hnstest.Knobs{Outage: 10 * time.Second}, func(w *windows) {
		if err := w.m.Admin().Readdress("vEthernet (Ethernet)", other); err != nil {
			t.Fatal(err)
		}
		w.local(other)
		w.bring(5 * time.Minute)
		w.mends(time.Minute)
		if err := w.m.Admin().Configure("vEthernet (Ethernet)", hns.Persistent{DHCP: true}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second) // longer than the server takes
		leased := hostconfig.Addresses(w.m.Admin().Adapter("vEthernet (Ethernet)"))[0].Prefix
		w.local(leased)
		w.bring(5 * time.Minute)
		w.mends(time.Minute)
		w.reboot()
		w.bring(5 * time.Minute)
		w.mends(2 * time.Minute)
		a := w.m.Admin().Adapter("vEthernet (Ethernet)")
		if addrs := hostconfig.Addresses(a); !a.DHCP || len(addrs) != 1 || addrs[0].Prefix != leased {
			t.Errorf("the adapter has %+v, DHCP %t", a.Addrs, a.DHCP)
		}
		if n := w.log.Count("cause=static-restored"); n > 0 {
			t.Errorf("logged\n%s", w.log)
		}
	})
}

// So are DNS servers and a metric that he changed while flanneld did not run. They are then the last good ones.
func TestChangedWhileStopped(t *testing.T) {
	withSwitch(t, hnstest.Knobs{Outage: 10 * time.Second}, func(w *windows) {
		const name = "vEthernet (Ethernet)"
		admin, server := w.m.Admin(), netip.MustParseAddr("10.99.0.99")
		if err := w.m.SetInterface(admin.Adapter(name).Index, false, hns.Interface{Metric: 25, MTU: 1500}); err != nil {
			t.Fatal(err)
		}
		w.mends(time.Minute)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		w.Driver = nil
		stored := admin.Stored(name)
		stored.Metric = 50
		if err := admin.Configure(name, stored); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second) // longer than the outage
		if err := w.m.SetDNS(admin.Adapter(name).Index, []netip.Addr{server}); err != nil {
			t.Fatal(err)
		}
		w.m.Reboot()
		w.restart()
		w.bring(5 * time.Minute)
		w.mends(2 * time.Minute)
		if a := admin.Adapter(name); !slices.Equal(a.DNS, []netip.Addr{server}) || a.V4Metric != 50 {
			t.Errorf("the host has %+v", a)
		}
		if j, err := hostconfig.ReadJournal(w.opts.journalPath()); err != nil || j.LastGood == nil || j.LastGood.V4Metric != 50 || !slices.Equal(j.LastGood.DNS, []netip.Addr{server}) {
			t.Errorf("the journal holds %+v, %v", j, err)
		}
	})
}

// The MTU and the metric of the adapter move to the virtual one, and are stored.
func TestMTUAndMetric(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{Outage: 10 * time.Second, LoseMTU: true, LoseMetric: true}, func(w *windows) {
		index := w.m.Admin().Adapter("Ethernet").Index
		for _, v6 := range []bool{false, true} {
			if err := w.m.SetInterface(index, v6, hns.Interface{Metric: 7, MTU: 1460}); err != nil {
				t.Fatal(err)
			}
		}
		w.bring(5 * time.Minute)
		w.mends(time.Minute)
		a, stored := w.m.Admin().Adapter("vEthernet (Ethernet)"), w.m.Admin().Stored("vEthernet (Ethernet)")
		if a.MTU != 1460 || a.V4Metric != 7 || stored.MTU != 1460 || stored.Metric != 7 {
			t.Errorf("the adapter has %+v, the registry %+v", a, stored)
		}
		w.isStatic("vEthernet (Ethernet)")
	})
}

// A switch that is dead after a reboot is bound again: our networks on it are deleted and ours is made again. A network of
// somebody else is named.
func TestDeadSwitch(t *testing.T) {
	for name, turn := range map[string]func(*hnstest.Knobs){
		"dead":                func(k *hnstest.Knobs) { k.DeadSwitch = true },
		"refuses":             func(k *hnstest.Knobs) { k.DeadSwitch, k.DeadRefuses = true, true },
		"changed GUID":        func(k *hnstest.Knobs) { k.ChangedGUID = true },
		"keeps first address": func(k *hnstest.Knobs) { k.DeadSwitch, k.FirstIP = true, true },
	} {
		t.Run(name, func(t *testing.T) {
			withSwitch(t, hnstest.Knobs{Outage: 10 * time.Second}, func(w *windows) {
				w.m.Turn(turn)
				w.reboot()
				w.bring(5 * time.Minute)
				w.mends(2 * time.Minute)
				w.check(overlayInStep)
				w.isStatic("vEthernet (Ethernet)")
				if w.log.Count("cause="+causeSwitchDead) == 0 {
					t.Errorf("logged\n%s", w.log)
				}
			})
		})
	}
	t.Run("of others", func(t *testing.T) {
		onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{DeadSwitch: true}, func(w *windows) {
			if err := w.m.Admin().CreateNetwork(`{"Name":"theirs","Type":"Overlay","Ipams":[{"Type":"Static","Subnets":[{"IpAddressPrefix":"172.20.0.0/24","Policies":[{"Type":"VSID","Settings":{"IsolationId":5000}}]}]}],"SchemaVersion":{"Major":2,"Minor":0}}`); err != nil {
				w.t.Fatal(err)
			}
			w.reboot()
			w.m.ForgetLog()
			for began := time.Now(); time.Since(began) < 2*time.Minute; time.Sleep(time.Second) {
				_ = w.pass()
			}
			err := w.pass()
			if err == nil || !logtest.Names(err.Error(), "Ethernet", "theirs", "hnsdiag") || w.changed() != "" {
				t.Errorf("got %v, changed\n%s", err, w.changed())
			}
		})
	})
}

// A network after whose creation the host stays without addresses is deleted within a bounded time, and made again later.
func TestRollBack(t *testing.T) {
	for _, kind := range kinds {
		onWindows(t, devicesOf(kind), hnstest.Knobs{Outage: 10 * time.Second, VirtualDown: true}, func(w *windows) {
			began := time.Now()
			for !hostconfig.HasAddress(w.m.Admin().Adapter("Ethernet"), hnstest.HostAddr.Addr()) || w.log.Count("cause="+causeRolledBack) == 0 {
				if time.Since(began) > 3*time.Minute {
					t.Fatalf("the host is still without its address: %q", w.problems)
				}
				_ = w.pass()
				time.Sleep(500 * time.Millisecond)
			}
			for time.Since(began) < 8*time.Minute { // it stays reachable, and the network is not made at once again
				_ = w.pass()
				time.Sleep(500 * time.Millisecond)
			}
			w.isStatic("Ethernet")
			if n := w.log.Count("cause=" + causeNetworkMade); n != 1 || !slices.Contains(w.waits, causeRolledBack) {
				t.Errorf("%d networks were made; it waited for %q", n, w.waits)
			}
			w.m.Turn(func(k *hnstest.Knobs) { k.VirtualDown = false })
			w.bring(20 * time.Minute)
			w.mends(time.Minute)
			w.check(inStep[kind])
		})
	}
}

// looksDead takes an address from the virtual adapter of a switch, which goes down, to the physical adapter, or back.
func (w *windows) looksDead(dead bool, adapter string, addr netip.Prefix) {
	w.t.Helper()
	admin, virtual := w.m.Admin(), "vEthernet ("+adapter+")"
	from, to := adapter, virtual
	if dead {
		from, to = virtual, adapter
	}
	if err := errors.Join(admin.SetUp(virtual, !dead), admin.Readdress(from), admin.Readdress(to, addr)); err != nil {
		w.t.Fatal(err)
	}
	w.QueueResync()
}

// The time in which HNS, or Windows, did not answer does not count for a switch that looks dead before and after it, while it is
// bound.
func TestDeadSwitchUnknown(t *testing.T) {
	for _, silent := range []string{"", "GetAdaptersAddresses"} { // "": HNS
		onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
			w.bring(time.Minute)
			w.mends(time.Minute)
			id := w.network.ID
			w.looksDead(true, "Ethernet", hnstest.HostAddr)
			_ = w.pass()
			w.looksDead(false, "Ethernet", hnstest.HostAddr)
			w.m.Fail(hnstest.Fault{Func: silent, Code: hns.RPCServerUnavailable})
			w.passes(time.Minute)
			w.looksDead(true, "Ethernet", hnstest.HostAddr)
			w.m.Heal()
			_ = w.pass()
			w.looksDead(false, "Ethernet", hnstest.HostAddr)
			w.bring(time.Minute)
			if w.network.ID != id || w.log.Count("cause="+causeSwitchDead) > 0 {
				t.Errorf("%q was silent, and the network was deleted:\n%s", silent, w.log)
			}
		})
	}
}

// Nor does the time of another adapter's switch.
func TestDeadSwitchOfOtherAdapter(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		w.plugOther()
		w.bring(time.Minute)
		w.mends(time.Minute)
		w.makeOther()
		w.looksDead(true, "Ethernet", hnstest.HostAddr)
		w.passes(w.pace.Dead - 5*time.Second)
		w.looksDead(true, "LAN 2", netip.MustParsePrefix("10.98.0.2/24"))
		next := overlayDevice(netip.MustParsePrefix("10.244.9.0/24"))
		kind := next.Kind.(dataplane.Overlay)
		kind.VNI, kind.Parent, kind.Local = 4097, "LAN 2", netip.MustParseAddr("10.98.0.2")
		next.Name, next.Kind = "flannel.4097", kind
		w.use(next)
		w.passes(10 * time.Second)
		if n := w.log.Count("cause="+causeSwitchDead, "network=flannel.4097"); n > 0 {
			t.Errorf("the network was deleted:\n%s", w.log)
		}
	})
}
