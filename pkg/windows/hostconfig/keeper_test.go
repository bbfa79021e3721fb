package hostconfig

import (
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/internal/test/logtest"
	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
)

// staticSnapshot is what the machine of hnstest.New has, without a metric.
func staticSnapshot(m *hnstest.Machine) *Snapshot {
	a := m.Admin().Adapter("Ethernet")
	return &Snapshot{Written: time.Now(), Adapter: a.Name, GUID: a.GUID, MAC: a.MAC, Addresses: []SavedAddress{{hnstest.HostAddr, true}},
		Routes: []SavedRoute{{netip.MustParsePrefix("0.0.0.0/0"), hnstest.Gateway, 10}}}
}

// snapshotOf returns what an adapter without a switch has.
func snapshotOf(t *testing.T, m *hnstest.Machine, name string) *Snapshot {
	t.Helper()
	a := m.Admin().Adapter(name)
	s, err := (&Keeper{stack: m}).newSnapshot(a, a, m.Admin().Routes())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// keeper returns a Keeper that waits for nothing, with a journal on a machine whose static adapter has become DHCP.
func keeper(t *testing.T, m *hnstest.Machine, stack hns.Stack, j Journal) *Keeper {
	t.Helper()
	if err := m.Admin().Configure("Ethernet", hns.Persistent{DHCP: true, Metric: 15, MTU: 1400}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "hns.json")
	if err := WriteJournal(path, j); err != nil {
		t.Fatal(err)
	}
	m.ForgetLog()
	return New(path, Limits{DHCP: time.Hour}, stack, slog.New(slog.DiscardHandler))
}

// The registry gets the static configuration once, and keeps what the snapshot does not know; not at all while the registry
// cannot be read.
func TestTurnDHCPOff(t *testing.T) {
	m := hnstest.New()
	defer m.Close() //nolint:errcheck // it counts handles, of which there are none
	m.Turn(func(k *hnstest.Knobs) { k.StoredOnly = true })
	k := keeper(t, m, m, Journal{Snapshot: staticSnapshot(m)})
	before := m.Admin().Stored("Ethernet")
	m.Fail(hnstest.Fault{Func: "RegQueryValueEx", Code: hns.InvalidParameter})
	_ = k.Restore(nil)
	if got := m.Admin().Stored("Ethernet"); !got.DHCP || got.Metric != before.Metric {
		t.Errorf("the registry could not be read, and got %+v", got)
	}
	m.Heal()
	for range 5 {
		_ = k.Restore(nil)
	}
	want := hns.Persistent{Addrs: []netip.Prefix{hnstest.HostAddr}, Gateways: []hns.Gateway{{Addr: hnstest.Gateway, Metric: 10}}, Metric: 15, MTU: 1400}
	got := m.Admin().Stored("Ethernet")
	if got.DHCP || !slices.Equal(got.Addrs, want.Addrs) || !slices.Equal(got.Gateways, want.Gateways) || got.Metric != want.Metric || got.MTU != want.MTU {
		t.Errorf("the registry has %+v, want %+v", got, want)
	}
	told := 0
	for _, c := range m.Changes() {
		if strings.HasPrefix(c.Text, "DhcpNotifyConfigChange") {
			told++
		}
	}
	if told != 1 {
		t.Errorf("the DHCP client was notified %d times", told)
	}
}

// When the host has its static address, the registry gets that, too, if it has another configuration or none, and not if
// it cannot be read. What else is stored stays.
func TestStoreStatic(t *testing.T) {
	for name, c := range map[string]struct {
		faults []hnstest.Fault // of reading the registry
		stored bool
	}{
		"DHCP is stored":             {nil, true},
		"nothing but MTU and metric": {[]hnstest.Fault{{Func: "RegQueryValueEx", Code: hns.FileNotFound, After: true}}, true},
		"not known":                  {[]hnstest.Fault{{Func: "RegQueryValueEx", Code: hns.InvalidParameter}}, false},
	} {
		m := hnstest.New()
		defer m.Close() //nolint:errcheck // it counts handles, of which there are none
		snapshot := staticSnapshot(m)
		k := hasStatic(t, m, m, snapshot)
		before := m.Admin().Stored("Ethernet")
		for _, f := range c.faults {
			m.Fail(f)
		}
		for range 5 {
			_ = k.Restore(nil)
		}
		want := before
		if c.stored {
			want = snapshot.persistent(before)
		}
		if got := m.Admin().Stored("Ethernet"); !reflect.DeepEqual(got, want) || want.MTU == 0 || want.Metric == 0 {
			t.Errorf("%s: the registry has %+v, want %+v", name, got, want)
		}
		if k.Pending() {
			t.Errorf("%s: the snapshot is not deleted", name)
		}
	}
}

// hasStatic returns a Keeper on a machine that has the static address of a snapshot, while the registry has DHCP.
func hasStatic(t *testing.T, m *hnstest.Machine, stack hns.Stack, snapshot *Snapshot) *Keeper {
	t.Helper()
	m.Turn(func(k *hnstest.Knobs) { k.StoredOnly = true })
	k := keeper(t, m, stack, Journal{Snapshot: snapshot})
	static := snapshot.persistent(hns.Persistent{})
	if err := m.Admin().Configure("Ethernet", static); err != nil {
		t.Fatal(err)
	}
	if err := m.SetPersistent(m.Admin().Adapter("Ethernet").Index, hns.Persistent{DHCP: true, Metric: 15, MTU: 1400}); err != nil {
		t.Fatal(err)
	}
	return k
}

// losesAddress is a machine whose DHCP client removes the static address when it is notified.
type losesAddress struct{ *hnstest.Machine }

func (m losesAddress) SetPersistent(index int, p hns.Persistent) error {
	return errors.Join(m.Machine.SetPersistent(index, p), m.DeleteAddress(index, hnstest.HostAddr.Addr()))
}

// The snapshot stays until the address is seen after the DHCP client was notified.
func TestAddressLostWhenStored(t *testing.T) {
	m := hnstest.New()
	defer m.Close() //nolint:errcheck // it counts handles, of which there are none
	k := hasStatic(t, m, losesAddress{m}, staticSnapshot(m))
	for range 5 {
		_ = k.Restore(nil)
	}
	if a := m.Admin().Adapter("Ethernet"); !HasAddress(a, hnstest.HostAddr.Addr()) || m.Admin().Stored("Ethernet").DHCP || k.Pending() {
		t.Errorf("the host has %+v, the registry %+v, and the snapshot remains: %t", a.Addrs, m.Admin().Stored("Ethernet"), k.Pending())
	}
}

// reverts is a machine on which somebody else writes DHCP to the registry again and again.
type reverts struct {
	*hnstest.Machine
	written *int
}

func (m reverts) SetPersistent(index int, _ hns.Persistent) error {
	*m.written++
	return m.Machine.SetPersistent(index, hns.Persistent{DHCP: true})
}

// A registry that somebody else reverts does not keep the snapshot.
func TestStoredOnce(t *testing.T) {
	m := hnstest.New()
	defer m.Close() //nolint:errcheck // it counts handles, of which there are none
	written := 0
	k := hasStatic(t, m, reverts{m, &written}, staticSnapshot(m))
	for range 5 {
		_ = k.Restore(nil)
	}
	if written != 1 || k.Pending() {
		t.Errorf("written %d times; the snapshot remains: %t", written, k.Pending())
	}
}

// A metric and an MTU that had to be restored are stored, also if nothing else is.
func TestStoreSettings(t *testing.T) {
	m := hnstest.New()
	defer m.Close() //nolint:errcheck // it counts handles, of which there are none
	snapshot := staticSnapshot(m)
	snapshot.V4Metric, snapshot.MTU = 25, 1300
	k := hasStatic(t, m, m, snapshot)
	m.Fail(hnstest.Fault{Func: "RegQueryValueEx", Code: hns.FileNotFound, Times: 1})
	for range 5 {
		_ = k.Restore(nil)
	}
	want := snapshot.persistent(hns.Persistent{MTU: 1300})
	if got := m.Admin().Stored("Ethernet"); !reflect.DeepEqual(got, want) {
		t.Errorf("the registry has %+v, want %+v", got, want)
	}
}

// A lease is not said to be removed before it is.
func TestLeaseRemoved(t *testing.T) {
	m := hnstest.New()
	defer m.Close()                                        //nolint:errcheck // it counts handles, of which there are none
	m.Turn(func(k *hnstest.Knobs) { k.StoredOnly = true }) // else the lease goes with DHCP
	k := keeper(t, m, m, Journal{Snapshot: staticSnapshot(m)})
	var log logtest.Log
	k.log = log.Logger()
	var lease netip.Prefix
	for _, a := range Addresses(m.Admin().Adapter("Ethernet")) {
		if a.Prefix.Addr().Is4() && !a.Manual {
			lease = a.Prefix
		}
	}
	removed := []string{"cause=" + causeStaticRestored, "address=" + lease.String()}
	m.Fail(hnstest.Fault{Func: "DeleteUnicastIpAddressEntry", Code: hns.InvalidParameter})
	for range 5 {
		_ = k.Restore(nil)
	}
	host := m.Admin().Adapter("Ethernet")
	if n := log.Count(removed...); !HasAddress(host, lease.Addr()) || !HasAddress(host, hnstest.HostAddr.Addr()) || n > 0 || log.Count("level=WARN") == 0 {
		t.Errorf("%s cannot be removed: %+v\n%s", lease, host.Addrs, &log)
	}
	m.Heal()
	_ = k.Restore(nil)
	if n := log.Count(removed...); HasAddress(m.Admin().Adapter("Ethernet"), lease.Addr()) || n != 1 {
		t.Errorf("%s was removed:\n%s", lease, &log)
	}
}

// noBootID is a machine that does not say whether it was rebooted.
type noBootID struct{ *hnstest.Machine }

func (noBootID) BootID() (string, error) { return "", errors.New("no") }

// What a boot has lost is not taken for good when nobody could compare it.
func TestBootUnknown(t *testing.T) {
	m := hnstest.New()
	defer m.Close() //nolint:errcheck // it counts handles, of which there are none
	k := keeper(t, m, noBootID{m}, Journal{LastGood: staticSnapshot(m), Boot: "an earlier one"})
	a := m.Admin().Adapter("Ethernet")
	if unsaved := k.RecordGood(a, a, m.Admin().Routes()); unsaved != "" {
		t.Errorf("would save %s", unsaved)
	}
	if j, err := ReadJournal(k.path); err != nil || j.LastGood == nil || j.Boot != "an earlier one" {
		t.Errorf("the journal has %+v, %v", j, err)
	}
}

// An adapter is found by what changes least: GUID, name, MAC address.
func TestPhysical(t *testing.T) {
	s := &Snapshot{Adapter: "Ethernet", GUID: "a", MAC: dataplane.MAC{2, 0, 0, 0, 0, 1}}
	taker := hns.Adapter{Index: 5, Name: "Ethernet", GUID: "b", MAC: dataplane.MAC{2, 0, 0, 0, 0, 2}}
	renamed := hns.Adapter{Index: 6, Name: "LAN", GUID: "a", MAC: s.MAC}
	again := hns.Adapter{Index: 7, Name: "LAN 2", GUID: "c", MAC: s.MAC}
	for _, c := range []struct {
		adapters []hns.Adapter
		want     int
	}{
		{[]hns.Adapter{taker, again, renamed}, 6}, {[]hns.Adapter{again, taker}, 5}, {[]hns.Adapter{again}, 7}, {nil, 0},
	} {
		if got, found := s.physical(c.adapters); got.Index != c.want || found != (c.want != 0) {
			t.Errorf("%+v: got %d, %t", c.adapters, got.Index, found)
		}
	}
}

// What an administrator added to the registry stays, and the prefix length that he changed.
func TestStoredByAdministrator(t *testing.T) {
	m := hnstest.New()
	defer m.Close() //nolint:errcheck // it counts handles, of which there are none
	k := keeper(t, m, m, Journal{Snapshot: staticSnapshot(m)})
	want := hns.Persistent{Addrs: []netip.Prefix{netip.MustParsePrefix("10.99.0.2/23"), netip.MustParsePrefix("10.99.0.7/23")},
		Gateways: []hns.Gateway{{Addr: hnstest.Gateway, Metric: 10}, {Addr: netip.MustParseAddr("10.99.1.1"), Metric: 20}}}
	if err := m.Admin().Configure("Ethernet", want); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		_ = k.Restore(nil)
	}
	if got := m.Admin().Stored("Ethernet"); !reflect.DeepEqual(got, want) || k.Pending() {
		t.Errorf("the registry has %+v, want %+v; the snapshot remains: %t", got, want, k.Pending())
	}
}

// A metric that is stored stays if the snapshot has none, and only the MTU is restored.
func TestStoredMetricStays(t *testing.T) {
	m := hnstest.New()
	defer m.Close() //nolint:errcheck // it counts handles, of which there are none
	snapshot := staticSnapshot(m)
	snapshot.MTU = 1300
	k := hasStatic(t, m, m, snapshot)
	for range 5 {
		_ = k.Restore(nil)
	}
	if got := m.Admin().Stored("Ethernet"); got.Metric != 15 || got.MTU != 1300 {
		t.Errorf("the registry has %+v", got)
	}
}

// A gateway that was changed while flanneld did not run is not replaced by the one of the last boot.
func TestGatewayChangedBeforeBoot(t *testing.T) {
	m := hnstest.New()
	defer m.Close() //nolint:errcheck // it counts handles, of which there are none
	snapshot := staticSnapshot(m)
	snapshot.AtBoot = true
	k := keeper(t, m, m, Journal{Snapshot: snapshot})
	other := netip.MustParseAddr("10.99.0.254")
	want := hns.Persistent{Addrs: []netip.Prefix{hnstest.HostAddr}, Gateways: []hns.Gateway{{Addr: other, Metric: 10}}}
	if err := m.Admin().Configure("Ethernet", want); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		_ = k.Restore(nil)
	}
	routes := m.Admin().Routes()
	if got := m.Admin().Stored("Ethernet"); !reflect.DeepEqual(got, want) || len(routes) != 1 || routes[0].NextHop != other || k.Pending() {
		t.Errorf("the registry has %+v, the host the routes %+v; the snapshot remains: %t", got, routes, k.Pending())
	}
}

// The registry has another gateway than before the boot, and the adapter came up by DHCP: the host gets that gateway, also if
// the journal cannot be written.
func TestChangedGatewayRestored(t *testing.T) {
	for _, writable := range []bool{true, false} {
		m := hnstest.New()
		defer m.Close() //nolint:errcheck // it counts handles, of which there are none
		m.Turn(func(k *hnstest.Knobs) { k.StoredOnly = true })
		snapshot := staticSnapshot(m)
		snapshot.AtBoot = true
		k := keeper(t, m, m, Journal{Snapshot: snapshot})
		other := netip.MustParseAddr("10.99.0.254")
		want := hns.Persistent{Addrs: []netip.Prefix{hnstest.HostAddr}, Gateways: []hns.Gateway{{Addr: other, Metric: 10}}}
		if err := m.SetPersistent(m.Admin().Adapter("Ethernet").Index, want); err != nil {
			t.Fatal(err)
		}
		if dir := filepath.Dir(k.path); !writable {
			if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		for range 5 {
			_ = k.Restore(nil)
		}
		routes, host := m.Admin().Routes(), m.Admin().Adapter("Ethernet")
		if got := m.Admin().Stored("Ethernet"); !reflect.DeepEqual(got, want) || len(routes) != 1 || routes[0].NextHop != other || !HasAddress(host, hnstest.HostAddr.Addr()) {
			t.Errorf("journal writable: %t; the registry has %+v, the host %+v and the routes %+v", writable, got, host.Addrs, routes)
		}
	}
}

// An administrator replaced one of two addresses: the new one stays beside both.
func TestAddressReplacedBeforeBoot(t *testing.T) {
	m := hnstest.New()
	defer m.Close() //nolint:errcheck // it counts handles, of which there are none
	snapshot, second, third := staticSnapshot(m), netip.MustParsePrefix("10.99.0.7/24"), netip.MustParsePrefix("10.99.0.8/24")
	snapshot.AtBoot = true
	snapshot.Addresses = append(snapshot.Addresses, SavedAddress{second, true})
	k := keeper(t, m, m, Journal{Snapshot: snapshot})
	stored := hns.Persistent{Addrs: []netip.Prefix{hnstest.HostAddr, third}, Gateways: []hns.Gateway{{Addr: hnstest.Gateway, Metric: 10}}}
	if err := m.Admin().Configure("Ethernet", stored); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		_ = k.Restore(nil)
	}
	stored.Addrs = append(stored.Addrs, second)
	if got := m.Admin().Stored("Ethernet"); !reflect.DeepEqual(got, stored) || k.Pending() {
		t.Errorf("the registry has %+v, want %+v; the snapshot remains: %t", got, stored, k.Pending())
	}
}
