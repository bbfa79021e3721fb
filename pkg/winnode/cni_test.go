package winnode

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	"flannel/pkg/cniconf"
	"flannel/pkg/hns"
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

// An HNS without DSR turns the option off, with which the plugins fail there; one that does not answer leaves it.
func TestLoopbackDSR(t *testing.T) {
	for _, c := range []struct {
		version hns.Version
		err     error
		want    bool
	}{
		{hns.Version{Major: 9, Minor: 2}, nil, false}, {hns.Version{Major: 9, Minor: 3}, nil, true},
		{hns.Version{Major: 10, Minor: 1}, nil, false}, {hns.Version{Major: 13, Minor: 3}, nil, true}, {hns.Version{}, hns.ErrTimeout, true},
	} {
		s := cniconf.Spec{Plugin: "sdnbridge", Network: "cbr0", Cluster: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
			LoopbackDSR: true, ManagementIP: netip.MustParseAddr("10.99.0.2")}
		from := CNISources{NetConfRemote: true, Features: func(context.Context) (hns.Features, error) { return c.version.Features(), c.err }}
		if err := from.Complete(t.Context(), &s); err != nil || s.LoopbackDSR != c.want {
			t.Errorf("HNS %s, %v: loopbackDSR %t, %v", c.version, c.err, s.LoopbackDSR, err)
		}
	}
}
