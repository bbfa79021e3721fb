package plan

import (
	"fmt"
	"math/rand/v2"
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

// Nodes inside the pod network, subnets of odd sizes and twins come and go, and so do addresses of this node: the outcome
// is that of a plan that sees the set for the first time.
func TestIncrementalInsideTheNetwork(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 8))
	for range 40 {
		var pool []*subnet.Lease
		for i := range 12 + rnd.IntN(20) {
			bits := 24
			if rnd.IntN(6) == 0 {
				bits = 22 + rnd.IntN(5)
			}
			dst := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte(rnd.IntN(24)), 0}), bits).Masked()
			public := netip.AddrFrom4([4]byte{10, 5, byte(rnd.IntN(60)), byte(i)})
			if rnd.IntN(3) == 0 {
				public = netip.AddrFrom4([4]byte{192, 168, 100, byte(i + 2)})
			}
			l := peerLease(dst.String(), public.String(), rnd.IntN(60))
			l.Name, l.Since = fmt.Sprint("lease ", i), rnd.Int64N(20)
			pool = append(pool, l)
		}
		slices.SortFunc(pool, subnet.Compare)
		p := newPlan(t, false)
		for range 40 {
			var addrs []netip.Addr
			for _, l := range pool {
				if rnd.IntN(12) == 0 {
					addrs = append(addrs, l.V4.PublicIP)
				}
			}
			slices.SortFunc(addrs, netip.Addr.Compare)
			p.SetAddrs(addrs)
			set := randomSet(rnd, pool)
			fresh := newPlan(t, false)
			fresh.SetAddrs(addrs)
			got, gotRejects := p.Paths(set)
			want, wantRejects := fresh.Paths(set)
			if dsts(got) != dsts(want) || !slices.Equal(gotRejects, wantRejects) {
				t.Fatalf("after changes: %s, %v\nfresh: %s, %v", dsts(got), gotRejects, dsts(want), wantRejects)
			}
		}
	}
}

// A peer can be impossible for two reasons: the one that is given does not change from pass to pass.
func TestReasonOfTwo(t *testing.T) {
	dual := func(l *subnet.Lease, dst, public string) *subnet.Lease {
		l.V6 = subnet.Endpoint{Subnet: netip.MustParsePrefix(dst), PublicIP: netip.MustParseAddr(public), Data: l.V4.Data}
		return l
	}
	for name, leases := range map[string][]*subnet.Lease{
		"covers a node, and is inside another's subnet": {
			peerLease("10.5.2.0/24", "10.5.100.2", 2),
			peerLease("10.5.3.0/24", "192.168.100.3", 3),
			peerLease("10.5.96.0/21", "10.5.3.9", 9),
		},
		"each of two subnets covers a node": {
			peerLease("10.5.2.0/24", "10.5.100.2", 2),
			dual(peerLease("10.5.3.0/24", "192.168.100.3", 3), "2001:cafe:42:3::/64", "2001:cafe:42:80::3"),
			dual(peerLease("10.5.96.0/21", "192.168.100.9", 9), "2001:cafe:42:80::/62", "fd00:100::9"),
		},
	} {
		reasons := map[string]bool{}
		for range 64 {
			_, rejects := newPlan(t, true).Paths(leases)
			for _, r := range rejects {
				reasons[r.Reason] = true
			}
		}
		if len(reasons) != 1 {
			t.Errorf("%s: the reasons are %v", name, reasons)
		}
	}
}

// If one peer has a public IP inside the subnet of another one, one of the two is rejected, unless one is in conflict with
// another lease, and so rejected already. In a chain of such peers, each link is judged, whoever is rejected for another one.
func TestWhoIsInTheLoop(t *testing.T) {
	at := func(l *subnet.Lease, since int64) *subnet.Lease {
		l.Since = since
		return l
	}
	two := at(peerLease("10.5.2.0/24", "192.168.100.2", 2), 1)
	inside := at(peerLease("10.5.4.0/24", "10.5.3.9", 4), 3)
	mixed := at(peerLease("10.5.3.0/24", "192.168.100.3", 3), 2)
	mixed.V6 = subnet.Endpoint{Subnet: netip.MustParsePrefix("2001:cafe:42:80::/62"), PublicIP: netip.MustParseAddr("fd00:100::3"), Data: mixed.V4.Data}
	const owner = "subnets/10.5.3.0/24"
	for name, c := range map[string]struct {
		owner    *subnet.Lease // of 10.5.3.0/24
		rejected []string
	}{
		"the owner is used":                           {at(peerLease("10.5.3.0/24", "192.168.100.3", 3), 2), []string{inside.Name}},
		"the owner has the MAC address of another":    {at(peerLease("10.5.3.0/24", "192.168.100.3", 2), 2), []string{owner}},
		"the owner's other subnet is of unusual size": {mixed, []string{inside.Name}},
		"the owner is inside another's subnet":        {at(peerLease("10.5.3.0/24", "10.5.2.3", 3), 2), []string{owner, inside.Name}},
	} {
		for range 16 { // a map has another order each time
			var names []string
			_, rejects := newPlan(t, true).Paths([]*subnet.Lease{two, c.owner, inside})
			for _, r := range rejects {
				names = append(names, r.Name)
			}
			if !slices.Equal(names, c.rejected) {
				t.Fatalf("%s: rejected %v, want %v", name, rejects, c.rejected)
			}
		}
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
