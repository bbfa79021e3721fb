package hostconfig

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/internal/test/logtest"
	"flannel/pkg/reconcile"
	"flannel/pkg/windows/hns"
)

// refusable returns the path of a journal, and a function that says whether it can be read. Whether or not, it can be
// replaced. Root can read every file, so that a link to itself takes the place of one that cannot be read. The function
// returns when a Keeper may look again, so tests run in a bubble of testing/synctest.
func refusable(t *testing.T) (path string, allow func(bool)) {
	t.Helper()
	dir := t.TempDir()
	path, aside := filepath.Join(dir, "hns.json"), filepath.Join(dir, "aside")
	allow = func(readable bool) {
		t.Helper()
		from, to := path, aside
		if readable {
			if _, err := os.Readlink(path); err != nil {
				t.Errorf("the journal was replaced: %v", err)
			}
			from, to = aside, path
		}
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
		if !readable {
			if err := os.Symlink(path, path); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(readPause)
	}
	return path, allow
}

// A journal that cannot be read stays as it is, and is used as soon as it can be read. Until then, flanneld restores nothing,
// takes nothing for complete, and saves nothing in its place.
func TestUnreadableJournal(t *testing.T) { synctest.Test(t, testUnreadableJournal) }

func testUnreadableJournal(t *testing.T) {
	for _, later := range []bool{false, true} {
		path, allow := refusable(t)
		m := hnstest.New()
		defer m.Close() //nolint:errcheck // it counts handles, of which there are none
		before := Journal{Networks: []string{"cbr0"}, Boot: "boot 0", LastGood: staticSnapshot(m), Snapshot: staticSnapshot(m)}
		before.Snapshot.Adapter = "Former"
		if err := WriteJournal(path, before); err != nil {
			t.Fatal(err)
		}
		before, err := ReadJournal(path) // times lose their monotonic part
		if err != nil {
			t.Fatal(err)
		}
		if !later {
			allow(false)
		}
		k := onJournal(t, path)
		if later {
			allow(false)
		} else if err := k.Restore(nil); !k.Pending() || !k.NeedsStatic() || !reconcile.IsUnknown(err) {
			t.Errorf("pending: %t, needs a static address: %t, Restore: %v", k.Pending(), k.NeedsStatic(), err)
		}
		a := m.Admin().Adapter("Ethernet")
		if err := k.Save(a, a, m.Admin().Adapters(), m.Admin().Routes()); err == nil {
			t.Errorf("unreadable later: %t: saved other settings", later)
		}
		if err := k.SetOwned("flannel.4096", false, true); err == nil {
			t.Errorf("unreadable later: %t: owns a network", later)
		}
		allow(true)
		if j, err := ReadJournal(path); err != nil || !reflect.DeepEqual(j, before) {
			t.Errorf("unreadable later: %t: the journal holds %+v, %v", later, j, err)
		}
		if owned := k.Owned(false); !reflect.DeepEqual(owned, before.Networks) || k.ReadErr() != nil || !k.HasSnapshot() {
			t.Errorf("unreadable later: %t: owns %v, has a snapshot: %t, error %v", later, owned, k.HasSnapshot(), k.ReadErr())
		}
		if err := k.SetOwned("flannel.4096", false, true); err != nil {
			t.Error(err)
		}
		before.Networks = append(before.Networks, "flannel.4096")
		if j, err := ReadJournal(path); err != nil || !reflect.DeepEqual(j, before) {
			t.Errorf("unreadable later: %t: afterwards, the journal holds %+v, %v", later, j, err)
		}
	}
}

// What a boot may have changed is not recorded as the last good settings before it was compared with those.
func TestComparedBeforeRecorded(t *testing.T) { synctest.Test(t, testComparedBeforeRecorded) }

func testComparedBeforeRecorded(t *testing.T) {
	path, allow := refusable(t)
	m := hnstest.New()
	defer m.Close() //nolint:errcheck // it counts handles, of which there are none
	former, last := netip.MustParsePrefix("10.99.0.7/24"), staticSnapshot(m)
	last.Addresses[0].Prefix = former
	if err := WriteJournal(path, Journal{LastGood: last, Boot: "an earlier one"}); err != nil {
		t.Fatal(err)
	}
	allow(false)
	k := onJournal(t, path)
	allow(true)
	a := m.Admin().Adapter("Ethernet")
	if unsaved := k.RecordGood(a, a, m.Admin().Routes()); unsaved != "" {
		t.Errorf("would save %s", unsaved)
	}
	if j, err := ReadJournal(path); err != nil || j.LastGood == nil || j.LastGood.Addresses[0].Prefix != former || j.Snapshot == nil || !j.Snapshot.AtBoot {
		t.Errorf("the journal holds %+v, %v", j, err)
	}
}

// readOnly returns the path of a journal that can be read and not replaced, and a function that lets it be replaced. Root can
// write in every directory, so that the path first leads through the list of open files.
func readOnly(t *testing.T, j Journal) (path string, allow func()) {
	t.Helper()
	dir := t.TempDir()
	if err := WriteJournal(filepath.Join(dir, "hns.json"), j); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join(dir, "hns.json"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() }) // it is only read
	name, way := strconv.Itoa(int(f.Fd())), filepath.Join(t.TempDir(), "way")
	if err := errors.Join(os.Rename(f.Name(), filepath.Join(dir, name)), os.Symlink("/proc/self/fd", way)); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(way, name), func() {
		t.Helper()
		if err := errors.Join(os.Remove(way), os.Symlink(dir, way)); err != nil {
			t.Fatal(err)
		}
	}
}

// What can be read of a journal is used, also if the journal cannot be written: the host gets the address that a boot has lost,
// and the category, and the comparison ends. The file says so as soon as it can be written, and what somebody has set since
// stays: nothing is compared again.
func TestUnwritableJournal(t *testing.T) {
	m := hnstest.New()
	defer m.Close() //nolint:errcheck // it counts handles, of which there are none
	admin := m.Admin()
	last := snapshotOf(t, m, "Ethernet").static4()
	if err := errors.Join(admin.Configure("Ethernet", hns.Persistent{DHCP: true}), admin.SetCategory("Ethernet", hns.Public)); err != nil {
		t.Fatal(err)
	}
	saved := SavedCategory{Category: hns.Private, Adapter: last.Adapter, GUID: last.GUID, Done: true, Host: last.GUID, Boot: "an earlier one"}
	path, allow := readOnly(t, Journal{Networks: []string{"cbr0"}, LastGood: last, Category: &saved, Boot: saved.Boot})
	var log logtest.Log
	k := New(path, Limits{}, m, log.Logger())
	if k.ReadErr() != nil || !slices.Equal(k.Owned(false), []string{"cbr0"}) || !k.HasSnapshot() || log.Count("level=WARN") == 0 {
		t.Errorf("owns %v, has a snapshot: %t, error %v, logged\n%s", k.Owned(false), k.HasSnapshot(), k.ReadErr(), &log)
	}
	var err error
	for range 10 {
		err = k.Restore(nil)
	}
	host := admin.Adapter("Ethernet")
	if !HasAddress(host, hnstest.HostAddr.Addr()) || !slices.Equal(host.DNS, last.DNS) || admin.Category("Ethernet") != hns.Private || k.Pending() || err != nil {
		t.Errorf("the host has %+v, its network is %v; pending: %t, %v", host, admin.Category("Ethernet"), k.Pending(), err)
	}
	if j, err := ReadJournal(path); err != nil || !reflect.DeepEqual(*j.Category, saved) || j.Boot != saved.Boot || j.Snapshot != nil {
		t.Errorf("the journal was written: %+v, %v", j, err)
	}
	if unsaved := k.RecordGood(host, host, admin.Routes()); unsaved != "" || k.WriteSettled() == nil || k.SaveGood() == nil {
		t.Errorf("would save %q; or a file was written that cannot be", unsaved)
	}
	if err := errors.Join(admin.SetDNS("Ethernet"), admin.SetCategory("Ethernet", hns.Public)); err != nil {
		t.Fatal(err)
	}
	host = admin.Adapter("Ethernet")
	k.RecordGood(host, host, admin.Routes())
	allow()
	if err := k.SaveGood(); err != nil {
		t.Fatal(err)
	}
	if j, err := ReadJournal(path); err != nil || j.Snapshot != nil || j.Boot != k.boot || !j.Category.Done || j.LastGood == nil || len(j.LastGood.DNS) > 0 {
		t.Errorf("the journal holds %+v, %v", j, err)
	}
	for range 10 {
		_ = k.Restore(nil)
	}
	if now := admin.Adapter("Ethernet"); len(now.DNS) > 0 || admin.Category("Ethernet") != hns.Public || k.Pending() {
		t.Errorf("the host has %+v, its network is %v; pending: %t", now, admin.Category("Ethernet"), k.Pending())
	}
	if unsaved := k.RecordGood(host, host, admin.Routes()); unsaved != "" {
		t.Errorf("would save again %q", unsaved)
	}
}

// What could not be written about a snapshot, that it is restored or that somebody has set other DNS servers since the last boot,
// is written as soon as it can be, and changes no other snapshot, which another process has saved meanwhile.
func TestSettledIsWritten(t *testing.T) {
	for _, c := range []struct{ atBoot, otherSaved bool }{{false, false}, {false, true}, {true, false}, {true, true}} {
		synctest.Test(t, func(t *testing.T) {
			m := hnstest.New()
			defer m.Close() //nolint:errcheck // it counts handles, of which there are none
			host := m.Admin().Adapter("Ethernet")
			saved, limits := snapshotOf(t, m, "Ethernet"), Limits{}
			if saved.AtBoot = c.atBoot; c.atBoot {
				saved.DNS, limits.Rest = []netip.Addr{netip.MustParseAddr("10.99.0.53")}, time.Hour // so that the snapshot stays
			}
			path, allow := readOnly(t, Journal{Networks: []string{"cbr0"}, Snapshot: saved})
			var log logtest.Log
			k := New(path, limits, m, log.Logger())
			for range 10 {
				_ = k.Restore(nil)
			}
			if k.HasSnapshot() != c.atBoot || k.WriteSettled() == nil {
				t.Errorf("%+v: there is a snapshot: %t; or a file was written that cannot be", c, k.HasSnapshot())
			}
			if j, err := ReadJournal(path); err != nil || !j.Snapshot.equal(saved) {
				t.Errorf("%+v: the journal was written: %+v, %v", c, j.Snapshot, err)
			}
			allow()
			want := k.journal.Snapshot
			if c.otherSaved {
				want = new(*saved)
				want.Written = saved.Written.Add(time.Minute)
				if err := WriteJournal(path, Journal{Networks: []string{"cbr0"}, Snapshot: want}); err != nil {
					t.Fatal(err)
				}
			} else if c.atBoot && !slices.Equal(want.DNS, host.DNS) {
				t.Errorf("the snapshot has the DNS servers %v", want.DNS)
			}
			time.Sleep(readPause)
			if err := k.WriteSettled(); err != nil {
				t.Error(err)
			}
			if j, err := ReadJournal(path); err != nil || j.Snapshot != want && !j.Snapshot.equal(want) {
				t.Errorf("%+v: the journal holds %+v, %v", c, j.Snapshot, err)
			}
		})
	}
}

// A journal that cannot be read is not read at each call.
func TestUnreadableIsNotReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path, allow := refusable(t)
		if err := WriteJournal(path, Journal{Networks: []string{"cbr0"}}); err != nil {
			t.Fatal(err)
		}
		allow(false)
		k := onJournal(t, path)
		time.Sleep(readPause - 1)
		if err := os.Rename(filepath.Join(filepath.Dir(path), "aside"), path); err != nil {
			t.Fatal(err)
		}
		if owned := k.Owned(false); len(owned) > 0 {
			t.Errorf("it was read at once: owns %v", owned)
		}
		time.Sleep(time.Nanosecond)
		if owned := k.Owned(false); !slices.Equal(owned, []string{"cbr0"}) {
			t.Errorf("owns %v", owned)
		}
	})
}

// The networks of pods that cannot be saved count at once, and are saved later. Those whose routes nobody knows yet are taken up
// when the snapshot is known.
func TestPodNetworksLater(t *testing.T) { synctest.Test(t, testPodNetworksLater) }

func testPodNetworksLater(t *testing.T) {
	m := hnstest.New()
	defer m.Close() //nolint:errcheck // it counts handles, of which there are none
	snapshot := staticSnapshot(m)
	pods := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	snapshot.Routes = append(snapshot.Routes, SavedRoute{netip.MustParsePrefix("10.244.4.0/24"), hnstest.Gateway, 10})
	check := func(k *Keeper, path string) {
		t.Helper()
		k.SetPodNetworks(pods)
		if err := k.WriteSettled(); err != nil {
			t.Error(err)
		}
		if j, err := ReadJournal(path); err != nil || len(j.Snapshot.Routes) != 1 {
			t.Errorf("the journal holds %+v, %v", j.Snapshot, err)
		}
	}
	path, allow := readOnly(t, Journal{Snapshot: snapshot})
	k := onJournal(t, path)
	if k.SetPodNetworks(pods); len(k.journal.Snapshot.Routes) != 1 || k.WriteSettled() == nil {
		t.Errorf("the snapshot has the routes %v; or they are saved", k.journal.Snapshot.Routes)
	}
	allow()
	time.Sleep(readPause)
	check(k, path)

	path, readable := refusable(t)
	if err := WriteJournal(path, Journal{Snapshot: snapshot}); err != nil {
		t.Fatal(err)
	}
	readable(false)
	k = onJournal(t, path)
	k.SetPodNetworks(pods)
	readable(true)
	check(k, path)
}

// A journal that cannot be read says nothing about whether the host got its addresses back; once that is known, and the journal
// still cannot be read, the host counts as reachable. What to do with the file, the error says.
func TestUnreadableIsUncertain(t *testing.T) { synctest.Test(t, testUnreadableIsUncertain) }

func testUnreadableIsUncertain(t *testing.T) {
	path, allow := refusable(t)
	if err := WriteJournal(path, Journal{Networks: []string{"cbr0"}}); err != nil {
		t.Fatal(err)
	}
	allow(false)
	k := onJournal(t, path)
	if err := k.ReadErr(); !k.uncertain || !logtest.Names(err.Error(), path, "permissions", "delete") {
		t.Errorf("uncertain: %t; %v", k.uncertain, err)
	}
	k.SetReachable()
	if k.Pending(); k.uncertain {
		t.Error("reading again makes it uncertain")
	}
	allow(true)
	k = onJournal(t, path)
	if k.uncertain {
		t.Error("the journal names a network")
	}
}
