package windows

import (
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
	"flannel/pkg/windows/hostconfig"
)

// loop puts a link to itself in the place of the journal: nobody can read that, not even root. read undoes it.
func loop(path string) error {
	return errors.Join(os.Rename(path, path+".aside"), os.Symlink(path, path))
}

func read(path string) error { return os.Rename(path+".aside", path) }

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

// What the host has while its settings cannot be saved is restored all the same, in this run; and other settings are saved at
// once, whatever the delay of the former ones.
func TestChangedWhileNotSaved(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		w.bring(time.Minute)
		w.mends(time.Minute)
		const name = "vEthernet (Ethernet)"
		path := w.opts.journalPath()
		readdress := func(p string) {
			t.Helper()
			prefix := netip.MustParsePrefix(p)
			if err := w.m.Admin().Readdress(name, prefix); err != nil {
				t.Fatal(err)
			}
			w.devices = []dataplane.Device{w.devices[0]} // as the daemon's choice of the underlay follows
			edit(&w.devices[0], func(n *dataplane.Network) { n.Local = prefix.Addr() })
		}
		if err := loop(path); err != nil {
			t.Fatal(err)
		}
		readdress("10.99.0.77/24")
		w.passes(20 * time.Minute)
		if err := read(path); err != nil {
			t.Fatal(err)
		}
		readdress("10.99.0.78/24")
		w.passes(10 * time.Second)
		if j, err := hostconfig.ReadJournal(path); err != nil || j.LastGood == nil || j.LastGood.Addresses[0].Prefix != netip.MustParsePrefix("10.99.0.78/24") {
			t.Errorf("the journal has %+v, %v", j.LastGood, err)
		}
	})
}
