package windows

import (
	"errors"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/internal/test/logtest"
	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
	"flannel/pkg/windows/hostconfig"
)

var kinds = []netKind{overlayKind, bridgeKind}

// slow is a machine on which everything takes its time.
var slow = hnstest.Knobs{Outage: 20 * time.Second, ManagementIP: time.Minute, DRMAC: 5 * time.Second}

var metadata = hns.Route{Dst: netip.MustParsePrefix("169.254.169.254/32"), NextHop: hnstest.Gateway, Metric: 3, Ours: true}

// hasAll tells in what the adapter with the host's address differs from what "Ethernet" had in the beginning.
func (w *windows) hasAll() {
	w.t.Helper()
	a := w.m.Admin().Adapter("vEthernet (Ethernet)")
	if len(a.Addrs) != 1 || a.Addrs[0].Prefix != hnstest.HostAddr {
		w.t.Errorf("the host's addresses are %+v", a.Addrs)
	}
	if !slices.Equal(a.DNS, []netip.Addr{hnstest.Gateway}) {
		w.t.Errorf("the host's DNS servers are %v", a.DNS)
	}
	want := []hns.Route{
		{Dst: netip.MustParsePrefix("0.0.0.0/0"), NextHop: hnstest.Gateway, Index: a.Index, Metric: 10, Ours: true}, metadata,
	}
	want[1].Index = a.Index
	for _, r := range want {
		if !slices.Contains(w.m.Admin().Routes(), r) {
			w.t.Errorf("route %+v is not among %+v", r, w.m.Admin().Routes())
		}
	}
}

func (w *windows) addMetadataRoute() {
	w.t.Helper()
	r := metadata
	r.Index = w.m.Admin().Adapter("Ethernet").Index
	if err := w.m.Admin().AddRoute(r); err != nil {
		w.t.Fatal(err)
	}
}

// HNS that is not up, an adapter that loses its address, a management address after a minute: each is waited for, and
// said, once.
func TestSlowBringUp(t *testing.T) {
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			knobs := slow
			knobs.Down = true
			onWindows(t, devicesOf(kind), knobs, func(w *windows) {
				time.AfterFunc(40*time.Second, func() { w.m.Turn(func(k *hnstest.Knobs) { k.Down = false }) })
				w.bring(5 * time.Minute)
				w.check(inStep[kind])
				want := []string{causeHNSSilent, causeAddressMoves, hostconfig.CauseNoAddress, causeNoManagement}
				if kind == bridgeKind {
					want[3] = causeNoEndpoint
				}
				if !slices.Equal(w.waits, want) {
					t.Errorf("it waited for %q, want %q:\n%s", w.waits, want, strings.Join(w.problems, "\n"))
				}
				if w.log.Count("cause="+causeNetworkMade) != 1 || w.log.Count("level=WARN") > 0 {
					t.Errorf("logged\n%s", w.log)
				}
			})
		})
	}
}

// Whatever gets lost on the way to the virtual adapter is put back, and nothing else is touched.
func TestLostOnTheWay(t *testing.T) {
	for name, lose := range map[string]func(*hnstest.Knobs){
		"nothing":         func(*hnstest.Knobs) {},
		"address":         func(k *hnstest.Knobs) { k.APIPA = true },
		"DNS servers":     func(k *hnstest.Knobs) { k.LoseDNS = true },
		"default gateway": func(k *hnstest.Knobs) { k.LoseGateway = true },
		"metric":          func(k *hnstest.Knobs) { k.LoseMetric = true },
		"metadata route":  func(k *hnstest.Knobs) { k.LoseRoutes = true },
		"everything": func(k *hnstest.Knobs) {
			k.APIPA, k.LoseDNS, k.LoseGateway, k.LoseRoutes = true, true, true, true
		},
	} {
		for _, kind := range kinds {
			t.Run(name+", "+string(kind), func(t *testing.T) {
				knobs := slow
				knobs.ManagementIP = 0 // so that only what was lost is waited for
				lose(&knobs)
				onWindows(t, devicesOf(kind), knobs, func(w *windows) {
					w.addMetadataRoute()
					w.bring(5 * time.Minute)
					w.hasAll() // as soon as it is ready
					w.mends(time.Minute)
					w.hasAll()
					if j, err := hostconfig.ReadJournal(w.opts.journalPath()); err != nil || j.Snapshot != nil || !slices.Equal(j.Networks, []string{w.devices[0].Name}) {
						t.Errorf("the journal holds %+v, %v", j, err)
					}
					back := w.log.Count("cause=address-restored") + w.log.Count("cause=route-restored") + w.log.Count("cause=dns-restored")
					if (back > 0) != (name != "nothing") {
						t.Errorf("%d things were put back:\n%s", back, w.log)
					}
				})
			})
		}
	}
}

// The daemon is killed after any of its passes, with everything being lost on the way; the next run finishes what it
// began. It is left waiting once without any call of Ensure, as when the API cannot be reached without the address.
func TestKilledAnywhere(t *testing.T) {
	for after := 1; after <= 8; after++ {
		knobs := slow
		knobs.APIPA, knobs.LoseDNS, knobs.LoseGateway, knobs.LoseRoutes = true, true, true, true
		onWindows(t, overlayDevice(ownSubnet), knobs, func(w *windows) {
			w.addMetadataRoute()
			for range after {
				_ = w.pass()
				time.Sleep(3 * time.Second)
			}
			w.restart()
			time.Sleep(time.Minute)
			synctest.Wait()
			w.hasAll()
			w.bring(5 * time.Minute)
			w.mends(time.Minute)
			w.hasAll()
			if made := w.log.Count("cause=" + causeNetworkMade); made != 1 {
				t.Errorf("killed after %d passes: %d networks were made", after, made)
			}
			if j, err := hostconfig.ReadJournal(w.opts.journalPath()); err != nil || j.Snapshot != nil {
				t.Errorf("the journal holds %+v, %v", j, err)
			}
		})
	}
}

// Somebody gave the adapter another address meanwhile: then that one counts.
func TestNewAddressMeanwhile(t *testing.T) {
	knobs := slow
	knobs.APIPA, knobs.LoseGateway = true, true
	onWindows(t, overlayDevice(ownSubnet), knobs, func(w *windows) {
		_ = w.pass()
		time.Sleep(knobs.Outage - time.Second)
		other := netip.MustParsePrefix("10.99.0.77/24")
		if err := w.m.Admin().Readdress("vEthernet (Ethernet)", other); err != nil {
			t.Fatal(err)
		}
		edit(&w.devices[0], func(n *dataplane.Network) { n.Local = other.Addr() }) // as the daemon's choice of the underlay follows
		w.bring(5 * time.Minute)
		a := w.m.Admin().Adapter("vEthernet (Ethernet)")
		if got := hostconfig.Addresses(a); len(got) != 1 || got[0].Prefix != other {
			t.Errorf("the host's addresses are %+v", got)
		}
	})
}

// Another backend after a restart: routes to peers that are still there are not taken for the host's own, and what is
// missing of those is put back although the network waits for it.
func TestPeersAreNotPutBack(t *testing.T) {
	knobs := slow
	knobs.LoseDNS = true
	onWindows(t, bridgeDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		w.bring(5 * time.Minute)
		w.mends(time.Minute)
		w.m.Turn(func(k *hnstest.Knobs) { *k = knobs })
		w.restart()
		w.devices, w.state.Paths = []dataplane.Device{overlayDevice(ownSubnet)}, nil
		w.bring(10 * time.Minute)
		w.mends(time.Minute)
		if got := w.holds(); !strings.Contains(got, "network flannel.4096") || strings.Contains(got, "route 10.244") {
			t.Errorf("the machine holds\n%s", got)
		}
		if w.log.Count("cause=route-restored") > 0 || w.log.Count("cause=dns-restored") == 0 {
			t.Errorf("logged\n%s", w.log)
		}
	})
}

// A network that is there and fits is taken over, ID and all, whoever made it; one that does not is made again on the
// physical adapter.
func TestAdoptOrRemake(t *testing.T) {
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			onWindows(t, devicesOf(kind), hnstest.Knobs{Outage: 10 * time.Second}, func(w *windows) {
				w.bring(5 * time.Minute)
				w.mends(time.Minute)
				id := w.network.ID
				if err := os.Remove(w.opts.journalPath()); err != nil { // as if a flannel had made it
					t.Fatal(err)
				}
				w.restart()
				w.m.ForgetLog()
				w.bring(0)
				if got := w.changed(); got != "" || w.network.ID != id {
					t.Errorf("taking over a network changed\n%s", got)
				}

				w.devices = slices.Clone(w.devices)
				edit(&w.devices[0], func(n *dataplane.Network) { n.Subnets = []netip.Prefix{netip.MustParsePrefix("10.244.2.0/24")} })
				edit(&w.devices[0], func(n *dataplane.Network) { n.Parent = "vEthernet (Ethernet)" }) // where the host's address is
				w.bring(5 * time.Minute)
				w.mends(time.Minute)
				want := strings.ReplaceAll(inStep[kind], "10.244.1.", "10.244.2.")
				w.check(want)
				if w.network.ID == id || len(w.log.With("cause="+causeNetworkRemade).Naming("reason", "10.244.1.0/24")) != 1 {
					t.Errorf("the network was not made again, or not said to be")
				}
				if a := w.m.Admin().Adapter("vEthernet (Ethernet)"); !hostconfig.HasAddress(a, hnstest.HostAddr.Addr()) {
					t.Errorf("the host's addresses are %+v", a.Addrs)
				}
			})
		})
	}
}

// What is not ours keeps its place: a network of our name and another's type is an error, other networks stay.
func TestNotOurs(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		if err := w.m.Admin().CreateNetwork(`{"Name":"nat","Type":"NAT","Ipams":[{"Type":"Static","Subnets":[{"IpAddressPrefix":"172.20.0.0/24"}]}],"SchemaVersion":{"Major":2,"Minor":0}}`); err != nil {
			t.Fatal(err)
		}
		w.bring(time.Minute)
		w.restart()
		w.devices = []dataplane.Device{overlayDevice(ownSubnet)}
		w.devices[0].Name = "nat"
		w.m.ForgetLog()
		err := w.pass()
		if err == nil || !logtest.Names(err.Error(), "NAT", "Backend.Name") {
			t.Errorf("a NAT network of our name gives %v", err)
		}
		if got := w.changed(); got != "" {
			t.Errorf("it changed\n%s", got)
		}
		if !strings.Contains(w.holds(), "network nat NAT") {
			t.Error("the NAT network is gone")
		}
	})
}

// Without a default route, and with two, bring-up is the same: nothing of it needs one.
func TestDefaultRoutes(t *testing.T) {
	for _, n := range []int{0, 2} {
		onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{Outage: 10 * time.Second}, func(w *windows) {
			w.m.Admin().DeleteRoutes(netip.MustParsePrefix("0.0.0.0/0"))
			index := w.m.Admin().Adapter("Ethernet").Index
			for i := range n {
				hop := hnstest.Gateway
				for range i {
					hop = hop.Prev().Next().Next().Next()
				}
				if err := w.m.Admin().AddRoute(hns.Route{Dst: netip.MustParsePrefix("0.0.0.0/0"), NextHop: hop, Index: index, Metric: 10 + i, Ours: true}); err != nil {
					t.Fatal(err)
				}
			}
			before := len(w.m.Admin().Routes())
			w.bring(5 * time.Minute)
			w.mends(time.Minute)
			if got := len(w.m.Admin().Routes()); got != before || before != n {
				t.Errorf("%d default routes became %d", before, got)
			}
		})
	}
}

// What a Windows version has not is done in another way, or said.
func TestOlderWindows(t *testing.T) {
	t.Run("remote endpoints", func(t *testing.T) {
		onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{Version: hns.Version{Major: 9, Minor: 1}}, func(w *windows) {
			w.bring(time.Minute)
			w.check(`endpoint flannel.4096_peer_10.244.3.0-24 [10.244.3.0/32] remote true 10.99.0.3 02:00:00:00:01:03
endpoint flannel.4096_peer_10.244.4.0-24 [10.244.4.0/32] remote true 10.99.0.4 02:00:00:00:01:04
endpoint flannel.4096_peer_10.244.5.0-24 [10.244.5.0/32] remote true 10.99.0.5 02:00:00:00:01:05
network flannel.4096 Overlay on Ethernet, 10.244.1.0/24 via 10.244.1.1 with VNI 4096
route 0.0.0.0/0 via 10.99.0.1 on vEthernet (Ethernet)`)
			w.restart()
			w.m.ForgetLog()
			w.bring(0)
			if got := w.changed(); got != "" {
				t.Errorf("a restart changed\n%s", got)
			}
			w.state.Paths = w.state.Paths[1:]
			w.bring(0)
			if strings.Contains(w.holds(), "10.244.3.0") {
				t.Error("a peer that is gone still has its endpoint")
			}
		})
	})
	t.Run("other port", func(t *testing.T) {
		dev := overlayDevice(ownSubnet)
		kind := dev.Kind.(dataplane.Overlay)
		kind.Port = 8472
		dev.Kind = kind
		onWindows(t, dev, hnstest.Knobs{Version: hns.Version{Major: 9, Minor: 5}}, func(w *windows) {
			if err := w.pass(); err == nil || !logtest.Names(err.Error(), "Backend.Port: 8472", "HNS 9.5", "4789", "10.3") {
				t.Errorf("got %v", err)
			}
		})
	})
	for _, v := range []hns.Version{{Major: 10, Minor: 5}, {Major: 13, Minor: 3}} {
		t.Run("dual-stack "+v.String(), func(t *testing.T) {
			dev := bridgeDevice(ownSubnet, netip.MustParsePrefix("fd05:0:0:1::/64"))
			onWindows(t, dev, hnstest.Knobs{Version: v}, func(w *windows) {
				if err := w.m.Admin().Readdress("Ethernet", hnstest.HostAddr, netip.MustParsePrefix("fd00::2/64")); err != nil {
					t.Fatal(err)
				}
				w.state.Networks = append(w.state.Networks, netip.MustParsePrefix("fd05::/56"))
				w.state.Paths = append(w.state.Paths, &dataplane.Path{Dst: netip.MustParsePrefix("fd05:0:0:3::/64"), Via: netip.MustParseAddr("fd00::3"), Device: "cbr0", Encap: dataplane.Direct{}})
				w.bring(time.Minute)
				got := w.holds()
				if has := strings.Contains(got, "route fd05:0:0:3::/64 via fd00::3") && strings.Contains(got, "fd05:0:0:1::/64 via fd05:0:0:1::1"); has != v.Features().IPv6DualStack {
					t.Errorf("HNS %s:\n%s", v, got)
				}
				if said := w.log.Count("cause=" + causeNoDualStack); said == 1 == v.Features().IPv6DualStack {
					t.Errorf("HNS %s: said %d times", v, said)
				}
			})
		})
	}
}

func TestJournal(t *testing.T) {
	path := t.TempDir() + "/new/hns.json"
	if j, err := hostconfig.ReadJournal(path); err != nil || !reflect.DeepEqual(j, hostconfig.Journal{}) {
		t.Errorf("no file gives %+v, %v", j, err)
	}
	b := &hostconfig.Snapshot{Written: time.Unix(1e9, 0).UTC(), Adapter: "Ethernet", GUID: "g", DHCP: true,
		Addresses: []hostconfig.SavedAddress{{Prefix: hnstest.HostAddr, Manual: true}, {Prefix: netip.MustParsePrefix("fd00::2/64")}},
		Routes:    []hostconfig.SavedRoute{{Dst: metadata.Dst, NextHop: metadata.NextHop, Metric: 3}}, DNS: []netip.Addr{hnstest.Gateway}}
	want := hostconfig.Journal{Networks: []string{"cbr0"}, Snapshot: b}
	if err := hostconfig.WriteJournal(path, want); err != nil {
		t.Fatal(err)
	}
	if got, err := hostconfig.ReadJournal(path); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("wrote %+v and read %+v, %v", want, got, err)
	}
	if err := os.WriteFile(path, []byte(`{"Before": {"Addresses": [{"Prefix": "nonsense"}]}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if j, err := hostconfig.ReadJournal(path); err == nil || !reflect.DeepEqual(j, hostconfig.Journal{}) {
		t.Errorf("a broken file gives %+v, %v", j, err)
	}
	if err := hostconfig.WriteJournal(path, hostconfig.Journal{}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("an empty journal leaves a file: %v", err)
	}
}

func TestPhysicalAdapter(t *testing.T) {
	adapters := []hns.Adapter{
		{Name: "Ethernet", Description: "Microsoft Hyper-V Network Adapter", MAC: dataplane.MAC{1}},
		{Name: "vEthernet (Ethernet)", Description: "Hyper-V Virtual Ethernet Adapter", MAC: dataplane.MAC{1}},
		{Name: "LAN 2", Description: "Intel(R) I350", MAC: dataplane.MAC{2}},
		{Name: "renamed", Description: "Hyper-V Virtual Ethernet Adapter #2", MAC: dataplane.MAC{2}},
		{Name: "vEthernet (nat)", Description: "Hyper-V Virtual Ethernet Adapter #3", MAC: dataplane.MAC{3}},
	}
	for underlay, want := range map[string]string{
		"Ethernet": "Ethernet", "vEthernet (Ethernet)": "Ethernet", "LAN 2": "LAN 2", "renamed": "LAN 2",
		"vEthernet (nat)": "", "gone": "",
	} {
		a, err := hostconfig.PhysicalAdapter(adapters, underlay)
		wait := (*dataplane.WaitError)(nil)
		if (err != nil) != (want == "") || a.Name != want || err != nil && !logtest.Names(err.Error(), underlay) || errors.As(err, &wait) != (underlay == "gone") {
			t.Errorf("%s: %q, %v; want %q", underlay, a.Name, err, want)
		}
	}
}
