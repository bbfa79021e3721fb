package windows

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/internal/test/logtest"
	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
	"flannel/pkg/windows/hostconfig"
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
		if got := w.changed(); got != "" || strings.Contains(w.holds(), "10.244.3.0") || w.hostConfig.Pending() {
			t.Errorf("a minute with nothing to do changed\n%s\nthe machine holds\n%s", got, w.holds())
		}
	})
}

// A network that has the name of ours for the switch, on another adapter, stays whoever made it.
func TestPrepareLeavesOthers(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		w.m.Plug(hns.Adapter{Name: "LAN 2", MAC: dataplane.MAC{2, 9}, MTU: 1500, Up: true})
		if err := w.m.Admin().CreateNetwork(strings.ReplaceAll(foreignSwitch, `"Ethernet"`, `"LAN 2"`)); err != nil {
			t.Fatal(err)
		}
		before := w.holds()
		if _, _, err := w.prepared(time.Minute); err == nil || !logtest.Names(err.Error(), "flanneld prepare", "L2Bridge", "Overlay") {
			t.Errorf("got %v", err)
		}
		if got := w.changed(); got != "" || w.holds() != before {
			t.Errorf("it changed\n%s\nthe machine holds\n%s", got, w.holds())
		}
		w.bring(time.Minute) // without it
	})
}

// ownMind is an HNS that returns networks in another form than they were requested in.
type ownMind struct {
	*hnstest.Machine
	asked, tells string
}

func (o ownMind) Networks() ([]json.RawMessage, error) {
	all, err := o.Machine.Networks()
	for i := range all {
		all[i] = bytes.ReplaceAll(all[i], []byte(o.asked), []byte(o.tells))
	}
	return all, err
}

// A network that HNS makes otherwise than asked is not made again, by a new run neither, until something else is asked for.
func TestOtherwiseThanAsked(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		start := func() {
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			w.Driver = New(w.opts, hns.NewClient(ownMind{w.m, "10.244.1.1\"", "10.244.1.254\""}, hns.Timing{}), w.m)
		}
		for run := range 2 {
			start()
			w.bring(time.Minute)
			w.mends(5 * time.Minute)
			if made, said := w.log.Count("cause="+causeNetworkMade), len(w.log.With("cause="+causeNetworkDiffers).Naming("msg", "10.244.1.0/24", "10.244.1.254")); made != 1 || said != run+1 {
				t.Errorf("run %d: made %d times, said %d times", run, made, said)
			}
		}
		w.devices = []dataplane.Device{overlayDevice(netip.MustParsePrefix("10.244.9.0/24"))}
		w.bring(time.Minute)
		if !strings.Contains(w.holds(), "10.244.9.0/24 via 10.244.9.1 ") || strings.Contains(w.holds(), "10.244.1.") {
			t.Errorf("the machine holds\n%s", w.holds())
		}
	})
}

// A network of our name that cannot be understood is there nevertheless: HNS would make a second of that name.
func TestNotUnderstood(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		w.bring(time.Minute)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		w.Driver = New(w.opts, hns.NewClient(ownMind{w.m, "10.244.1.0/24", "10.244.1.0 mask 24"}, hns.Timing{}), w.m)
		w.m.ForgetLog()
		for range 3 {
			if err := w.pass(); err == nil || !logtest.Names(err.Error(), "Backend.Name", "subnet: ") {
				t.Errorf("got %v", err)
			}
		}
		if got := w.changed(); got != "" {
			t.Errorf("it changed\n%s", got)
		}
	})
}

// HNS may list a network's subnets in any order.
func TestOrderOfSubnets(t *testing.T) {
	dev, err := deviceOf(bridgeDevice(ownSubnet, netip.MustParsePrefix("fd05:0:0:1::/64")))
	if err != nil {
		t.Fatal(err)
	}
	want, err := wantedNetwork(dev, "Ethernet", hns.Version{Major: 13})
	if err != nil {
		t.Fatal(err)
	}
	have := want
	have.Subnets = []hns.Subnet{want.Subnets[1], want.Subnets[0]}
	if why := differs(have, want); why != "" {
		t.Error(why)
	}
	have.Subnets = have.Subnets[:1]
	if why := differs(have, want); why == "" {
		t.Error("a subnet is missing")
	}
}

// Prepare runs while a daemon is there that has no lease yet: what each wrote down stays.
func TestPrepareBesideDaemon(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		daemon := w.Driver
		w.Driver = nil
		if _, _, err := w.prepared(time.Minute); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		w.Driver = daemon
		w.bring(time.Minute)
		w.mends(time.Minute)
		want := hostconfig.Journal{Networks: []string{"flannel.4096"}, Switches: []string{"External"}}
		j, err := hostconfig.ReadJournal(w.opts.journalPath())
		j.LastGood, j.Boot, j.Requested = nil, "", nil
		if err != nil || !reflect.DeepEqual(j, want) {
			t.Errorf("the journal holds %+v, %v", j, err)
		}
	})
}
