package hostconfig

import (
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/internal/test/logtest"
	"flannel/pkg/reconcile"
	"flannel/pkg/windows/hns"
)

// DNS servers, metrics and an MTU that somebody has set while flanneld did not run stay so. What Windows has forgotten at the
// boot is restored.
func TestSettingsAfterBoot(t *testing.T) {
	v6 := netip.MustParseAddr("fd00::53")
	saved, other := []netip.Addr{hnstest.Gateway}, []netip.Addr{netip.MustParseAddr("10.99.0.99"), v6}
	for name, c := range map[string]struct {
		stored hns.Persistent
		former []netip.Addr // DNS servers
		dns    []netip.Addr // stored ones
		v6     int
		want   hns.Adapter
	}{
		"changed":   {hns.Persistent{Metric: 50, MTU: 1300}, saved, other, 70, hns.Adapter{DNS: other, V4Metric: 50, V6Metric: 70, MTU: 1300}},
		"forgotten": {hns.Persistent{}, saved, nil, 0, hns.Adapter{DNS: saved, V4Metric: 25, V6Metric: 35, MTU: 1400}},
		"one family is forgotten": {hns.Persistent{}, []netip.Addr{hnstest.Gateway, v6}, []netip.Addr{v6}, 0,
			hns.Adapter{DNS: []netip.Addr{hnstest.Gateway, v6}, V4Metric: 25, V6Metric: 35, MTU: 1400}},
		"one family is forgotten, the other one changed": {hns.Persistent{}, []netip.Addr{hnstest.Gateway, netip.MustParseAddr("fd00::1")}, []netip.Addr{v6}, 0,
			hns.Adapter{DNS: []netip.Addr{hnstest.Gateway, v6}, V4Metric: 25, V6Metric: 35, MTU: 1400}},
		"one family is forgotten, the other one added": {hns.Persistent{}, saved, []netip.Addr{v6}, 0,
			hns.Adapter{DNS: []netip.Addr{hnstest.Gateway, v6}, V4Metric: 25, V6Metric: 35, MTU: 1400}},
	} {
		m := hnstest.New()
		defer m.Close() //nolint:errcheck // it counts handles, of which there are none
		snapshot := staticSnapshot(m)
		snapshot.AtBoot, snapshot.DNS, snapshot.V4Metric, snapshot.V6Metric, snapshot.MTU = true, c.former, 25, 35, 1400
		k := keeper(t, m, m, Journal{Snapshot: snapshot})
		c.stored.Addrs, c.stored.Gateways = snapshot.static(), snapshot.gateways()
		if err := m.Admin().Configure("Ethernet", c.stored); err != nil {
			t.Fatal(err)
		}
		a := m.Admin().Adapter("Ethernet")
		if err := m.Admin().SetDNS(a.Name, c.dns...); err != nil {
			t.Fatal(err)
		}
		if err := m.SetInterface(a.Index, true, hns.Interface{Metric: c.v6, MTU: a.MTU}); err != nil {
			t.Fatal(err)
		}
		m.ForgetLog()
		for _, unknown := range []string{"NameServer", ""} { // what of the registry cannot be read; "": all
			m.Fail(hnstest.Fault{Func: "RegQueryValueEx", Match: unknown, Code: hns.InvalidParameter})
			for range 5 {
				if err := k.Restore(nil); !reconcile.IsUnknown(err) {
					t.Errorf("%s: %q is unknown: got %v", name, unknown, err)
				}
			}
			m.Heal()
		}
		if changes := m.Changes(); len(changes) > 0 {
			t.Errorf("%s: while the registry cannot be read: %v", name, changes)
		}
		for range 5 {
			_ = k.Restore(nil)
		}
		got, want := m.Admin().Adapter("Ethernet"), c.want
		if !slices.Equal(got.DNS, want.DNS) || got.V4Metric != want.V4Metric || got.V6Metric != want.V6Metric || got.MTU != want.MTU || k.Pending() {
			t.Errorf("%s: the host has %+v; the snapshot remains: %t", name, got, k.Pending())
		}
	}
}

// The comparison after a boot begins once, however often the journal is written: a static address that the host gets later is
// not from before the boot.
func TestComparedOnce(t *testing.T) {
	m := hnstest.New()
	defer m.Close() //nolint:errcheck // it counts handles, of which there are none
	j := Journal{Category: &SavedCategory{Category: hns.Private, Done: true, Boot: "boot 0"}}
	if !j.compareAfterBoot("boot 1") || !j.Category.Done || j.compareAfterBoot("boot 1") {
		t.Errorf("the host has DHCP: %+v", j.Category)
	}
	j.LastGood, j.Boot = staticSnapshot(m), "boot 1" // as SaveGood does
	if j.compareAfterBoot("boot 1") || j.Snapshot != nil || j.Category.pending() {
		t.Errorf("the host has got a static address: %+v, %+v", j.Snapshot, j.Category)
	}
	if !j.compareAfterBoot("boot 2") || j.Snapshot == nil || !j.Category.pending() || j.compareAfterBoot("boot 2") {
		t.Errorf("another boot: %+v, %+v", j.Snapshot, j.Category)
	}
}

// The same refusal is logged once for each snapshot.
func TestWarnedAgain(t *testing.T) {
	m := hnstest.New()
	defer m.Close() //nolint:errcheck // it counts handles, of which there are none
	var log logtest.Log
	k := New(filepath.Join(t.TempDir(), "hns.json"), Limits{DHCP: time.Hour}, m, log.Logger())
	for episode := range 2 {
		a := m.Admin().Adapter("Ethernet")
		if err := errors.Join(k.Save(a, a, m.Admin().Adapters(), m.Admin().Routes()), m.Admin().SetDNS(a.Name)); err != nil {
			t.Fatal(err)
		}
		m.Fail(hnstest.Fault{Func: "SetInterfaceDnsSettings", Code: hns.InvalidParameter})
		for range 3 {
			_ = k.Restore(nil)
		}
		if n := log.Count("level=WARN"); n != episode+1 {
			t.Errorf("episode %d: logged\n%s", episode, &log)
		}
		m.Heal()
		for range 5 {
			_ = k.Restore(nil)
		}
		if k.HasSnapshot() {
			t.Fatal("the snapshot remains")
		}
	}
}
