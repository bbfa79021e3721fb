package windows

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/internal/test/logtest"
	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
	"flannel/pkg/windows/hostconfig"
)

// plugOther adds an adapter without a switch.
func (w *windows) plugOther() {
	w.m.Plug(hns.Adapter{Name: "LAN 2", Description: "another", MTU: 1500, MAC: dataplane.MAC{2, 0, 0, 0, 0, 9}, Up: true,
		Addrs: []hns.Address{{Prefix: netip.MustParsePrefix("10.98.0.2/24"), Manual: true, Preferred: true}}})
}

// The daemon's network joins the switch of prepare, whatever this HNS wants for that: the name of the adapter, its address,
// or nothing.
func TestSecondNetwork(t *testing.T) {
	for name, turn := range map[string]func(*hnstest.Knobs){
		"name":              func(k *hnstest.Knobs) { k.EmptyRefused = true },
		"name, not nothing": func(k *hnstest.Knobs) { k.EmptyElsewhere = true },
		"nothing":           func(k *hnstest.Knobs) { k.BoundName = hns.AdapterNotFound },
		"nothing, 0x57":     func(k *hnstest.Knobs) { k.BoundName = hns.InvalidParameter },
		"address": func(k *hnstest.Knobs) {
			k.BoundName, k.EmptyRefused, k.ProviderSelects = hns.AdapterNotFound, true, true
		},
		"address, two empty": func(k *hnstest.Knobs) {
			k.BoundName, k.EmptyElsewhere, k.ProviderSelects = hns.NetAdapterNotFound, true, true
		},
	} {
		for _, kind := range kinds {
			t.Run(fmt.Sprintf("%s, %s", name, kind), func(t *testing.T) {
				onWindows(t, devicesOf(kind), hnstest.Knobs{Outage: 10 * time.Second}, func(w *windows) {
					w.plugOther()
					if _, _, err := w.prepared(time.Minute); err != nil {
						t.Fatal(err)
					}
					w.m.Turn(turn)
					w.bring(time.Minute)
					w.mends(time.Minute)
					if a := w.m.Admin().Adapter("LAN 2"); w.network.Adapter != "Ethernet" || len(hostconfig.Addresses(a)) != 1 {
						t.Errorf("the network is on %s; LAN 2 has %+v", w.network.Adapter, a.Addrs)
					}
					if made := w.log.Count("cause=" + causeNetworkMade); made != 2 {
						t.Errorf("%d networks were made", made)
					}
				})
			})
		}
	}
}

// HNS refuses the name and takes another adapter without it: the network is removed from there, once, and the error names
// both adapters.
func TestMisplacedNetwork(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{Outage: 10 * time.Second}, func(w *windows) {
		w.plugOther()
		if _, _, err := w.prepared(time.Minute); err != nil {
			t.Fatal(err)
		}
		w.m.Turn(func(k *hnstest.Knobs) { k.BoundName, k.EmptyElsewhere = hns.AdapterNotFound, true })
		err := w.pass()
		if err == nil || !logtest.Names(err.Error(), "Ethernet", "LAN 2") || !errors.Is(err, hns.ErrNotFound) {
			t.Errorf("got %v", err)
		}
		for began := time.Now(); time.Since(began) < 2*time.Minute; time.Sleep(time.Second) {
			_ = w.pass()
		}
		created := 0
		for _, c := range w.m.Changes() {
			if strings.HasPrefix(c.Text, "HcnCreateNetwork") && strings.Contains(c.Text, "flannel.4096") {
				created++
			}
		}
		if addrs := hostconfig.Addresses(w.m.Admin().Adapter("LAN 2")); created != 1 || len(addrs) != 1 {
			t.Errorf("%d networks were created; LAN 2 has %+v", created, addrs)
		}
	})
}

// The adapter on which HNS put the network gets back what it had, although HNS turned it into DHCP without DNS servers. One
// without addresses, which has nothing to lose, is freed, too.
func TestMisplacedNetworkLosesNothing(t *testing.T) {
	for _, addressed := range []bool{true, false} {
		onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{Outage: 10 * time.Second}, func(w *windows) {
			w.plugOther()
			server := netip.MustParseAddr("10.98.0.53")
			if err := w.m.SetDNS(w.m.Admin().Adapter("LAN 2").Index, []netip.Addr{server}); err != nil {
				t.Fatal(err)
			}
			if _, _, err := w.prepared(time.Minute); err != nil {
				t.Fatal(err)
			}
			if !addressed {
				if err := w.m.Admin().Readdress("LAN 2"); err != nil {
					t.Fatal(err)
				}
			}
			w.m.Turn(func(k *hnstest.Knobs) {
				k.BoundName, k.EmptyElsewhere, k.BecomesDHCP, k.LoseDNS = hns.AdapterNotFound, true, true, true
			})
			w.passes(4 * time.Minute)
			if n := len(w.m.Admin().Networks()); n != 1 { // External
				t.Errorf("addressed %t: there are %d networks: %q", addressed, n, w.problems)
			}
			if !addressed {
				return
			}
			w.isStaticOther("LAN 2")
			if dns := w.m.Admin().Adapter("LAN 2").DNS; !slices.Equal(dns, []netip.Addr{server}) {
				t.Errorf("the DNS servers of LAN 2 are %v", dns)
			}
		})
	}
}

// The call without a name times out, and HNS puts the network on another adapter: it is removed from there, too.
func TestMisplacedAfterTimeout(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{Outage: 10 * time.Second}, func(w *windows) {
		w.plugOther()
		if _, _, err := w.prepared(time.Minute); err != nil {
			t.Fatal(err)
		}
		w.m.Turn(func(k *hnstest.Knobs) { k.BoundName, k.EmptyElsewhere = hns.AdapterNotFound, true })
		w.m.Fail(hnstest.Fault{Func: "HcnCreateNetwork", Skip: 2, Times: 1, Delay: 20*time.Second + offbeat})
		w.passes(3 * time.Minute)
		if addrs := hostconfig.Addresses(w.m.Admin().Adapter("LAN 2")); len(w.m.Admin().Networks()) != 1 || len(addrs) != 1 {
			t.Errorf("%s; LAN 2 has %+v", w.m.Admin().Networks(), addrs)
		}
	})
}

// An overlay on an adapter with another kind of switch is refused before anything is asked of HNS, with what to do.
func TestOtherSwitch(t *testing.T) {
	for _, kind := range []string{"L2Bridge", "Transparent"} {
		onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
			if err := w.m.Admin().CreateNetwork(fmt.Sprintf(`{"Name":"theirs","Type":"%s","SchemaVersion":{"Major":2,"Minor":0}}`, kind)); err != nil {
				t.Fatal(err)
			}
			w.m.ForgetLog()
			if err := w.pass(); err == nil || !logtest.Names(err.Error(), "Ethernet", "theirs", kind, "hnsdiag") || w.changed() != "" {
				t.Errorf("got %v, changed\n%s", err, w.changed())
			}
			if _, _, err := w.prepared(time.Minute); err == nil || !logtest.Names(err.Error(), "theirs", kind) {
				t.Errorf("prepare: %v", err)
			}
		})
	}
	onWindows(t, bridgeDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		if _, _, err := w.prepared(time.Minute); err != nil {
			t.Fatal(err)
		}
		w.devices = []dataplane.Device{overlayDevice(ownSubnet)}
		w.m.ForgetLog()
		if err := w.pass(); err == nil || !logtest.Names(err.Error(), "External", "cleanup", "prepare") || w.changed() != "" {
			t.Errorf("got %v, changed\n%s", err, w.changed())
		}
	})
}

// HNS has not answered the request for one network when the configuration names another one, which an earlier flannel made:
// that is as wanted, and keeps its pods.
func TestPendingNetworkOfOtherName(t *testing.T) {
	onWindows(t, bridgeDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		w.bring(time.Minute)
		id, wanted := w.network.ID, w.devices
		if err := os.Remove(w.opts.journalPath()); err != nil { // as if a flannel had made it
			t.Fatal(err)
		}
		w.restart()
		other := bridgeDevice(netip.MustParsePrefix("10.244.9.0/24"))
		other.Name = "cbr1"
		w.devices = []dataplane.Device{other}
		w.m.Fail(hnstest.Fault{Func: "HcnCreateNetwork", Delay: 20*time.Second + offbeat, Times: 1})
		for began := time.Now(); w.Driver.pending == nil; time.Sleep(time.Second) {
			if time.Since(began) > time.Minute {
				t.Fatalf("HNS was not asked for cbr1: %q", w.problems)
			}
			_ = w.pass()
		}
		w.devices = wanted
		w.bring(5 * time.Minute)
		if w.network.ID != id || w.log.Count("cause="+causeNetworkRemade) > 0 {
			t.Errorf("the network was made again")
		}
	})
}

// HNS refuses the network, whatever the code, and then somebody else makes another one of its name: what was asked for and
// refused says nothing about that one, which is made again as it is wanted.
func TestRefusedNetworkMadeByOthers(t *testing.T) {
	for _, code := range []hns.Code{hns.InvalidJSON, hns.InvalidNetworkType} {
		onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
			w.m.Fail(hnstest.Fault{Func: "HcnCreateNetwork", Times: 1, Code: code})
			for began := time.Now(); w.calls("HcnCreateNetwork") == 0; time.Sleep(time.Second) {
				if time.Since(began) > time.Minute {
					t.Fatalf("HNS was not asked for the network: %q", w.problems)
				}
				_ = w.pass()
			}
			other := `{"Name":"flannel.4096","Type":"Overlay","Policies":[{"Type":"NetAdapterName","Settings":{"NetworkAdapterName":"Ethernet"}}],
				"Ipams":[{"Subnets":[{"IpAddressPrefix":"10.244.9.0/24","Policies":[{"Type":"VSID","Settings":{"IsolationId":4096}}],
				"Routes":[{"NextHop":"10.244.9.1","DestinationPrefix":"0.0.0.0/0"}]}]}],"SchemaVersion":{"Major":2,"Minor":0}}`
			if err := w.m.Admin().CreateNetwork(other); err != nil {
				t.Fatal(err)
			}
			w.bring(5 * time.Minute)
			w.mends(time.Minute)
			w.check(overlayInStep)
		})
	}
}

// The adapter was prepared for host-gw, and the configuration becomes vxlan, which its switch cannot carry, with the same
// Backend.Name or another: the network with the pods stays until somebody has prepared the adapter again.
func TestKeptWithoutReplacement(t *testing.T) {
	for _, name := range []string{"flannel.4096", "cbr0"} {
		onWindows(t, bridgeDevice(ownSubnet), hnstest.Knobs{Outage: 10 * time.Second}, func(w *windows) {
			if _, _, err := w.prepared(time.Minute); err != nil {
				t.Fatal(err)
			}
			w.bring(time.Minute)
			w.mends(time.Minute)
			id, next := w.network.ID, overlayDevice(ownSubnet)
			next.Name = name
			w.devices = []dataplane.Device{next}
			w.state.Paths = nil
			w.passes(2 * time.Minute)
			if err := w.pass(); err == nil || !logtest.Names(err.Error(), "External", "flanneld cleanup") {
				t.Errorf("%s: got %v", name, err)
			}
			if !slices.ContainsFunc(w.m.Admin().Networks(), func(document json.RawMessage) bool { return network(t, document).ID == id }) {
				t.Errorf("%s: the network with the pods was deleted:\n%s", name, w.log)
			}
		})
	}
}

// The underlay becomes another adapter, which has a bridge of another program: the network stays, and the error names the bridge
// once the underlay has stayed there.
func TestKeptWithoutReplacementElsewhere(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		w.plugOther()
		w.bring(time.Minute)
		w.mends(time.Minute)
		if err := w.m.Admin().CreateNetwork(`{"Name":"theirs","Type":"L2Bridge","Policies":[{"Type":"NetAdapterName","Settings":{"NetworkAdapterName":"LAN 2"}}],"Ipams":[{"Type":"Static","Subnets":[{"IpAddressPrefix":"172.20.0.0/24"}]}],"SchemaVersion":{"Major":2,"Minor":0}}`); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		id := w.network.ID
		w.devices = slices.Clone(w.devices)
		edit(&w.devices[0], func(n *dataplane.Network) { n.Parent, n.Local = "LAN 2", netip.MustParseAddr("10.98.0.2") })
		if wait := (*dataplane.WaitError)(nil); !errors.As(w.pass(), &wait) || wait.Cause() != causeUnderlayMoves {
			t.Errorf("at first: %q", w.problems)
		}
		w.passes(2 * time.Minute)
		if err := w.pass(); err == nil || !logtest.Names(err.Error(), "LAN 2", "theirs", "hnsdiag") || w.network == nil || w.network.ID != id {
			t.Errorf("got %v; made again: %d", err, w.log.Count("cause="+causeNetworkRemade))
		}
	})
}

// The bridge of an earlier flannel, which the journal does not know, has the name of the wanted overlay, and nothing else is
// on the switch: the overlay takes its place.
func TestUnknownBridgeReplaced(t *testing.T) {
	onWindows(t, bridgeDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		w.bring(time.Minute)
		if err := os.Remove(w.opts.journalPath()); err != nil {
			t.Fatal(err)
		}
		w.restart()
		next := overlayDevice(ownSubnet)
		next.Name = "cbr0"
		w.devices = []dataplane.Device{next}
		w.state.Paths = nil
		w.bring(2 * time.Minute)
		if w.network.Type != hns.Overlay {
			t.Errorf("the network is %s: %q", w.network.Type, w.problems)
		}
	})
}
