package windows

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
	"flannel/pkg/windows/hns"
	"flannel/pkg/windows/hostconfig"
)

// loop puts a link to itself in the place of the journal: nobody can read that, not even root. read undoes it.
func loop(path string) error {
	return errors.Join(os.Rename(path, path+".aside"), os.Symlink(path, path))
}

func read(path string) error {
	if _, err := os.Readlink(path); err != nil {
		return fmt.Errorf("the journal was replaced: %w", err)
	}
	return os.Rename(path+".aside", path)
}

// While the journal cannot be read, no network is made or deleted, and the networks of HNS are not listed again and again.
// The node joins as soon as it can be read.
func TestUnreadableJournal(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		w.bring(time.Minute)
		w.mends(time.Minute)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		w.Driver = nil
		if err := loop(w.opts.journalPath()); err != nil {
			t.Fatal(err)
		}
		w.devices = []dataplane.Device{overlayDevice(netip.MustParsePrefix("10.244.7.0/24"))}
		w.m.ForgetLog()
		w.restart()
		for range 100 {
			if err := w.AwaitHostAddrs(w.t.Context()); !reconcile.IsUnknown(err) {
				t.Fatalf("got %v", err)
			}
		}
		time.Sleep(time.Minute)
		if n := w.calls("HcnEnumerateNetworks"); n > 0 {
			t.Errorf("networks were listed %d times", n)
		}
		w.m.ForgetLog()
		w.passes(time.Minute)
		if changed := w.changed(); changed != "" {
			t.Errorf("changed %s", changed)
		}
		if err := read(w.opts.journalPath()); err != nil {
			t.Fatal(err)
		}
		w.bring(time.Minute)
		w.mends(time.Minute)
	})
}

// Settings are saved at once, whatever the delay of former ones that could not be saved. What the host has while its settings
// cannot be saved is restored all the same, in this run.
func TestChangedWhileNotSaved(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		w.bring(time.Minute)
		w.mends(time.Minute)
		const name = "vEthernet (Ethernet)"
		path, admin := w.opts.journalPath(), w.m.Admin()
		readdress := func(p string) netip.Prefix {
			t.Helper()
			prefix := netip.MustParsePrefix(p)
			if err := admin.Readdress(name, prefix); err != nil {
				t.Fatal(err)
			}
			w.local(prefix) // as the daemon's choice of the underlay follows
			return prefix
		}
		if err := loop(path); err != nil {
			t.Fatal(err)
		}
		readdress("10.99.0.77/24")
		w.passes(20 * time.Minute)
		if err := read(path); err != nil {
			t.Fatal(err)
		}
		saved := readdress("10.99.0.78/24")
		w.passes(10 * time.Second)
		if j, err := hostconfig.ReadJournal(path); err != nil || j.LastGood == nil || j.LastGood.Addresses[0].Prefix != saved {
			t.Errorf("the journal has %+v, %v", j.LastGood, err)
		}
		if err := loop(path); err != nil {
			t.Fatal(err)
		}
		unsaved := readdress("10.99.0.79/24")
		w.passes(10 * time.Second)
		if err := errors.Join(read(path), admin.DeleteNetwork("flannel.4096"), admin.Readdress("Ethernet")); err != nil {
			t.Fatal(err)
		}
		w.passes(2 * time.Minute)
		if a := admin.Adapter(name); !hostconfig.HasAddress(a, unsaved.Addr()) {
			t.Errorf("the host has %+v", a.Addrs)
		}
	})
}

// What is saved of the host has a route to a peer that is gone, and cannot be changed: peers are written, and the route does not
// come and go.
func TestPeersWhileNotSaved(t *testing.T) {
	for _, kind := range kinds {
		onWindows(t, devicesOf(kind), hnstest.Knobs{}, func(w *windows) {
			w.bring(time.Minute)
			w.mends(time.Minute)
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			w.Driver = nil
			path := w.opts.journalPath()
			j, err := hostconfig.ReadJournal(path)
			if err != nil {
				t.Fatal(err)
			}
			stale := hostconfig.SavedRoute{Dst: netip.MustParsePrefix("10.244.9.0/24"), NextHop: netip.MustParseAddr("10.99.0.9"), Metric: 256}
			j.Snapshot = j.LastGood
			j.Snapshot.Routes = append(j.Snapshot.Routes, stale)
			if err := hostconfig.WriteJournal(path, j); err != nil {
				t.Fatal(err)
			}
			w.restart()
			if err := loop(path); err != nil {
				t.Fatal(err)
			}
			w.state.Paths = append(w.state.Paths, winPath(w.devices[0], 6))
			links, ensureErr := w.Ensure(w.t.Context(), w.devices)
			if _, err := w.Apply(w.t.Context(), links, w.state); err != nil {
				t.Errorf("%s: %v; Ensure: %v", kind, err, ensureErr)
			}
			if !strings.Contains(w.holds(), "10.244.6.0/24") {
				t.Errorf("%s: Ensure: %v; there is\n%s", kind, ensureErr, w.holds())
			}
			if _, err := w.Ensure(w.t.Context(), w.devices); err != nil || w.log.Count("level=WARN", "cause="+causeJournal) != 1 {
				t.Errorf("%s: Ensure: %v; it does not say once that the journal cannot be written:\n%s", kind, err, w.log)
			}
			w.m.ForgetLog()
			w.bring(time.Minute)
			w.mends(5 * time.Minute)
			if changed := w.changed(); changed != "" {
				t.Errorf("%s: changed\n%s", kind, changed)
			}
			if n := w.log.Count("level=WARN", "cause="+causeJournal); n != 1 { // the last good settings cannot be saved either, by now
				t.Errorf("%s: it says %d times that the journal cannot be written:\n%s", kind, n, w.log)
			}
			if err := read(path); err != nil {
				t.Fatal(err)
			}
			w.bring(time.Minute)
			w.mends(time.Minute)
			if strings.Contains(w.holds(), stale.Dst.String()) {
				t.Errorf("%s: there is\n%s", kind, w.holds())
			}
		})
	}
}

// On a host with DHCP and without a cable, cleanup does not wait for the addresses, and what it could not write of the routes
// to peers is an error: the next run would restore them.
func TestCleanupWhileNotSaved(t *testing.T) {
	onWindows(t, bridgeDevice(ownSubnet), hnstest.Knobs{Outage: -1}, func(w *windows) {
		admin, path := w.m.Admin(), w.opts.journalPath()
		a := admin.Adapter("Ethernet")
		peer := hostconfig.SavedRoute{Dst: netip.MustParsePrefix("10.244.9.0/24"), NextHop: netip.MustParseAddr("10.99.0.9"), Metric: 256}
		saved := hostconfig.Snapshot{Written: time.Now(), Adapter: a.Name, GUID: a.GUID, MAC: a.MAC, DHCP: true,
			Addresses: []hostconfig.SavedAddress{{Prefix: hnstest.HostAddr}}, Routes: []hostconfig.SavedRoute{peer}}
		if err := errors.Join(admin.Configure("Ethernet", hns.Persistent{DHCP: true}), admin.SetUp("Ethernet", false),
			hostconfig.WriteJournal(path, hostconfig.Journal{Snapshot: &saved})); err != nil {
			t.Fatal(err)
		}
		w.restart()
		if err := loop(path); err != nil {
			t.Fatal(err)
		}
		if _, err := w.cleanup(w.t.Context(), w.state.Networks, false); err == nil {
			t.Error("cleanup could not write the journal, and returns no error")
		}
		if err := read(path); err != nil {
			t.Fatal(err)
		}
		w.restart()
		if _, err := w.cleanup(w.t.Context(), w.state.Networks, false); err != nil {
			t.Error(err)
		}
		if j, err := hostconfig.ReadJournal(path); err != nil || j.Snapshot == nil || len(j.Snapshot.Routes) > 0 {
			t.Errorf("the journal has %+v, %v", j.Snapshot, err)
		}
	})
}
