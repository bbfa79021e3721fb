package hostconfig

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/pkg/reconcile"
	"flannel/pkg/windows/hns"
)

// DNS servers that a lease gave do not become manual ones when they are lost. Manual ones are restored, also if those of a lease
// have taken their place.
func TestDNSWithDHCP(t *testing.T) {
	manual := []netip.Addr{netip.MustParseAddr("10.99.0.99")}
	for name, c := range map[string]struct {
		before []netip.Addr // nil: those of the lease
		lose   func(*rig) error
		want   []netip.Addr
	}{
		"of the lease":     {nil, func(r *rig) error { return r.m.Admin().SetDNS("Ethernet") }, nil},
		"manual":           {manual, func(r *rig) error { return r.m.Admin().SetDNS("Ethernet") }, manual},
		"manual, replaced": {manual, func(r *rig) error { r.lease(); return nil }, manual},
	} {
		withJournal(t, func(*Journal, *hnstest.Machine) {}, func(r *rig) {
			r.lease()
			if c.before != nil {
				if err := r.m.Admin().SetDNS("Ethernet", c.before...); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(r.save("Ethernet"), c.lose(r)); err != nil {
				t.Fatal(err)
			}
			err := r.restores(30 * time.Second)
			if got := r.m.Admin().Adapter("Ethernet").DNS; err != nil || !slices.Equal(got, c.want) || r.Pending() {
				t.Errorf("%s: the host has the DNS servers %v; the snapshot remains: %t, %v", name, got, r.Pending(), err)
			}
		})
	}
}

// A DNS server that somebody has set, and that the host does not use, is nothing to restore.
func TestUnusedDNS(t *testing.T) {
	withJournal(t, func(*Journal, *hnstest.Machine) {}, func(r *rig) {
		r.lease()
		if err := r.m.Admin().SetDNS("Ethernet", netip.MustParseAddr("10.99.0.99")); err != nil {
			t.Fatal(err)
		}
		host := r.m.Admin().Adapter("Ethernet")
		host.DNS = nil
		if err := r.Save(host, host, r.m.Admin().Adapters(), r.m.Admin().Routes()); err != nil || r.journal.Snapshot == nil {
			t.Fatal(err)
		}
		if missing := r.journal.Snapshot.missing(host, r.m.Admin().Routes()); !missing.none() {
			t.Errorf("missing is %+v", missing)
		}
	})
}

// The DNS servers in a snapshot of a former version are restored if they were manual ones: without DHCP.
func TestFormerDNS(t *testing.T) {
	servers := []netip.Addr{netip.MustParseAddr("10.99.0.53")}
	for _, dhcp := range []bool{false, true} {
		withJournal(t, func(j *Journal, m *hnstest.Machine) {
			j.Snapshot = staticSnapshot(m)
			j.Snapshot.DHCP, j.Snapshot.Addresses[0].Manual, j.Snapshot.DNS = dhcp, !dhcp, servers
			if err := m.Admin().SetDNS("Ethernet"); err != nil { // none
				t.Fatal(err)
			}
		}, func(r *rig) {
			err := r.restores(30 * time.Second)
			if got := r.m.Admin().Adapter("Ethernet").DNS; err != nil || slices.Equal(got, servers) == dhcp || r.Pending() {
				t.Errorf("DHCP %t: the host has the DNS servers %v; the snapshot remains: %t, %v", dhcp, got, r.Pending(), err)
			}
		})
	}
}

// While nobody knows which DNS servers are manual ones, nothing is saved, nor remembered as good.
func TestUnknownDNS(t *testing.T) {
	withJournal(t, func(*Journal, *hnstest.Machine) {}, func(r *rig) {
		manual := []netip.Addr{netip.MustParseAddr("10.99.0.99")}
		r.lease()
		if err := r.m.Admin().SetDNS("Ethernet", manual...); err != nil {
			t.Fatal(err)
		}
		r.m.Fail(hnstest.Fault{Func: "RegQueryValueEx", Match: "NameServer", Code: hns.InvalidParameter})
		host := r.m.Admin().Adapter("Ethernet")
		r.RecordGood(host, host, r.m.Admin().Routes())
		if err := r.save("Ethernet"); !reconcile.IsUnknown(err) || r.saved() != "" || r.good != nil {
			t.Errorf("%v; saved is %q, good are %+v", err, r.saved(), r.good)
		}
		r.m.Heal()
		r.RecordGood(host, host, r.m.Admin().Routes())
		if err := r.save("Ethernet"); err != nil || !slices.Equal(r.journal.Snapshot.servers(), manual) || !slices.Equal(r.good.servers(), manual) {
			t.Errorf("%v; saved is %+v, good are %+v", err, r.journal.Snapshot, r.good)
		}
	})
}
