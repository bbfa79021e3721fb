package plan

import (
	"net/netip"
	"slices"
	"testing"

	"flannel/subnet"
)

// A pod network may contain the nodes: only an address inside a subnet that is leased is impossible, and the answer does
// not depend on the order in which leases come and go.
func TestNodesInsideTheNetwork(t *testing.T) {
	at := func(dst, public string, last int, since int64) *subnet.Lease {
		l := peerLease(dst, public, last)
		l.Since = since
		return l
	}
	two, three := at("10.5.2.0/24", "10.5.100.2", 2, 2), at("10.5.3.0/24", "10.5.100.3", 3, 3)
	wide := at("10.5.96.0/21", "192.168.100.4", 4, 4) // not of the usual size
	older := at("10.5.9.0/24", "10.5.2.9", 9, 1)      // claims an address of two's, long since
	for _, step := range []struct {
		name     string
		leases   []*subnet.Lease
		paths    string
		rejected []string
	}{
		{"inside, in no subnet", []*subnet.Lease{two, three}, "10.5.2.0/24 10.5.3.0/24", nil},
		{"an older lease does not drive out a subnet", []*subnet.Lease{two, three, older}, "10.5.2.0/24 10.5.3.0/24", []string{older.Name}},
		{"the subnet is gone", []*subnet.Lease{three, older}, "10.5.3.0/24 10.5.9.0/24", nil},
		{"a wide subnet covers nodes", []*subnet.Lease{two, three, wide}, "10.5.2.0/24 10.5.3.0/24", []string{wide.Name}},
		{"it covers none", []*subnet.Lease{older, wide}, "10.5.9.0/24 10.5.96.0/21", nil},
		{"all is well again", []*subnet.Lease{two, three}, "10.5.2.0/24 10.5.3.0/24", nil},
	} {
		fresh, kept := newPlan(t, false), newPlan(t, false)
		kept.Paths([]*subnet.Lease{two, three, older, wide})
		for name, p := range map[string]*Plan{"at once": fresh, "after a change": kept} {
			set := slices.SortedFunc(slices.Values(step.leases), subnet.Compare)
			paths, rejects := p.Paths(set)
			var names []string
			for _, r := range rejects {
				names = append(names, r.Name)
			}
			slices.Sort(names)
			if dsts(paths) != step.paths || !slices.Equal(names, slices.Sorted(slices.Values(step.rejected))) {
				t.Errorf("%s, %s: paths to %s, rejected %v", step.name, name, dsts(paths), rejects)
			}
		}
	}
}

// A peer can be impossible for two reasons: the one that is given does not change from pass to pass.
func TestReasonOfTwo(t *testing.T) {
	leases := []*subnet.Lease{
		peerLease("10.5.2.0/24", "10.5.100.2", 2),
		peerLease("10.5.3.0/24", "192.168.100.3", 3),
		peerLease("10.5.96.0/21", "10.5.3.9", 9), // covers the first, and lies inside the second's subnet
	}
	reasons := map[string]bool{}
	for range 64 {
		_, rejects := newPlan(t, false).Paths(leases)
		for _, r := range rejects {
			reasons[r.Reason] = true
		}
	}
	if len(reasons) != 1 {
		t.Errorf("the reasons are %v", reasons)
	}
}

// A peer's subnet must not take this node's underlay away.
func TestSubnetCoversTheUnderlay(t *testing.T) {
	p := newPlan(t, false)
	p.cfg.Underlay = []netip.Prefix{netip.MustParsePrefix("10.5.100.0/25"), netip.MustParsePrefix("10.5.100.1/32")}
	paths, rejects := p.Paths([]*subnet.Lease{peerLease("10.5.2.0/24", "10.5.100.2", 2), peerLease("10.5.100.0/24", "10.5.101.3", 3)})
	if dsts(paths) != "10.5.2.0/24" || len(rejects) != 1 {
		t.Errorf("paths to %s, rejected %v", dsts(paths), rejects)
	}
}
