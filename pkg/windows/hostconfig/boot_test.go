package hostconfig

import (
	"net/netip"
	"slices"
	"testing"

	"flannel/internal/test/hnstest"
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
		if err := m.SetDNS(a.Index, c.dns); err != nil {
			t.Fatal(err)
		}
		if err := m.SetInterface(a.Index, true, hns.Interface{Metric: c.v6, MTU: a.MTU}); err != nil {
			t.Fatal(err)
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
