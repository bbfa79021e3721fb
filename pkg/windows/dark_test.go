package windows

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/pkg/windows/hns"
	"flannel/pkg/windows/hostconfig"
)

// endInOutage makes the network, and ends the daemon while the host has no addresses. damage then changes the journal.
func (w *windows) endInOutage(damage func(path string) error) {
	w.t.Helper()
	for began := time.Now(); len(w.m.Admin().Networks()) == 0; time.Sleep(time.Second) {
		if time.Since(began) > time.Minute {
			w.t.Fatalf("no network: %q", w.problems)
		}
		_ = w.pass()
	}
	w.passes(5 * time.Second)
	if err := w.Close(); err != nil {
		w.t.Fatal(err)
	}
	w.Driver = nil
	if err := damage(w.opts.journalPath()); err != nil {
		w.t.Fatal(err)
	}
	w.restart()
}

func unreadable(path string) error { return os.WriteFile(path, []byte("\x00\x00\x00"), 0o600) }

// unwritable puts a file in the place of the journal's directory. writable undoes that.
func unwritable(path string) error {
	dir := filepath.Dir(path)
	return errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600))
}

func writable(path string) error {
	dir := filepath.Dir(path)
	return errors.Join(os.Remove(dir), os.Mkdir(dir, 0o700))
}

// A network whose bring-up fails is rolled back also if the journal, with what the host had, is gone or cannot be read or
// written.
func TestRollBackWithoutJournal(t *testing.T) {
	for _, kind := range kinds {
		for name, damage := range map[string]func(string) error{"gone": os.Remove, "unreadable": unreadable, "unwritable": unwritable} {
			t.Run(string(kind)+" "+name, func(t *testing.T) {
				onWindows(t, devicesOf(kind), hnstest.Knobs{Outage: 10 * time.Second, VirtualDown: true}, func(w *windows) {
					w.endInOutage(damage)
					w.passes(3 * time.Minute)
					w.isStatic("Ethernet")
					if n := w.log.Count("cause=" + causeRolledBack); n != 1 || len(w.m.Admin().Networks()) != 0 {
						t.Errorf("rolled back %d times", n)
					}
					w.passes(5 * time.Minute) // it is not made at once again
					w.isStatic("Ethernet")
					if name == "unwritable" { // until what the host has can be saved
						if err := writable(w.opts.journalPath()); err != nil {
							t.Fatal(err)
						}
					}
					w.m.Turn(func(k *hnstest.Knobs) { k.VirtualDown = false })
					w.bring(20 * time.Minute)
					w.mends(time.Minute)
				})
			})
		}
	}
}

// The virtual adapter is up and stays without addresses. Without a journal, flanneld may have caused that; with one, it has
// not, and waits: no network is deleted because DHCP does not answer.
func TestRollBackOnlyOfOurs(t *testing.T) {
	for name, damage := range map[string]func(string) error{"gone": os.Remove, "there": func(string) error { return nil }} {
		t.Run(name, func(t *testing.T) {
			onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
				w.bring(time.Minute)
				w.mends(time.Minute)
				if err := w.Close(); err != nil {
					t.Fatal(err)
				}
				w.Driver = nil
				if err := damage(w.opts.journalPath()); err != nil {
					t.Fatal(err)
				}
				if err := w.m.Admin().Readdress("vEthernet (Ethernet)"); err != nil { // none
					t.Fatal(err)
				}
				w.restart()
				w.passes(5 * time.Minute)
				deleted := w.log.Count("cause="+causeRolledBack) > 0
				if deleted != (name == "gone") || deleted != (len(w.m.Admin().Networks()) == 0) {
					t.Errorf("the network was deleted: %t\n%s", deleted, w.log)
				}
			})
		})
	}
}

// The virtual adapter of a host by DHCP does not come up when the network is made: the network is deleted.
func TestRollBackDHCP(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{Outage: 10 * time.Second, VirtualDown: true}, func(w *windows) {
		if err := w.m.Admin().Configure("Ethernet", hns.Persistent{DHCP: true}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		lease := hostconfig.Addresses(w.m.Admin().Adapter("Ethernet"))
		w.local(lease[0].Prefix)
		w.passes(4 * time.Minute)
		if got := hostconfig.Addresses(w.m.Admin().Adapter("Ethernet")); w.log.Count("cause="+causeRolledBack) != 1 || !slices.Equal(got, lease) {
			t.Errorf("the host has %+v\n%s", got, w.log)
		}
	})
}

// A host by DHCP has no snapshot after a boot. The virtual adapter of our switch does not come up: the switch is deleted.
func TestRollBackDHCPAfterBoot(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{Outage: 10 * time.Second}, func(w *windows) {
		if err := w.m.Admin().Configure("Ethernet", hns.Persistent{DHCP: true}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		w.local(hostconfig.Addresses(w.m.Admin().Adapter("Ethernet"))[0].Prefix)
		if _, _, err := w.prepared(5 * time.Minute); err != nil {
			t.Fatal(err)
		}
		w.bring(5 * time.Minute)
		w.mends(time.Minute)
		w.rebootDown()
		w.passes(3 * time.Minute)
		w.m.Turn(func(k *hnstest.Knobs) { k.Outage = 10 * time.Second }) // until the DHCP server answers
		w.passes(time.Minute)
		a := w.m.Admin().Adapter("Ethernet")
		if len(hostconfig.Addresses(a)) != 1 || len(w.m.Admin().Networks()) != 0 || w.log.Count("cause="+causeRolledBack) != 1 {
			t.Errorf("Ethernet has %+v, logged\n%s", a.Addrs, w.log)
		}
	})
}

// prepare was killed in the outage, and the virtual adapter never comes up. A second run deletes what the first one made.
func TestPrepareRollsBackFormerRun(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{Outage: 10 * time.Second, VirtualDown: true}, func(w *windows) {
		if p, _, err := w.prepared(30 * time.Second); err == nil || !p.Made {
			t.Fatalf("%+v, %v", p, err)
		}
		_, _, err := w.prepared(4 * time.Minute)
		if err == nil || len(w.m.Admin().Networks()) != 0 {
			t.Errorf("%v, networks %s", err, w.m.Admin().Networks())
		}
		w.isStatic("Ethernet")
	})
}

// The journal cannot be written when two networks are rolled back: both are deleted at once, and not made at once again.
func TestRollBackUnwritable(t *testing.T) {
	withSwitch(t, hnstest.Knobs{Outage: 10 * time.Second}, func(w *windows) {
		admin := w.m.Admin()
		if err := unwritable(w.opts.journalPath()); err != nil {
			t.Fatal(err)
		}
		w.m.Turn(func(k *hnstest.Knobs) { k.Outage = -1 }) // nothing has the host's addresses
		if err := errors.Join(admin.Configure("vEthernet (Ethernet)", admin.Stored("vEthernet (Ethernet)")), admin.SetUp("vEthernet (Ethernet)", false)); err != nil {
			t.Fatal(err)
		}
		for began := time.Now(); len(admin.Networks()) == 2; time.Sleep(time.Second) {
			if time.Since(began) > 3*time.Minute {
				t.Fatalf("not rolled back: %q", w.problems)
			}
			_ = w.pass()
		}
		if n := len(admin.Networks()); n != 0 || w.log.Count("cause="+causeRolledBack) != 2 || w.log.Count("cause="+causeJournal, "level=WARN") == 0 {
			t.Errorf("%d networks are left, logged\n%s", n, w.log)
		}
		w.m.Turn(func(k *hnstest.Knobs) { k.Outage = 10 * time.Second })
		if err := writable(w.opts.journalPath()); err != nil {
			t.Fatal(err)
		}
		w.passes(5 * time.Minute)
		w.isStatic("Ethernet")
		if len(admin.Networks()) != 0 {
			t.Errorf("made again: %q", w.problems)
		}
		w.bring(20 * time.Minute)
	})
}
