package windows

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
	"flannel/pkg/windows/hostconfig"
)

// mended is how long a change by another program may last.
const mended = 10 * time.Second

func policiesOf(w *windows, change func([]hns.Policy) []hns.Policy) error {
	return w.m.Admin().Policies("flannel.4096", change)
}

// Changes of the network by another program are repaired within seconds, with or without a notification of HNS.
func TestDriftOfNetworks(t *testing.T) {
	faults := map[string]struct {
		kinds []netKind
		do    func(*windows) error
	}{
		"service restarted": {kinds, func(w *windows) error { w.m.Restart(); return nil }},
		"network deleted":   {kinds, func(w *windows) error { return w.m.Admin().DeleteNetwork(w.devices[0].Name) }},
		"policy removed": {kinds[:1], func(w *windows) error {
			return w.m.Admin().DeleteRemoteSubnet("flannel.4096", netip.MustParsePrefix("10.244.4.0/24"))
		}},
		"all policies removed": {kinds[:1], func(w *windows) error {
			return policiesOf(w, func(all []hns.Policy) []hns.Policy {
				return slices.DeleteFunc(all, func(p hns.Policy) bool { return p.IsRemoteSubnet() || p.Type == "HostRoute" })
			})
		}},
		"policy changed": {kinds[:1], func(w *windows) error {
			return policiesOf(w, func(all []hns.Policy) []hns.Policy {
				for i, p := range all {
					all[i].Settings = []byte(strings.ReplaceAll(string(p.Settings), "10.99.0.4", "10.99.0.44"))
				}
				return all
			})
		}},
		"policy there twice": {kinds[:1], func(w *windows) error {
			return policiesOf(w, func(all []hns.Policy) []hns.Policy {
				twice := slices.IndexFunc(all, func(p hns.Policy) bool { return p.IsRemoteSubnet() })
				return append(all, all[twice])
			})
		}},
		"policy of a stranger": {kinds[:1], func(w *windows) error {
			return policiesOf(w, func(all []hns.Policy) []hns.Policy {
				r := hns.RemoteSubnet{Prefix: netip.MustParsePrefix("10.244.9.0/24"), VSID: 4096, Provider: netip.MustParseAddr("10.99.0.9"), MAC: dataplane.MAC{2}}
				return append(all, r.Policy())
			})
		}},
		"endpoint deleted": {kinds[1:], func(w *windows) error { return w.m.Admin().DeleteEndpoint("cbr0_ep") }},
		"forwarding off":   {kinds[1:], func(w *windows) error { return w.m.Admin().SetForwarding("vEthernet (Ethernet)", false, false) }},
		"route deleted":    {kinds[1:], func(w *windows) error { w.m.Admin().DeleteRoutes(netip.MustParsePrefix("10.244.4.0/24")); return nil }},
		"route of a stale lease": {kinds[1:], func(w *windows) error {
			return w.m.Admin().AddRoute(hns.Route{Dst: netip.MustParsePrefix("10.244.4.0/24"), NextHop: netip.MustParseAddr("10.99.0.44"),
				Index: w.m.Admin().Adapter("vEthernet (Ethernet)").Index, Metric: 256})
		}},
		"adapter renamed": {kinds, func(w *windows) error { return w.m.Admin().Rename("vEthernet (Ethernet)", "vEthernet (LAN)") }},
	}
	for name, fault := range faults {
		for _, kind := range fault.kinds {
			for _, silent := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, %s, silent %t", name, kind, silent), func(t *testing.T) {
					onWindows(t, devicesOf(kind), hnstest.Knobs{Silent: silent}, func(w *windows) {
						w.bring(time.Minute)
						w.mends(time.Minute)
						w.check(inStep[kind])
						if err := fault.do(w); err != nil {
							t.Fatal(err)
						}
						w.m.ForgetLog()
						w.mends(mended)
						want := inStep[kind]
						if name == "adapter renamed" {
							want = strings.ReplaceAll(want, "vEthernet (Ethernet)", "vEthernet (LAN)")
						}
						w.check(want)
						once := len(w.m.Changes())
						w.mends(time.Minute)
						if again := len(w.m.Changes()); again != once {
							t.Errorf("mending took %d changes, and then %d more", once, again-once)
						}
						if n := w.log.Count("level=WARN"); n > 1 {
							t.Errorf("%d warnings", n)
						}
					})
				})
			}
		}
	}
}

// While Windows refuses the notifications of its IP stack, changes there are found at intervals; afterwards, by notifications.
func TestNoStackNotifications(t *testing.T) {
	onWindows(t, bridgeDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		w.m.Fail(hnstest.Fault{Func: "NotifyRouteChange2", Code: hns.InvalidParameter})
		w.restart()
		w.bring(time.Minute)
		w.mends(time.Minute)
		drift := func() {
			t.Helper()
			w.m.Admin().DeleteRoutes(netip.MustParsePrefix("10.244.4.0/24"))
		}
		for range 3 {
			drift()
			w.mends(mended)
			w.check(inStep[bridgeKind])
		}
		drift()
		w.m.Heal()
		w.mends(mended)
		w.check(inStep[bridgeKind])
		drift()
		w.mends(w.pace.Poll / 10)
		w.check(inStep[bridgeKind])
		if n := w.log.Count("level=WARN"); n != 1 {
			t.Errorf("%d warnings", n)
		}
	})
}

// What happened while we were down is put right by the first pass.
func TestLeasesMovedWhileDown(t *testing.T) {
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			dev := devicesOf(kind)
			onWindows(t, dev, hnstest.Knobs{}, func(w *windows) {
				moved := winPath(dev, 44)
				moved.Dst = netip.MustParsePrefix("10.244.4.0/24")
				now := w.state.Paths
				w.state.Paths = []*dataplane.Path{now[0], moved, now[2], winPath(dev, 9)} // 4 was elsewhere, 9 is gone
				w.bring(time.Minute)
				w.restart()
				w.state.Paths = now
				w.m.ForgetLog()
				w.bring(0)
				w.check(inStep[kind])
				if want := map[netKind]int{overlayKind: 3, bridgeKind: 3}[kind]; len(w.m.Changes()) != want {
					t.Errorf("it took %d changes, want %d:\n%s", len(w.m.Changes()), want, w.changed())
				}
			})
		})
	}
}

// A call of HNS that hangs holds up a pass for seconds only, is said once, and stops nobody from ending.
func TestHangingHNS(t *testing.T) {
	for _, function := range []string{"HcnEnumerateNetworks", "HcnCreateNetwork", "HcnModifyNetwork", "HcnQueryNetworkProperties"} {
		t.Run(function, func(t *testing.T) {
			onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
				w.m.Fail(hnstest.Fault{Func: function, Hang: true, Times: 1})
				began := time.Now()
				for time.Since(began) < time.Minute {
					pass := time.Now()
					if w.pass() == nil {
						t.Fatal("in step although HNS hangs")
					}
					if took := time.Since(pass); took > 6*time.Second {
						t.Errorf("a pass took %v", took)
					}
					time.Sleep(time.Second)
				}
				if n := len(w.problems); n > 4 {
					t.Errorf("it said %d things: %q", n, w.problems)
				}
				w.m.Heal()
				w.bring(time.Minute)
				w.check(overlayInStep)

				w.m.Fail(hnstest.Fault{Func: "", Hang: true})
				w.QueueResync()
				ctx, cancel := context.WithCancel(w.t.Context())
				time.AfterFunc(time.Second, cancel)
				ended := time.Now()
				_, _ = w.Ensure(ctx, w.devices)
				if err := w.Close(); err != nil {
					t.Error(err)
				}
				if took := time.Since(ended); took > 3*time.Second {
					t.Errorf("ending took %v after a second", took)
				}
				w.m.Heal()
			})
		})
	}
}

// An outage of HNS leaves the network as it is.
func TestOutageOfHNS(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		w.bring(time.Minute)
		w.m.Turn(func(k *hnstest.Knobs) { k.Down = true })
		w.state.Paths = append(slices.Clone(w.state.Paths), winPath(w.devices[0], 6))
		w.QueueResync()
		if err := w.pass(); !errors.Is(err, hns.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
		if _, known := w.links["flannel.4096"]; !known {
			t.Error("the network is forgotten while HNS does not answer")
		}
		w.check(overlayInStep)
		w.m.Turn(func(k *hnstest.Knobs) { k.Down = false })
		w.bring(time.Minute)
		if !strings.Contains(w.holds(), "10.244.6.0/24") {
			t.Error("the new peer has no policy")
		}
	})
}

// Another VNI, another backend, none: what was ours before goes, and nothing else.
func TestChangesOfBackend(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{Outage: 10 * time.Second}, func(w *windows) {
		w.bring(5 * time.Minute)
		w.mends(time.Minute)
		next := overlayDevice(ownSubnet)
		kind := next.Kind.(dataplane.Overlay)
		kind.VNI = 4097
		next.Name, next.Kind = "flannel.4097", kind
		w.use(next)
		w.bring(5 * time.Minute)
		w.check(strings.ReplaceAll(overlayInStep, "4096", "4097"))
		w.use(bridgeDevice(ownSubnet))
		w.bring(5 * time.Minute)
		w.mends(time.Minute)
		w.check(bridgeInStep)
		w.use(dataplane.Device{Name: "Ethernet", Kind: dataplane.Existing{}})
		w.state.Paths = nil
		w.bring(time.Minute)
		w.mends(time.Minute)
		w.check("route 0.0.0.0/0 via 10.99.0.1 on Ethernet")
		if j, err := hostconfig.ReadJournal(w.opts.journalPath()); err != nil || len(j.Networks) > 0 || j.Snapshot != nil {
			t.Errorf("the journal holds %+v, %v", j, err)
		}
	})
}

// use gives the node another device, and peers 3 to 5 through it.
func (w *windows) use(dev dataplane.Device) {
	w.devices, w.state.Paths = []dataplane.Device{dev}, nil
	for n := 3; n <= 5; n++ {
		w.state.Paths = append(w.state.Paths, winPath(dev, n))
	}
}

func TestCleanup(t *testing.T) {
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			knobs := hnstest.Knobs{Outage: 10 * time.Second}
			onWindows(t, devicesOf(kind), knobs, func(w *windows) {
				w.addMetadataRoute()
				if err := w.m.Admin().CreateNetwork(`{"Name":"nat","Type":"NAT","Ipams":[{"Type":"Static","Subnets":[{"IpAddressPrefix":"172.20.0.0/24"}]}],"SchemaVersion":{"Major":2,"Minor":0}}`); err != nil {
					t.Fatal(err)
				}
				w.bring(5 * time.Minute)
				w.mends(time.Minute)
				before := w.holds()
				w.restart()
				w.m.ForgetLog()
				listed, err := w.cleanup(w.t.Context(), []netip.Prefix{winNetwork}, true)
				if err != nil || w.changed() != "" || w.holds() != before {
					t.Errorf("a dry run changed\n%s\n%v", w.changed(), err)
				}
				w.m.Turn(func(k *hnstest.Knobs) { k.LoseRoutes, k.LoseDNS = true, true })
				removed, err := w.cleanup(w.t.Context(), []netip.Prefix{winNetwork}, false)
				if err != nil || !slices.Equal(listed, removed) || len(removed) != map[netKind]int{overlayKind: 1, bridgeKind: 4}[kind] {
					t.Errorf("removed %q, listed %q, %v", removed, listed, err)
				}
				w.check(`network nat NAT on , 172.20.0.0/24 via invalid IP
route 0.0.0.0/0 via 10.99.0.1 on Ethernet
route 169.254.169.254/32 via 10.99.0.1 on Ethernet`)
				if dns := w.m.Admin().Adapter("Ethernet").DNS; len(dns) != 1 {
					t.Errorf("DNS servers %v", dns)
				}
			})
		})
	}
}

// The backend has no HNS network any more, and HNS does not answer: our network is deleted when HNS does.
func TestNetworkDroppedWhileSilent(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		w.bring(time.Minute)
		w.mends(time.Minute)
		w.m.Fail(hnstest.Fault{Code: hns.RPCServerUnavailable})
		w.use(dataplane.Device{Name: "Ethernet", Kind: dataplane.Existing{}})
		w.state.Paths = nil
		_ = w.pass()
		w.m.Heal()
		w.mends(time.Minute)
		if got := w.m.Admin().Networks(); len(got) > 0 {
			t.Errorf("%s remains", got)
		}
	})
}
