package plan

import (
	"net/netip"
	"slices"
	"testing"

	"flannel/backend"
	"flannel/pkg/conf"
	"flannel/pkg/reconcile"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

// A lease with the public IP of this node is rejected and named, whatever else it has: without backend data, with another
// backend, outside of the pod network.
func TestTwins(t *testing.T) {
	link := underlay.Link{Name: "eth0", MTU: 1500, V4: netip.MustParseAddr("192.168.100.1"), OnLink: []netip.Prefix{netip.MustParsePrefix("192.168.100.0/24")}}
	b, _, err := backend.KindOf("vxlan").Parse(conf.Parse([]byte(`{}`)), "linux")(backend.Node{V4: true, Underlay: link})
	if err != nil {
		t.Fatal(err)
	}
	var leases []*subnet.Lease
	for _, l := range []struct{ name, subnet, ip, backend string }{
		{"whole", "10.5.2.0/24", "192.168.100.1", "vxlan"},
		{"without data", "10.5.3.0/24", "192.168.100.1", ""},
		{"another backend", "10.5.4.0/24", "192.168.100.1", "host-gw"},
		{"another network", "10.9.4.0/24", "192.168.100.1", "vxlan"},
		{"another address", "10.5.5.0/24", "192.168.100.5", ""},
	} {
		lease := peerLease(l.subnet, l.ip, 2)
		lease.Name, lease.Backend = l.name, l.backend
		leases = append(leases, lease)
	}
	slices.SortFunc(leases, subnet.Compare)
	p := New(subnet.Config{V4: network("10.5.0.0/16", 24), Backend: "vxlan"}, *peerLease("10.5.1.0/24", "192.168.100.1", 1), b)
	out := p.Update(leases, nil)
	if want := []string{"whole", "without data", "another backend", "another network"}; !slices.Equal(p.Twins(), want) {
		t.Errorf("twins are %q, want %q", p.Twins(), want)
	}
	if len(out.Rejects) != 4 || p.Pending() != 1 {
		t.Errorf("rejected: %v; %d pending, want 1", out.Rejects, p.Pending())
	}
	for _, r := range out.Rejects {
		if !r.Local {
			t.Errorf("%s: other nodes may accept it", r.Name)
		}
	}
	var gone []reconcile.Change[subnet.Lease]
	for _, l := range leases {
		gone = append(gone, reconcile.Change[subnet.Lease]{Old: l})
	}
	if p.Update(nil, gone); len(p.Twins()) != 0 || p.Pending() != 0 {
		t.Errorf("after all leases are gone: twins %q, %d pending", p.Twins(), p.Pending())
	}
}
