package node

import (
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	"flannel/internal/test/hnstest"
	"flannel/internal/test/logtest"
	"flannel/pkg/cni/conflist"
	"flannel/pkg/underlay"
	"flannel/pkg/windows/hns"
)

func noUnderlay() (underlay.Snapshot, error) { return underlay.Snapshot{}, nil }

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
		down    bool
		want    bool
	}{
		{hns.Version{Major: 9, Minor: 2}, false, false}, {hns.Version{Major: 9, Minor: 3}, false, true},
		{hns.Version{Major: 10, Minor: 1}, false, false}, {hns.Version{Major: 13, Minor: 3}, false, true}, {hns.Version{}, true, true},
	} {
		s := conflist.Spec{Plugin: "sdnbridge", Network: "cbr0", Cluster: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
			LoopbackDSR: true, ManagementIP: netip.MustParseAddr("10.99.0.2")}
		m := hnstest.NewFor(t)
		m.Turn(func(k *hnstest.Knobs) { k.Version, k.Down = c.version, c.down })
		from := CNISources{NetConfRemote: true, HNS: hns.NewClient(m, hns.Timing{}), Underlay: noUnderlay}
		if _, err := from.Complete(t.Context(), &s); err != nil || s.LoopbackDSR != c.want {
			t.Errorf("HNS %s, down %t: loopbackDSR %t, %v", c.version, c.down, s.LoopbackDSR, err)
		}
	}
}

// Without a daemon, nothing says which address the node has, and the error says so.
func TestNoDaemon(t *testing.T) {
	from := CNISources{NetConfRemote: true, SubnetFile: filepath.Join(t.TempDir(), "subnet.env"), Underlay: noUnderlay}
	s := conflist.Spec{Plugin: "win-overlay", Network: "flannel.4096", Cluster: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}
	if _, err := from.Complete(t.Context(), &s); err == nil || !logtest.Names(err.Error(), "--iface", "daemon") {
		t.Error(err)
	}
	s.ManagementIP = netip.MustParseAddr("192.168.1.5")
	if _, err := from.Complete(t.Context(), &s); err != nil {
		t.Error(err)
	}
}
