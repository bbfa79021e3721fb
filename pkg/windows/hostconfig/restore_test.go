package hostconfig

import (
	"errors"
	"net/netip"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/internal/test/logtest"
	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
)

// rig is a Keeper with the limits of the driver, on a machine with the adapters Ethernet and LAN 2. All of it runs in a
// bubble of testing/synctest, where waiting takes no time.
type rig struct {
	*Keeper
	t   *testing.T
	m   *hnstest.Machine
	log logtest.Log
}

// withJournal runs a test with the journal that change makes of an empty one.
func withJournal(t *testing.T, change func(*Journal, *hnstest.Machine), test func(*rig)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hns.json")
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, m: hnstest.New()}
		defer r.m.Close() //nolint:errcheck // it counts handles, of which there are none
		r.m.Plug(hns.Adapter{Name: "LAN 2", MTU: 1500, MAC: dataplane.MAC{2, 0, 0, 0, 0, 9}, Up: true,
			Addrs: []hns.Address{{Prefix: netip.MustParsePrefix("10.98.0.2/24"), Manual: true, Preferred: true}}})
		var j Journal
		change(&j, r.m)
		if err := WriteJournal(path, j); err != nil {
			t.Fatal(err)
		}
		r.Keeper = New(path, Limits{Address: 30 * time.Second, DHCP: time.Minute, Rest: 5 * time.Second}, r.m, r.log.Logger())
		test(r)
	})
}

// withStatic is withJournal for a snapshot of Ethernet as hnstest.New makes it.
func withStatic(t *testing.T, test func(*rig)) {
	t.Helper()
	withJournal(t, func(j *Journal, m *hnstest.Machine) { j.Snapshot = staticSnapshot(m) }, test)
}

// restores calls Restore each second for some time.
func (r *rig) restores(d time.Duration) (err error) {
	for began := time.Now(); time.Since(began) < d; time.Sleep(time.Second) {
		err = r.Restore(nil)
	}
	return err
}

// unplug removes Ethernet for some time. change edits what it has then.
func (r *rig) unplug(d time.Duration, change func(*hns.Adapter), routes ...hns.Route) {
	r.t.Helper()
	a := r.m.Admin().Adapter("Ethernet")
	if err := r.m.Admin().Unplug("Ethernet"); err != nil {
		r.t.Fatal(err)
	}
	if err := r.restores(d); err == nil {
		r.t.Error("no error without the adapter")
	}
	a.Index = 0
	change(&a)
	r.m.Plug(a, routes...)
	r.m.ForgetLog()
}

// save calls Save for an adapter without a switch.
func (r *rig) save(name string) error {
	a := r.m.Admin().Adapter(name)
	return r.Save(a, a, r.m.Admin().Adapters(), r.m.Admin().Routes())
}

// saved returns the name of the adapter of the snapshot in the journal; "": none.
func (r *rig) saved() string {
	r.t.Helper()
	j, err := ReadJournal(r.path)
	if err != nil {
		r.t.Fatal(err)
	}
	if j.Snapshot == nil {
		return ""
	}
	return j.Snapshot.Adapter
}

// has reports whether Ethernet has an address.
func (r *rig) has(p netip.Prefix) bool { return HasAddress(r.m.Admin().Adapter("Ethernet"), p.Addr()) }

var defaultRoute = hns.Route{Dst: netip.MustParsePrefix("0.0.0.0/0"), NextHop: hnstest.Gateway, Metric: 10, Ours: true}

// An adapter that was unplugged for ten minutes gets its address within the same time as after a change of the switch:
// before, the DHCP server may not have answered yet, or has given the address to another host.
func TestAdapterReturns(t *testing.T) {
	for _, dhcp := range []bool{false, true} {
		limit := 30 * time.Second
		if dhcp {
			limit = time.Minute
		}
		withJournal(t, func(j *Journal, m *hnstest.Machine) {
			j.Snapshot = staticSnapshot(m)
			j.Snapshot.DHCP, j.Snapshot.Addresses[0].Manual = dhcp, !dhcp
		}, func(r *rig) {
			r.unplug(10*time.Minute, func(a *hns.Adapter) { a.Addrs, a.DHCP = nil, dhcp }, defaultRoute)
			if err := r.RestoreStatic(nil); (err == nil) != dhcp {
				t.Errorf("DHCP %t: waiting for a static address: %v", dhcp, err)
			}
			_ = r.restores(limit - time.Second)
			if changes := r.m.Changes(); len(changes) > 0 {
				t.Errorf("DHCP %t: changed %v", dhcp, changes)
			}
			if _ = r.restores(5 * time.Second); !r.has(hnstest.HostAddr) {
				t.Errorf("DHCP %t: the address was not restored", dhcp)
			}
		})
	}
}

// Without a cable, no DHCP server answers: the address that it gave is not added before it had the time to give it again.
func TestCableReturns(t *testing.T) {
	withJournal(t, func(j *Journal, m *hnstest.Machine) {
		j.Snapshot = staticSnapshot(m)
		j.Snapshot.DHCP, j.Snapshot.Addresses[0].Manual = true, false
	}, func(r *rig) {
		cable := func(up bool) {
			if err := r.m.Admin().SetUp("Ethernet", up); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.m.Admin().Readdress("Ethernet"); err != nil {
			t.Fatal(err)
		}
		cable(false)
		_ = r.restores(5 * time.Minute)
		cable(true)
		if _ = r.restores(59 * time.Second); len(r.m.Changes()) > 0 {
			t.Errorf("changed %v", r.m.Changes())
		}
		if _ = r.restores(5 * time.Second); !r.has(hnstest.HostAddr) {
			t.Error("the address was not restored")
		}
	})
}

// The time in which an adapter was complete does not count for one that was unplugged since.
func TestCompleteAdapterReturns(t *testing.T) {
	withStatic(t, func(r *rig) {
		_ = r.restores(3 * time.Second)
		r.unplug(time.Minute, func(*hns.Adapter) {}, defaultRoute)
		if err := r.Restore(nil); err != nil || !r.Pending() {
			t.Errorf("%v; the snapshot remains: %t", err, r.Pending())
		}
		if err := r.restores(7 * time.Second); err != nil || r.Pending() {
			t.Errorf("%v; the snapshot remains: %t", err, r.Pending())
		}
	})
}

// Nor does the time in which routes were missing: they are not given up at once.
func TestIncompleteAdapterReturns(t *testing.T) {
	withStatic(t, func(r *rig) {
		r.m.Admin().DeleteRoutes(defaultRoute.Dst)
		_ = r.restores(3 * time.Second)
		r.unplug(5*time.Minute, func(*hns.Adapter) {})
		r.m.Fail(hnstest.Fault{Func: "CreateIpForwardEntry2", Code: hns.InvalidParameter})
		_ = r.restores(20 * time.Second)
		r.m.Heal()
		_ = r.restores(20 * time.Second)
		if routes := r.m.Admin().Routes(); len(routes) != 1 || r.Pending() {
			t.Errorf("the host has %+v; the snapshot remains: %t", routes, r.Pending())
		}
	})
}

// An address that Windows refuses is named, and does not keep the next one, nor a route. It is tried until Windows accepts it.
func TestRefusedAddress(t *testing.T) {
	second := netip.MustParsePrefix("10.99.0.7/24")
	withJournal(t, func(j *Journal, m *hnstest.Machine) {
		j.Snapshot = staticSnapshot(m)
		j.Snapshot.Addresses = append(j.Snapshot.Addresses, SavedAddress{second, true})
	}, func(r *rig) {
		if err := r.m.Admin().Readdress("Ethernet"); err != nil {
			t.Fatal(err)
		}
		r.m.Admin().DeleteRoutes(defaultRoute.Dst)
		r.m.Fail(hnstest.Fault{Func: "CreateUnicastIpAddressEntry", Match: hnstest.HostAddr.String(), Code: hns.InvalidParameter})
		err := r.restores(40 * time.Second)
		if err == nil || !logtest.Names(err.Error(), hnstest.HostAddr.String()) || r.has(hnstest.HostAddr) || !r.has(second) {
			t.Errorf("%v; the host has %+v", err, r.m.Admin().Adapter("Ethernet").Addrs)
		}
		if routes := r.m.Admin().Routes(); len(routes) != 1 || routes[0].NextHop != hnstest.Gateway {
			t.Errorf("the host has the routes %+v", routes)
		}
		// A route is refused, too: neither is given up.
		r.m.Admin().DeleteRoutes(defaultRoute.Dst)
		r.m.Fail(hnstest.Fault{Func: "CreateIpForwardEntry2", Code: hns.InvalidParameter})
		_ = r.restores(5 * time.Minute)
		r.m.Heal()
		err = r.restores(20 * time.Second)
		if routes := r.m.Admin().Routes(); err != nil || !r.has(hnstest.HostAddr) || len(routes) != 1 || r.Pending() {
			t.Errorf("%v; the host has %+v, %+v", err, r.m.Admin().Adapter("Ethernet").Addrs, routes)
		}
	})
}

// Two adapters were renamed: the one that has the name of the snapshot's adapter by now is another one.
func TestSaveAfterRenaming(t *testing.T) {
	withStatic(t, func(r *rig) {
		if err := errors.Join(r.m.Admin().Rename("Ethernet", "Former"), r.m.Admin().Rename("LAN 2", "Ethernet")); err != nil {
			t.Fatal(err)
		}
		if err := r.save("Ethernet"); !errors.As(err, new(*dataplane.WaitError)) {
			t.Errorf("the settings of Former are replaced: %v", err)
		}
		if err := r.save("Former"); err != nil {
			t.Error(err)
		}
	})
}

// The last good settings of an adapter are not those of another one that has no address.
func TestGoodOfOtherAdapter(t *testing.T) {
	withJournal(t, func(*Journal, *hnstest.Machine) {}, func(r *rig) {
		a := r.m.Admin().Adapter("Ethernet")
		r.RecordGood(a, a, r.m.Admin().Routes())
		for _, name := range []string{"LAN 2", "Ethernet"} {
			if err := r.m.Admin().Readdress(name); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.save("LAN 2"); !errors.As(err, new(*dataplane.WaitError)) || r.saved() != "" {
			t.Errorf("got %v; the snapshot is of %q", err, r.saved())
		}
		if err := r.save("Ethernet"); err != nil || r.saved() != "Ethernet" {
			t.Errorf("got %v; the snapshot is of %q", err, r.saved())
		}
	})
}

// The settings of one adapter are saved when those of another are restored, or after 90 seconds; a minute, if only a lease is
// missing, on an adapter without a cable.
func TestSaveAfterOtherAdapter(t *testing.T) {
	for name, c := range map[string]struct {
		begin func(*rig) error
		waits time.Duration // about
	}{
		"complete":        {func(*rig) error { return nil }, 5 * time.Second},
		"without address": {func(r *rig) error { return r.m.Admin().Readdress("Ethernet") }, 35 * time.Second},
		"refused": {func(r *rig) error {
			r.m.Fail(hnstest.Fault{Func: "CreateUnicastIpAddressEntry", Code: hns.InvalidParameter})
			return r.m.Admin().Readdress("Ethernet")
		}, 90 * time.Second},
		"without cable": {func(r *rig) error {
			r.journal.Snapshot.DHCP, r.journal.Snapshot.Addresses[0].Manual = true, false
			return errors.Join(r.m.Admin().SetUp("Ethernet", false), r.m.Admin().Readdress("Ethernet"))
		}, time.Minute},
		"unplugged": {func(r *rig) error { return r.m.Admin().Unplug("Ethernet") }, 90 * time.Second},
	} {
		withStatic(t, func(r *rig) {
			if err := c.begin(r); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			for r.save("LAN 2") != nil {
				if got := r.saved(); got != "Ethernet" && got != "" {
					t.Fatalf("%s: the snapshot is of %q", name, got)
				}
				_ = r.restores(time.Second)
			}
			if took := time.Since(began); took < c.waits || took > c.waits+5*time.Second || r.saved() != "LAN 2" {
				t.Errorf("%s: saved that of %q after %s", name, r.saved(), took)
			}
			if gaveUp := r.log.Count("level=WARN", "other=LAN 2") == 1; gaveUp != (c.waits >= time.Minute) {
				t.Errorf("%s: logged\n%s", name, &r.log)
			}
		})
	}
}

// A category waits for its restoration, too.
func TestSaveAfterOtherCategory(t *testing.T) {
	withJournal(t, func(j *Journal, m *hnstest.Machine) {
		a := m.Admin().Adapter("Ethernet")
		j.Category = &SavedCategory{Category: hns.Private, Adapter: a.Name, GUID: a.GUID, MAC: a.MAC, Boot: "boot 0"}
	}, func(r *rig) {
		if err := r.m.Admin().SetCategory("LAN 2", hns.Private); err != nil {
			t.Fatal(err)
		}
		if wait := (*dataplane.WaitError)(nil); !errors.As(r.save("LAN 2"), &wait) || wait.Cause() != CauseCategoryPending {
			t.Errorf("got %v", wait)
		}
		for began := time.Now(); r.save("LAN 2") != nil; {
			if time.Since(began) > time.Minute {
				t.Fatal("the settings are never saved")
			}
			_ = r.restores(time.Second)
		}
		if c := r.m.Admin().Category("Ethernet"); c != hns.Private || r.savedCategory().Adapter != "LAN 2" {
			t.Errorf("the network of Ethernet is %s, the journal has that of %s", c, r.savedCategory().Adapter)
		}
	})
}

// The category of a former adapter is forgotten also if that of the next one is public or unknown.
func TestCategoryOfFormerAdapter(t *testing.T) {
	for _, unknown := range []bool{false, true} {
		withJournal(t, func(j *Journal, m *hnstest.Machine) {
			a := m.Admin().Adapter("Ethernet")
			j.Category = &SavedCategory{Category: hns.Private, Adapter: a.Name, GUID: a.GUID, MAC: a.MAC, Done: true, Host: a.GUID, Boot: "boot 0"}
		}, func(r *rig) {
			if err := r.m.Admin().SetCategory("LAN 2", hns.Public); err != nil {
				t.Fatal(err)
			}
			if unknown {
				r.m.Fail(hnstest.Fault{Func: "INetwork.GetCategory", Code: hns.AccessDenied})
			}
			if err := r.save("LAN 2"); err != nil || r.savedCategory() != nil || r.saved() != "LAN 2" {
				t.Errorf("%v; the journal has %+v", err, r.savedCategory())
			}
		})
	}
}

// Two looks in a row find a public network before its category is forgotten: not one before a change of the switch, and one
// after it.
func TestLooksAtOneNetwork(t *testing.T) {
	withJournal(t, func(j *Journal, m *hnstest.Machine) {
		a := m.Admin().Adapter("Ethernet")
		j.Category = &SavedCategory{Category: hns.Private, Adapter: a.Name, GUID: a.GUID, MAC: a.MAC, Done: true, Host: a.GUID, Boot: "boot 0"}
	}, func(r *rig) {
		set := func(c hns.Category) {
			if err := r.m.Admin().SetCategory("Ethernet", c); err != nil {
				t.Fatal(err)
			}
		}
		look := func() {
			r.TrackCategory()
			time.Sleep(trackTime)
		}
		set(hns.Public)
		look()
		set(hns.Private)
		if err := r.save("Ethernet"); err != nil {
			t.Fatal(err)
		}
		_ = r.restores(20 * time.Second)
		set(hns.Public)
		if look(); r.savedCategory() == nil {
			t.Error("one look was enough")
		}
		if look(); r.savedCategory() != nil {
			t.Error("two looks were not enough")
		}
	})
}

// lease configures Ethernet by DHCP, and returns the DNS servers that it gives.
func (r *rig) lease() []netip.Addr {
	r.t.Helper()
	if err := r.m.Admin().Configure("Ethernet", hns.Persistent{DHCP: true}); err != nil {
		r.t.Fatal(err)
	}
	servers := r.m.Admin().Adapter("Ethernet").DNS
	if len(servers) == 0 {
		r.t.Fatal("DHCP gives no DNS servers")
	}
	return servers
}
