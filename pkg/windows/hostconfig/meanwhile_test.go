package hostconfig

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
)

// refuse puts a file in the place of the journal's directory, so that nobody can write, and nothing can be read. allow undoes that
// with what another process has saved meanwhile.
func (r *rig) refuse() {
	r.t.Helper()
	dir := filepath.Dir(r.path)
	if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) allow(saved Journal) {
	r.t.Helper()
	dir := filepath.Dir(r.path)
	if err := errors.Join(os.Remove(dir), os.Mkdir(dir, 0o700), WriteJournal(r.path, saved)); err != nil {
		r.t.Fatal(err)
	}
}

// setGateway has the registry, and nothing else, get the host's address and a gateway.
func (r *rig) setGateway(gateway string) {
	r.t.Helper()
	static := hns.Persistent{Addrs: []netip.Prefix{hnstest.HostAddr}, Gateways: []hns.Gateway{{Addr: netip.MustParseAddr(gateway), Metric: 10}}}
	if err := r.m.SetPersistent(r.m.Admin().Adapter("Ethernet").Index, static); err != nil {
		r.t.Fatal(err)
	}
}

// Somebody has changed a gateway before the boot, which cannot be written, and changes it again. Meanwhile, another process has
// saved the settings of another adapter: that one gets them, and Windows gets the whole time for it.
func TestOtherSnapshotMeanwhile(t *testing.T) {
	withJournal(t, func(j *Journal, m *hnstest.Machine) { j.Snapshot = staticSnapshot(m); j.Snapshot.AtBoot = true }, func(r *rig) {
		admin := r.m.Admin()
		other := snapshotOf(t, r.m, "LAN 2")
		other.Written = other.Written.Add(time.Minute)
		r.m.Turn(func(k *hnstest.Knobs) { k.StoredOnly = true })
		r.setGateway("10.99.0.254")
		if err := errors.Join(admin.Readdress("Ethernet"), admin.Readdress("LAN 2")); err != nil { // none
			t.Fatal(err)
		}
		r.refuse()
		if err := r.restores(29 * time.Second); err == nil || len(r.unwritten) == 0 || r.journal.Snapshot.Routes[0].NextHop != netip.MustParseAddr("10.99.0.254") {
			t.Errorf("%v; not written are %d changes of %+v", err, len(r.unwritten), r.journal.Snapshot)
		}
		r.allow(Journal{Snapshot: other})
		r.setGateway("10.99.0.253")
		if err := r.m.AddAddress(admin.Adapter("Ethernet").Index, netip.MustParsePrefix("169.254.3.4/16")); err != nil { // its own address would be restored at once
			t.Fatal(err)
		}
		r.m.ForgetLog()
		if err := r.restores(30 * time.Second); err == nil || len(r.m.Changes()) > 0 || r.saved() != "LAN 2" {
			t.Errorf("%v; saved is %s, changed %v", err, r.saved(), r.m.Changes())
		}
		if err := r.restores(20 * time.Second); err != nil || !HasAddress(admin.Adapter("LAN 2"), other.Addresses[0].Prefix.Addr()) || r.saved() != "" {
			t.Errorf("%v; saved is %s, LAN 2 has %+v", err, r.saved(), admin.Adapter("LAN 2"))
		}
		if a := admin.Adapter("Ethernet"); len(Addresses(a)) > 0 {
			t.Errorf("Ethernet has %+v", a)
		}
	})
}

// Another process saves a snapshot of LAN 2 just before that of Ethernet is deleted: LAN 2 is waited for at once.
func TestOtherSnapshotBeforeDeletion(t *testing.T) {
	for name, c := range map[string]struct {
		begin func(*rig) error
		after time.Duration // the snapshot of Ethernet is deleted
	}{
		"complete": {func(*rig) error { return nil }, 5 * time.Second},
		"refused": {func(r *rig) error {
			r.m.Admin().DeleteRoutes(defaultRoute.Dst)
			r.m.Fail(hnstest.Fault{Func: "CreateIpForwardEntry2", Code: hns.InvalidParameter})
			return nil
		}, time.Minute},
		"unplugged": {func(r *rig) error {
			r.journal.Snapshot.AtBoot = true
			return errors.Join(WriteJournal(r.path, r.journal), r.m.Admin().Unplug("Ethernet"))
		}, time.Minute},
	} {
		withStatic(t, func(r *rig) {
			admin := r.m.Admin()
			other := snapshotOf(t, r.m, "LAN 2")
			other.Written = other.Written.Add(time.Minute)
			if err := errors.Join(admin.Readdress("LAN 2"), c.begin(r)); err != nil { // none
				t.Fatal(err)
			}
			if _ = r.restores(c.after); r.saved() != "Ethernet" {
				t.Fatalf("%s: the snapshot of Ethernet is deleted", name)
			}
			if err := WriteJournal(r.path, Journal{Snapshot: other}); err != nil {
				t.Fatal(err)
			}
			if err := r.RestoreStatic(nil); !errors.As(err, new(*dataplane.WaitError)) || r.saved() != "LAN 2" {
				t.Errorf("%s: %v; saved is %s", name, err, r.saved())
			}
		})
	}
}

// Another process saves the adapter's settings, with a route that the daemon makes to a peer: the route is left out.
func TestPodRouteSavedMeanwhile(t *testing.T) {
	withJournal(t, func(*Journal, *hnstest.Machine) {}, func(r *rig) {
		r.SetPodNetworks([]netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")})
		saved := staticSnapshot(r.m)
		saved.Routes = append(saved.Routes, SavedRoute{netip.MustParsePrefix("10.244.4.0/24"), hnstest.Gateway, 10})
		if err := errors.Join(WriteJournal(r.path, Journal{Snapshot: saved}), r.SetOwned("cbr0", false, true)); err != nil {
			t.Fatal(err)
		}
		if j, err := ReadJournal(r.path); err != nil || len(j.Snapshot.Routes) != 1 || len(r.journal.Snapshot.Routes) != 1 {
			t.Errorf("%v; the journal has the routes %+v, the Keeper %+v", err, j.Snapshot.Routes, r.journal.Snapshot.Routes)
		}
	})
}

// slowCategory is a machine on which something happens while Windows is asked for a category.
type slowCategory struct {
	*hnstest.Machine
	during *func()
}

func (m slowCategory) Category(guid string) (hns.Category, error) {
	(*m.during)()
	return m.Machine.Category(guid)
}

// A category that is deleted while Windows is asked for it does not come back, neither as one that is restored nor as another
// one that somebody has chosen.
func TestCategoryDeletedMeanwhile(t *testing.T) {
	for _, done := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m, during := hnstest.New(), func() {}
			defer m.Close() //nolint:errcheck // it counts handles, of which there are none
			if err := m.Admin().SetCategory("Ethernet", hns.Domain); err != nil {
				t.Fatal(err)
			}
			a := m.Admin().Adapter("Ethernet")
			saved := SavedCategory{Category: hns.Private, Adapter: a.Name, GUID: a.GUID, Done: done, Host: a.GUID, Boot: "boot 0"}
			k := keeper(t, m, slowCategory{m, &during}, Journal{Category: &saved})
			asked := 0
			during = func() {
				asked++
				if err := k.Forget(); err != nil {
					t.Error(err)
				}
			}
			_ = k.Restore(nil)
			k.TrackCategory()
			if j, err := ReadJournal(k.path); asked != 1 || err != nil || j.Category != nil || k.savedCategory() != nil {
				t.Errorf("done: %t; asked %d times; the journal has %+v, %v", done, asked, j.Category, err)
			}
		})
	}
}
