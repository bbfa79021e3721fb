package reach

import (
	"net/netip"
	"reflect"
	"testing"

	"flannel/subnet"
)

// A pass that has changed any of what the prober needs is no pass that has changed nothing.
func TestNetworksDiffer(t *testing.T) {
	values := map[string]any{
		"Local":   subnet.Lease{V4: subnet.Endpoint{PublicIP: netip.MustParseAddr("192.0.2.1")}},
		"Peers":   []*subnet.Lease{{}},
		"Refused": []subnet.Rejected{{}}, "Rejects": []subnet.Rejected{{}}, "Retained": []*subnet.Retained{{}},
		"Addressing": Bridges, "Typed": true, "MTU": 1, "Link": "eth0", "LinkIndex": 1, "Synced": true, "Hops": 1, "NotForwarding": true,
	}
	none := &Network{}
	if !none.Equal(&Network{}) {
		t.Error("equal networks differ")
	}
	for i := range reflect.TypeFor[Network]().NumField() {
		name := reflect.TypeFor[Network]().Field(i).Name
		n := Network{}
		reflect.ValueOf(&n).Elem().Field(i).Set(reflect.ValueOf(values[name]))
		if n.Equal(none) || none.Equal(&n) {
			t.Errorf("a network with another %s is equal", name)
		}
	}
}

// A peer whose lease has no type yet is not probed, unless such a lease is complete with the backend.
func TestUntypedPeers(t *testing.T) {
	w := newWorld(t, 3, false)
	w.nodes[1].lease.Backend = ""
	n, now := w.network(w.nodes[0], Tunnels), moment(1)
	for _, typed := range []bool{false, true, false} {
		m := w.nodes[0].mesh
		n.Typed = typed
		now = now.Add(interval)
		m.Update(now, n)
		if _, half := m.peers.Get("node1"); half == typed {
			t.Errorf("only leases with a type: %v; one without is known: %v", typed, half)
		}
		if _, other := m.peers.Get("node2"); !other {
			t.Error("a peer with a type is not known")
		}
	}
}
