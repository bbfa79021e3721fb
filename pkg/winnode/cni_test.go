package winnode

import (
	"net/netip"
	"slices"
	"testing"
)

func TestOfFamilies(t *testing.T) {
	p := netip.MustParsePrefix
	both := func() []netip.Prefix { return []netip.Prefix{p("10.96.0.0/12"), p("fd00::/112")} }
	for _, c := range []struct{ pods, want []netip.Prefix }{
		{[]netip.Prefix{p("10.244.0.0/16")}, both()[:1]}, {[]netip.Prefix{p("fd01::/48")}, both()[1:]}, {both(), both()}, {nil, both()},
	} {
		if got := ofFamilies(both(), c.pods); !slices.Equal(got, c.want) {
			t.Errorf("pods of %v: %v, want %v", c.pods, got, c.want)
		}
	}
}
