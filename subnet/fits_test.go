package subnet

import (
	"net/netip"
	"strings"
	"testing"

	"flannel/internal/test/logtest"
)

func lease4(p string) *Lease { return &Lease{V4: Endpoint{Subnet: netip.MustParsePrefix(p)}} }

func lease6(p string) *Lease { return &Lease{V6: Endpoint{Subnet: netip.MustParsePrefix(p)}} }

var (
	ten  = netOf("10.5.0.0/16", 24, "10.5.1.0", "10.5.255.0")
	cafe = netOf("2001:cafe:42::/56", 64, "2001:cafe:42:1::", "2001:cafe:42:ff::")
)

func TestFits(t *testing.T) {
	both := &Lease{V4: lease4("10.5.3.0/24").V4, V6: lease6("2001:cafe:42:7::/64").V6}
	narrow := ten
	narrow.Min, narrow.Max = netip.MustParseAddr("10.5.10.0"), netip.MustParseAddr("10.5.20.0")
	for _, c := range []struct {
		name string
		cfg  Config
		l    *Lease
		want string // what the error names; empty: it fits
	}{
		{"v4", Config{V4: ten}, lease4("10.5.3.0/24"), ""},
		{"v6", Config{V6: cafe}, lease6("2001:cafe:42:7::/64"), ""},
		{"dual", Config{V4: ten, V6: cafe}, both, ""},
		{"first", Config{V4: narrow}, lease4("10.5.10.0/24"), ""},
		{"last", Config{V4: narrow}, lease4("10.5.20.0/24"), ""},
		{"below", Config{V4: narrow}, lease4("10.5.9.0/24"), "10.5.9.0/24 10.5.10.0 10.5.20.0"},
		{"above", Config{V4: narrow}, lease4("10.5.21.0/24"), "10.5.21.0/24 10.5.10.0 10.5.20.0"},
		{"outside", Config{V4: ten}, lease4("10.6.3.0/24"), "10.6.3.0/24 10.5.0.0/16"},
		{"length", Config{V4: ten}, lease4("10.5.3.0/25"), "10.5.3.0/25 /24"},
		{"v6 off", Config{V4: ten}, both, "2001:cafe:42:7::/64 IPv6"},
		{"v6 missing", Config{V4: ten, V6: cafe}, lease4("10.5.3.0/24"), "IPv6"},
		{"v4 off", Config{V6: cafe}, both, "10.5.3.0/24 IPv4"},
	} {
		err := Fits(c.cfg, c.l)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !logtest.Names(err.Error(), strings.Fields(c.want)...)) {
			t.Errorf("%s: Fits says %v, want %q", c.name, err, c.want)
		}
	}
}
