package backend_test

import (
	"strings"
	"testing"

	"flannel/backend"
	"flannel/internal/test/logtest"
	"flannel/pkg/conf"
)

// The advice to raise Backend.MTU is given only where that helps: an underlay that is too small is named itself.
func TestTooSmallMTU(t *testing.T) {
	kinds := map[string]backend.Kind{"vxlan": backend.KindOf("vxlan"), "wireguard": backend.KindOf("wireguard"), "ipip": backend.KindOf("ipip"), "udp": backend.KindOf("udp")}
	small := eth0
	for _, c := range []struct {
		kind, config string
		mtu          int
		v6           bool
		want, not    string
	}{
		{"vxlan", `{"MTU":1300}`, 1500, true, "Backend.MTU 1350", "--iface"},
		{"vxlan", `{"MTU":1300}`, 1310, true, "eth0 1310 1350 --iface", "Backend.MTU"},
		{"vxlan", `{}`, 1310, true, "eth0 1310 1350 --iface", "Backend.MTU"},
		{"vxlan", `{}`, 600, false, "eth0 600 626", "Backend.MTU"},
		{"wireguard", `{"MTU":1300}`, 1500, true, "Backend.MTU 1360", "--iface"},
		{"wireguard", `{"MTU":1400}`, 1310, true, "eth0 1310 1360", "Backend.MTU"},
		{"ipip", `{}`, 580, false, "eth0 580 596", "Backend.MTU"},
		{"udp", `{}`, 580, false, "eth0 580 604", "Backend.MTU"},
	} {
		small.MTU = c.mtu
		_, _, err := kinds[c.kind].Parse(conf.Parse([]byte(c.config)), "linux")(backend.Node{Underlay: small, V4: true, V6: c.v6})
		if err == nil || !logtest.Names(err.Error(), strings.Fields(c.want)...) || logtest.Names(err.Error(), c.not) {
			t.Errorf("%s %s on %d: %v, want %q without %q", c.kind, c.config, c.mtu, err, c.want, c.not)
		}
	}
}
