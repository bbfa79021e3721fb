package plan

import (
	"net/netip"
	"testing"

	"flannel/backend"
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
		{backend.KindOf("udp"), "", 1, 0, 0},
		{backend.KindOf("udp"), "udp", 1, 0, 0},
		{backend.KindOf("udp"), "vxlan", 0, 1, 0},
		{backend.KindOf("alloc"), "", 0, 0, 0},
		{backend.KindOf("alloc"), "alloc", 0, 0, 0},
		{backend.KindOf("alloc"), "vxlan", 0, 1, 0},
		{backend.KindOf("vxlan"), "", 0, 0, 1},
		{backend.KindOf("vxlan"), "vxlan", 1, 0, 0},
		{backend.KindOf("host-gw"), "", 0, 0, 1},
		{backend.KindOf("host-gw"), "host-gw", 1, 0, 0},
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
