package etcd

import (
	"net/netip"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"flannel/subnet"
)

// TestOursFindsOurAddressHoweverSpelt: values are not all read to find the few that are about this node, and must be
// found all the same.
func TestOursFindsOurAddressHoweverSpelt(t *testing.T) {
	four := subnet.Config{V4: subnet.Network{Prefix: netip.MustParsePrefix("10.5.0.0/16"), SubnetLen: 24,
		Min: netip.MustParseAddr("10.5.1.0"), Max: netip.MustParseAddr("10.5.255.0")}}
	six := subnet.Config{V6: subnet.Network{Prefix: netip.MustParsePrefix("fd05::/48"), SubnetLen: 64,
		Min: netip.MustParseAddr("fd05:0:0:1::"), Max: netip.MustParseAddr("fd05:0:0:ffff::")}}
	want := subnet.Lease{V4: subnet.Endpoint{PublicIP: netip.MustParseAddr("192.168.64.3")},
		V6: subnet.Endpoint{PublicIP: netip.MustParseAddr("fd00::3")}}
	for _, c := range []struct {
		name, key, value string
		cfg              subnet.Config
		ours             bool
	}{
		{"plain", "10.5.34.0-24", `{"PublicIP":"192.168.64.3"}`, four, true},
		{"escaped", "10.5.34.0-24", `{"PublicIP":"192.168.64.\u0033"}`, four, true},
		{"longer address", "10.5.34.0-24", `{"PublicIP":"192.168.64.30"}`, four, false},
		{"elsewhere in the value", "10.5.34.0-24", `{"PublicIP":"192.168.64.4","Note":"192.168.64.3"}`, four, false},
		{"garbage with our address", "10.5.34.0-24", `192.168.64.3`, four, false},
		{"IPv6 in full", "0.0.0.0-0&fd05:0:0:8::-64", `{"PublicIP":"0.0.0.0","PublicIPv6":"FD00:0:0:0:0:0:0:3"}`, six, true},
		{"another's IPv6", "0.0.0.0-0&fd05:0:0:8::-64", `{"PublicIP":"0.0.0.0","PublicIPv6":"fd00::4"}`, six, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &Manager{subnets: "/p/subnets/"}
			all := m.records([]*mvccpb.KeyValue{{Key: []byte("/p/subnets/" + c.key), Value: []byte(c.value)}})
			if len(all) != 1 {
				t.Fatalf("records read %d of one key", len(all))
			}
			if found := len(findClaims(c.cfg, want, all).all()) > 0; found != c.ours {
				t.Errorf("ours: %t, want %t", found, c.ours)
			}
		})
	}
}
