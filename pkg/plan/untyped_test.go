package plan

import (
	"net/netip"
	"testing"

	"flannel/backend"
	"flannel/backend/alloc"
	"flannel/backend/hostgw"
	"flannel/backend/udp"
	"flannel/backend/vxlan"
	"flannel/internal/test/logtest"
	"flannel/pkg/conf"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

// A lease without a type is whole for the backends with which flannel publishes none, and unfinished for the others.
func TestLeasesWithoutType(t *testing.T) {
	link := underlay.Link{Name: "eth0", MTU: 1500, V4: netip.MustParseAddr("192.168.100.1"), OnLink: []netip.Prefix{netip.MustParsePrefix("192.168.100.0/24")}}
	for _, test := range []struct {
		kind                     backend.Kind
		leaseType                string
		paths, rejected, pending int
	}{
		{udp.Kind(), "", 1, 0, 0},
		{udp.Kind(), "udp", 1, 0, 0},
		{udp.Kind(), "vxlan", 0, 1, 0},
		{alloc.Kind(), "", 0, 0, 0},
		{alloc.Kind(), "alloc", 0, 0, 0},
		{alloc.Kind(), "vxlan", 0, 1, 0},
		{vxlan.Kind(), "", 0, 0, 1},
		{vxlan.Kind(), "vxlan", 1, 0, 0},
		{hostgw.Kind(), "", 0, 0, 1},
		{hostgw.Kind(), "host-gw", 1, 0, 0},
	} {
		b, _, err := test.kind.Parse(conf.Parse([]byte(`{}`)), "linux")(backend.Node{V4: true, Underlay: link})
		if err != nil {
			t.Fatal(err)
		}
		p := New(subnet.Config{V4: network("10.5.0.0/16", 24), Backend: test.kind.Name}, *peerLease("10.5.1.0/24", "192.168.100.1", 1), b)
		lease := peerLease("10.5.2.0/24", "192.168.100.2", 2)
		lease.Backend = test.leaseType
		paths, rejects := p.Paths([]*subnet.Lease{lease})
		if len(paths) != test.paths || len(rejects) != test.rejected || p.Pending() != test.pending {
			t.Errorf("%s, a lease of type %q: paths %v, rejected %v, %d pending", test.kind.Name, test.leaseType, paths, rejects, p.Pending())
		}
		if len(rejects) > 0 && !logtest.Names(rejects[0].Reason, test.leaseType, test.kind.Name) {
			t.Errorf("%s, a lease of type %q: rejected because of %s", test.kind.Name, test.leaseType, rejects[0].Reason)
		}
		if p.Paths(nil); p.Pending() != 0 {
			t.Errorf("%s: %d are pending after all leases are gone", test.kind.Name, p.Pending())
		}
	}
}
