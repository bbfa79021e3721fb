package windows

import (
	"context"
	"errors"
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

// prepared calls Prepare's work as the command does, in a process of its own.
func (w *windows) prepared(limit time.Duration) (p dataplane.Prepared, waits []string, err error) {
	w.t.Helper()
	w.restart()
	ctx, cancel := context.WithTimeout(w.t.Context(), limit)
	defer cancel()
	p, err = w.prepare(ctx, dataplane.SwitchFor(w.devices[0]), func(why error) {
		if wait := (*dataplane.WaitError)(nil); errors.As(why, &wait) {
			waits = append(waits, wait.Cause())
		}
	})
	w.restart()
	return p, waits, err
}

// After Prepare the node comes up without an outage, and what the daemon deletes of its own leaves the switch alone.
func TestPrepare(t *testing.T) {
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			knobs := slow
			knobs.LoseDNS, knobs.LoseRoutes, knobs.Down = true, true, true
			onWindows(t, devicesOf(kind), knobs, func(w *windows) {
				w.addMetadataRoute()
				time.AfterFunc(20*time.Second, func() { w.m.Turn(func(k *hnstest.Knobs) { k.Down = false }) })
				p, waits, err := w.prepared(5 * time.Minute)
				host := w.m.Admin().Adapter("vEthernet (Ethernet)")
				if err != nil || !p.Made || p.Adapter != "Ethernet" || p.Network != "External" || p.Interface != host.Name ||
					!slices.Equal(p.Addresses, []netip.Prefix{hnstest.HostAddr}) {
					t.Errorf("%+v, %v", p, err)
				}
				for _, want := range []string{causeHNSSilent, causeAddressMoves, hostconfig.CauseNoAddress} {
					if !slices.Contains(waits, want) {
						t.Errorf("it did not wait for %s, but for %q", want, waits)
					}
				}
				w.hasAll()
				w.m.ForgetLog()
				if again, _, err := w.prepared(time.Minute); err != nil || again.Made || again.Network != "External" || w.changed() != "" {
					t.Errorf("a second time: %+v, %v, changed\n%s", again, err, w.changed())
				}
				began := time.Now()
				w.bring(time.Minute)
				if took := time.Since(began); took > 10*time.Second || w.log.Count("cause="+causeNetworkMade, "bound=true") != 1 {
					t.Errorf("the daemon took %v after it", took)
				}
				edit(&w.devices[0], func(n *dataplane.Network) { n.Subnets = []netip.Prefix{netip.MustParsePrefix("10.244.9.0/24")} }) // joined again: another network
				w.bring(time.Minute)
				if now := w.m.Admin().Adapter(host.Name); now.Index != host.Index || len(now.Addrs) != len(host.Addrs) {
					t.Errorf("the host's interface was %+v and is %+v", host, now)
				}
				w.hasAll()
				if !strings.Contains(w.holds(), "network External "+map[netKind]string{overlayKind: "Overlay", bridgeKind: "L2Bridge"}[kind]+" on Ethernet, 192.168.255.0/30") {
					t.Errorf("the machine holds\n%s", w.holds())
				}
				removed, err := w.cleanup(w.t.Context(), w.state.Networks, false)
				if i := slices.IndexFunc(removed, func(s string) bool { return strings.Contains(s, "External") }); err != nil || i != len(removed)-1 {
					t.Errorf("cleanup removed %q, %v", removed, err)
				}
				if a := w.m.Admin().Adapter("Ethernet"); len(hostconfig.Addresses(a)) != 1 || w.holds() != "route 0.0.0.0/0 via 10.99.0.1 on Ethernet\nroute 169.254.169.254/32 via 10.99.0.1 on Ethernet" {
					t.Errorf("cleanup left %+v\n%s", a, w.holds())
				}
				if _, err := os.Stat(w.opts.journalPath()); err == nil {
					t.Error("cleanup left the journal")
				}
			})
		})
	}
}

// What prepare reports with an error is what there is: a network that was made and still waits, or none after it was deleted
// again.
func TestPrepareReportsWhatThereIs(t *testing.T) {
	for _, kind := range kinds {
		onWindows(t, devicesOf(kind), hnstest.Knobs{Outage: 10 * time.Second, VirtualDown: true}, func(w *windows) {
			if p, _, err := w.prepared(time.Minute); err == nil || !p.Made || p.Network != "External" || p.Interface != "" {
				t.Errorf("while the host has no addresses: %+v, %v", p, err)
			}
		})
		onWindows(t, devicesOf(kind), hnstest.Knobs{Outage: 10 * time.Second, VirtualDown: true}, func(w *windows) {
			if p, _, err := w.prepared(5 * time.Minute); err == nil || p.Made || p.Network != "" || p.Adapter != "Ethernet" || w.bound() {
				t.Errorf("after the network was deleted again: %+v, %v", p, err)
			}
		})
		onWindows(t, devicesOf(kind), hnstest.Knobs{Outage: 10 * time.Second}, func(w *windows) {
			ctx, interrupt := context.WithCancel(w.t.Context())
			p, err := w.prepare(ctx, dataplane.SwitchFor(w.devices[0]), func(error) { interrupt() }) // by the step that makes the network
			if err == nil || !p.Made || p.Network != "External" || p.Adapter != "Ethernet" {
				t.Errorf("interrupted when the network was made: %+v, %v", p, err)
			}
		})
		onWindows(t, devicesOf(kind), hnstest.Knobs{}, func(w *windows) {
			w.plugOther()
			if err := w.m.Admin().CreateNetwork(strings.ReplaceAll(foreignSwitch, "Ethernet", "LAN 2")); err != nil {
				t.Fatal(err)
			}
			if p, _, err := w.prepared(time.Minute); err == nil || p.Made || p.Network != "" || w.changed() != "" {
				t.Errorf("beside another External on another adapter: %+v, %v, changed\n%s", p, err, w.changed())
			}
		})
	}
}

// foreignSwitch is a network with which a script bound the switch of "Ethernet".
const foreignSwitch = `{"Name":"External","Type":"L2Bridge","Policies":[{"Type":"NetAdapterName","Settings":{"NetworkAdapterName":"Ethernet"}}],"Ipams":[{"Type":"Static","Subnets":[{"IpAddressPrefix":"192.168.200.0/24","Routes":[{"NextHop":"192.168.200.1","DestinationPrefix":"0.0.0.0/0"}]}]}],"SchemaVersion":{"Major":2,"Minor":0}}`

// A switch of the right type is good enough, whoever bound it and whatever its network looks like; and a Prepare that was
// killed in the middle is finished by the next.
func TestPrepareFindsASwitch(t *testing.T) {
	onWindows(t, bridgeDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		if err := w.m.Admin().CreateNetwork(foreignSwitch); err != nil {
			t.Fatal(err)
		}
		if p, _, err := w.prepared(time.Minute); err != nil || p.Made || p.Network != "External" || p.Interface != "vEthernet (Ethernet)" {
			t.Errorf("%+v, %v", p, err)
		}
		if got := w.changed(); got != "" {
			t.Errorf("changed\n%s", got)
		}
		if removed, err := w.cleanup(w.t.Context(), nil, false); err != nil || len(removed) > 0 {
			t.Errorf("cleanup removed %q, %v", removed, err)
		}
	})
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{Outage: 20 * time.Second, APIPA: true}, func(w *windows) {
		if _, _, err := w.prepared(5 * time.Second); !errors.As(err, new(*dataplane.WaitError)) || !logtest.Names(err.Error(), "External") {
			t.Errorf("within five seconds: %v", err)
		}
		if p, _, err := w.prepared(5 * time.Minute); err != nil || !slices.Equal(p.Addresses, []netip.Prefix{hnstest.HostAddr}) {
			t.Errorf("after that: %+v, %v", p, err)
		}
		// Without the journal nobody knows whose External is.
		journal, err := os.ReadFile(w.opts.journalPath())
		if err == nil {
			err = os.WriteFile(w.opts.journalPath(), []byte("{,"), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		w.restart()
		if removed, err := w.cleanup(w.t.Context(), nil, false); err == nil || !logtest.Names(err.Error(), w.opts.journalPath(), "External") || len(removed) > 0 {
			t.Errorf("cleanup without a journal removed %q, %v", removed, err)
		}
		if err := os.WriteFile(w.opts.journalPath(), journal, 0o644); err != nil {
			t.Fatal(err)
		}
		w.restart()
		if removed, err := w.cleanup(w.t.Context(), nil, false); err != nil || len(removed) != 1 {
			t.Errorf("cleanup removed %q, %v", removed, err)
		}
	})
}

// What kube-proxy cannot run on is not prepared for; a bridge needs less.
func TestPrepareOnOldHNS(t *testing.T) {
	for kind, refused := range map[netKind]bool{overlayKind: true, bridgeKind: false} {
		onWindows(t, devicesOf(kind), hnstest.Knobs{Version: hns.Version{Major: 9, Minor: 1}}, func(w *windows) {
			began := time.Now()
			_, _, err := w.prepared(time.Hour)
			if !refused && err != nil || refused && (!errors.As(err, new(*tooOldError)) || !logtest.Names(err.Error(), "9.1", "KB4489899") || time.Since(began) > time.Minute) {
				t.Errorf("%s: %v after %v", kind, err, time.Since(began))
			}
			if changed := w.changed(); refused && changed != "" {
				t.Errorf("changed:\n%s", changed)
			}
		})
	}
}

// An adapter that has got another name is the same one: it has its switch, and what its host loses is put back.
func TestAdapterRenamed(t *testing.T) {
	for _, kind := range kinds {
		for _, first := range []bool{true, false} { // External, or the daemon's own network
			onWindows(t, devicesOf(kind), hnstest.Knobs{}, func(w *windows) {
				w.addMetadataRoute()
				if first {
					if _, _, err := w.prepared(time.Minute); err != nil {
						t.Fatal(err)
					}
				} else {
					w.bring(time.Minute)
					w.mends(time.Minute)
				}
				if err := w.m.Admin().Rename("Ethernet", "LAN 2"); err != nil {
					t.Fatal(err)
				}
				w.m.ForgetLog()
				w.devices = slices.Clone(w.devices)
				edit(&w.devices[0], func(n *dataplane.Network) { n.Parent = "LAN 2" })
				if first {
					if p, _, err := w.prepared(time.Minute); err != nil || p.Made || p.Adapter != "LAN 2" || w.changed() != "" {
						t.Errorf("%+v, %v, changed\n%s", p, err, w.changed())
					}
					return
				}
				w.m.Turn(func(k *hnstest.Knobs) {
					k.Outage, k.APIPA, k.LoseDNS, k.LoseRoutes = 10*time.Second, true, true, true
				})
				edit(&w.devices[0], func(n *dataplane.Network) { n.Subnets = []netip.Prefix{netip.MustParsePrefix("10.244.9.0/24")} })
				w.mends(5 * time.Minute)
				if err := w.m.Admin().Rename("vEthernet (LAN 2)", "vEthernet (Ethernet)"); err != nil {
					t.Fatal(err)
				}
				w.hasAll()
			})
		}
	}
}
