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
		"Addressing": Bridges, "MTU": 1, "Link": "eth0", "LinkIndex": 1, "Synced": true, "Hops": 1, "NotForwarding": true,
	}
	none := &Network{}
	if !none.Equal(&Network{Skip: func(*subnet.Lease) bool { return true }}) {
		t.Error("equal networks differ")
	}
	for i := range reflect.TypeFor[Network]().NumField() {
		name := reflect.TypeFor[Network]().Field(i).Name
		if name == "Skip" {
			continue
		}
		n := Network{}
		reflect.ValueOf(&n).Elem().Field(i).Set(reflect.ValueOf(values[name]))
		if n.Equal(none) || none.Equal(&n) {
			t.Errorf("a network with another %s is equal", name)
		}
	}
}
