package plan

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"flannel/backend"
	"flannel/internal/test/logtest"
	"flannel/pkg/conf"
	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

func network(s string, length int) subnet.Network {
	return subnet.Network{Prefix: netip.MustParsePrefix(s), SubnetLen: length}
}

func newPlan(t testing.TB, dual bool) *Plan {
	t.Helper()
	cfg := subnet.Config{V4: network("10.5.0.0/16", 24), Backend: "vxlan"}
	own := *peerLease("10.5.1.0/24", "192.168.100.1", 1)
	if dual {
		cfg.V6 = network("2001:cafe:42::/56", 64)
		own.V6 = subnet.Endpoint{Subnet: netip.MustParsePrefix("2001:cafe:42:1::/64"), PublicIP: netip.MustParseAddr("fd00:100::1"), Data: own.V4.Data}
	}
	o := conf.Parse([]byte(`{}`))
	b, _, err := backend.KindOf("vxlan").Parse(o, "linux")(backend.Node{V4: true, V6: dual, Underlay: underlay.Link{Name: "eth0", MTU: 1500}})
	if err != nil {
		t.Fatal(err)
	}
	return New(cfg, own, b)
}

// peerLease makes a lease; mac is the last byte of its VTEP's address.
func peerLease(v4, ip string, mac int) *subnet.Lease {
	return &subnet.Lease{Name: "subnets/" + v4, Backend: "vxlan", V4: subnet.Endpoint{
		Subnet: netip.MustParsePrefix(v4), PublicIP: netip.MustParseAddr(ip),
		Data: json.RawMessage(fmt.Sprintf(`{"VNI":1,"VtepMAC":"02:00:00:00:%02x:%02x"}`, mac>>8, mac&255)),
	}}
}

// Paths hands p a whole set by how it differs from the one before, and checks that the changes of the paths lead from
// those of before to those that it returns.
func (p *Plan) Paths(leases []*subnet.Lease) ([]*dataplane.Path, []subnet.Rejected) {
	var changed []reconcile.Change[subnet.Lease]
	had := map[*subnet.Lease]bool{}
	for _, one := range p.peers.All() {
		if had[one.lease] = true; !slices.Contains(leases, one.lease) {
			changed = append(changed, reconcile.Change[subnet.Lease]{Old: one.lease})
		}
	}
	for _, l := range leases {
		if !had[l] {
			changed = append(changed, reconcile.Change[subnet.Lease]{New: l})
		}
	}
	before := p.paths
	o := p.Update(leases, changed)
	if !slices.Equal(before, o.Since) || !slices.Equal(reconcile.ApplyChanges(before, o.Changes, comparePaths), o.Paths) {
		panic("the changes do not lead to the paths")
	}
	for _, c := range o.Changes {
		if c.Old != nil && !slices.Contains(before, c.Old) || c.New != nil && slices.Contains(before, c.New) {
			panic("a change of a path that does not change")
		}
	}
	return o.Paths, o.Rejects
}

func dsts(paths []*dataplane.Path) string {
	var all []string
	for _, p := range paths {
		all = append(all, p.Dst.String())
	}
	return strings.Join(all, " ")
}

// Every lease that cannot be believed leaves itself out, and no other.
func TestSuspects(t *testing.T) {
	good := peerLease("10.5.2.0/24", "192.168.100.2", 2)
	for _, test := range []struct {
		name string
		bad  *subnet.Lease
		want string
	}{
		{"half of the Internet", peerLease("128.0.0.0/1", "192.168.100.9", 9), "10.5.0.0/16"},
		{"the default route", peerLease("0.0.0.0/0", "192.168.100.9", 9), "10.5.0.0/16"},
		{"the whole network", peerLease("10.5.0.0/16", "192.168.100.9", 9), "10.5.0.0/16"},
		{"etcd's host", peerLease("192.168.100.0/31", "192.168.100.9", 9), "10.5.0.0/16"},
		{"our own subnet", peerLease("10.5.1.0/24", "192.168.100.9", 9), "10.5.1.0/24"},
		{"a single address", peerLease("10.5.9.9/32", "192.168.100.9", 9), "10.5.9.9/32"},
		{"inside our own", peerLease("10.5.1.128/25", "192.168.100.9", 9), "10.5.1.0/24"},
		{"around ours", peerLease("10.5.0.0/22", "192.168.100.9", 9), "10.5.1.0/24"},
		{"inside a peer's", peerLease("10.5.2.128/25", "192.168.100.9", 9), "10.5.2.0/24 subnets/10.5.2.0/24"},
		{"around a peer's", peerLease("10.5.2.0/23", "192.168.100.9", 9), "10.5.2.0/24"},
		{"a peer's MAC", peerLease("10.5.9.0/24", "192.168.100.9", 2), "VtepMAC 02:00:00:00:00:02 subnets/10.5.2.0/24"},
		{"our MAC", peerLease("10.5.9.0/24", "192.168.100.9", 1), "VtepMAC 02:00:00:00:00:01"},
		{"our public IP", peerLease("10.5.9.0/24", "192.168.100.1", 9), "IP 192.168.100.1"},
		{"loopback", peerLease("10.5.9.0/24", "127.0.0.1", 9), "127.0.0.1"},
		{"multicast", peerLease("10.5.9.0/24", "224.0.0.1", 9), "224.0.0.1"},
		{"broadcast", peerLease("10.5.9.0/24", "255.255.255.255", 9), "255.255.255.255"},
		{"link-local", peerLease("10.5.9.0/24", "169.254.1.1", 9), "169.254.1.1"},
		{"nowhere", peerLease("10.5.9.0/24", "0.0.0.0", 9), "IP"},
		{"its own pod's address", peerLease("10.5.9.0/24", "10.5.9.1", 9), "IP 10.5.9.1"},
		{"our pod's address", peerLease("10.5.9.0/24", "10.5.1.7", 9), "IP 10.5.1.7"},
		{"a peer's pod's address", peerLease("10.5.9.0/24", "10.5.2.7", 9), "IP 10.5.2.7 10.5.2.0/24 subnets/10.5.2.0/24"},
		{"a source in the pod network", withSources("10.5.2.7"), "10.5.2.7 10.5.0.0/16"},
		{"a loopback source", withSources("127.0.0.1"), "127.0.0.1"},
		{"a multicast source", withSources("224.0.0.1"), "224.0.0.1"},
		{"a broadcast source", withSources("255.255.255.255"), "255.255.255.255"},
		{"an unspecified source", withSources("0.0.0.0"), "0.0.0.0"},
		{"a link-local source", withSources("169.254.1.1"), "169.254.1.1"},
		{"a source with IPv4 in IPv6 form", withSources("::ffff:192.0.2.1"), "192.0.2.1"},
		{"a source of the other family", withSources("2001:db8::9"), "2001:db8::9 192.168.100.9"},
		{"many sources", withSources("192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "192.0.2.5"), "4"},
		{"another family", peerLease("10.5.9.0/24", "fd00::9", 9), ""},
		{"another backend", &subnet.Lease{Name: "x", Backend: "host-gw", V4: peerLease("10.5.9.0/24", "192.168.100.9", 9).V4}, `"host-gw" "vxlan"`},
		{"no family in common", &subnet.Lease{Name: "x", Backend: "vxlan", V6: subnet.Endpoint{Subnet: netip.MustParsePrefix("2001:db8::/64")}}, ""},
		{"a broadcast MAC", &subnet.Lease{Name: "x", Backend: "vxlan", V4: subnet.Endpoint{Subnet: netip.MustParsePrefix("10.5.9.0/24"),
			PublicIP: netip.MustParseAddr("192.168.100.9"), Data: json.RawMessage(`{"VNI":1,"VtepMAC":"ff:ff:ff:ff:ff:ff"}`)}}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			set := []*subnet.Lease{good, test.bad}
			slices.SortFunc(set, subnet.Compare)
			paths, rejects := newPlan(t, false).Paths(set)
			if got := dsts(paths); got != "10.5.2.0/24" {
				t.Errorf("paths to %s, want to the good peer alone", got)
			}
			if len(rejects) != 1 || rejects[0].Name != test.bad.Name || !logtest.Names(rejects[0].Reason, strings.Fields(test.want)...) {
				t.Errorf("left out %v, want the bad one because of %q", rejects, test.want)
			}
		})
	}
	// Private addresses are not unique: sources may be addresses of this node and of others.
	several := withSources("192.168.100.1", "192.168.100.2", "203.0.113.9", "203.0.113.8")
	if paths, rejects := newPlan(t, false).Paths([]*subnet.Lease{several}); len(paths) != 1 || paths[0].Sources != "192.168.100.1 192.168.100.2 203.0.113.9 203.0.113.8" {
		t.Errorf("a peer with several sources gives %v, left out %v", paths, rejects)
	}
	half := &subnet.Lease{V4: good.V4}
	p := newPlan(t, false)
	if paths, rejects := p.Paths([]*subnet.Lease{half}); len(paths) != 0 || len(rejects) != 0 || p.Pending() != 1 {
		t.Errorf("a peer that has yet to describe itself gives %v and %v, %d pending", paths, rejects, p.Pending())
	}
	if p.Paths([]*subnet.Lease{good}); p.Pending() != 0 {
		t.Error("it stays silent though it has described itself")
	}
	odd := peerLease("10.5.64.0/20", "192.168.100.9", 9)
	if paths, rejects := newPlan(t, false).Paths([]*subnet.Lease{odd}); len(paths) != 1 {
		t.Errorf("a subnet of another size that is in nobody's way is left out: %v", rejects)
	}
}

// withSources returns a lease whose tunnel sends from several addresses.
func withSources(sources ...string) *subnet.Lease {
	l := peerLease("10.5.9.0/24", "192.168.100.9", 9)
	l.V4.Data = json.RawMessage(fmt.Sprintf(`{"VNI":1,"VtepMAC":"02:00:00:00:00:09","Sources":["%s"]}`, strings.Join(sources, `","`)))
	return l
}

// randomSet draws leases with many conflicts among them.
func randomSet(rnd *rand.Rand, pool []*subnet.Lease) []*subnet.Lease {
	var set []*subnet.Lease
	for _, l := range pool {
		if rnd.IntN(3) > 0 {
			set = append(set, l)
		}
	}
	return set
}

// Whatever way led to a set, the outcome is the same as for a plan that sees it first; and unchanged leases keep
// their paths.
func TestIncrementalIsTheSameAsFresh(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	var pool []*subnet.Lease
	for i := range 40 {
		bits := 24
		if rnd.IntN(5) == 0 {
			bits = 22 + rnd.IntN(5)
		}
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte(rnd.IntN(30)), 0}), bits).Masked()
		l := peerLease(p.String(), fmt.Sprintf("192.168.100.%d", i+2), rnd.IntN(40))
		l.Name, l.Since = fmt.Sprint("lease ", i), rnd.Int64N(20)
		pool = append(pool, l)
	}
	slices.SortStableFunc(pool, subnet.Compare)
	p := newPlan(t, false)
	for range 500 {
		set := randomSet(rnd, pool)
		gotPaths, gotRejects := p.Paths(set)
		wantPaths, wantRejects := newPlan(t, false).Paths(set)
		if dsts(gotPaths) != dsts(wantPaths) || !slices.Equal(gotRejects, wantRejects) {
			t.Fatalf("after changes: %s, %v\nfresh: %s, %v", dsts(gotPaths), gotRejects, dsts(wantPaths), wantRejects)
		}
		for i, a := range gotPaths {
			for _, b := range gotPaths[:i] {
				if a.Dst.Overlaps(b.Dst) || a.Encap == b.Encap {
					t.Fatalf("two paths are in each other's way: %v and %v", a, b)
				}
			}
		}
	}
	set := randomSet(rnd, pool)
	before, _ := p.Paths(set)
	after, _ := p.Paths(slices.Clone(set))
	if !slices.Equal(before, after) {
		t.Error("the same leases got other paths")
	}
}

func TestDualStack(t *testing.T) {
	l := peerLease("10.5.2.0/24", "192.168.100.2", 2)
	l.V6 = subnet.Endpoint{Subnet: netip.MustParsePrefix("2001:cafe:42:2::/64"), PublicIP: netip.MustParseAddr("fd00:100::2"), Data: l.V4.Data}
	paths, rejects := newPlan(t, true).Paths([]*subnet.Lease{l})
	if got := dsts(paths); got != "10.5.2.0/24 2001:cafe:42:2::/64" || rejects != nil {
		t.Errorf("paths to %s, left out %v", got, rejects)
	}
	twin := peerLease("10.5.3.0/24", "192.168.100.3", 3)
	twin.V6 = l.V6
	twin.V6.PublicIP = netip.MustParseAddr("fd00:100::3")
	if paths, rejects := newPlan(t, true).Paths([]*subnet.Lease{l, twin}); len(paths) != 2 || len(rejects) != 1 {
		t.Errorf("two peers with one IPv6 subnet: paths to %s, left out %v", dsts(paths), rejects)
	}
	if paths, _ := newPlan(t, false).Paths([]*subnet.Lease{l}); dsts(paths) != "10.5.2.0/24" {
		t.Errorf("a node with IPv4 only has paths to %s", dsts(paths))
	}
}

// podCIDRs may have another length than SubnetLen; that of our own is then the usual one.
func TestLengthOfPodCIDRs(t *testing.T) {
	p := newPlan(t, false)
	p = New(p.cfg, subnet.Lease{V4: subnet.Endpoint{Subnet: netip.MustParsePrefix("10.5.1.0/26"), PublicIP: netip.MustParseAddr("192.168.100.1")}}, p.backend)
	paths, rejects := p.Paths([]*subnet.Lease{peerLease("10.5.1.64/26", "192.168.100.2", 2), peerLease("10.5.1.128/26", "192.168.100.3", 3)})
	if len(paths) != 2 || len(rejects) != 0 || len(p.unusual) != 0 {
		t.Errorf("%d paths, %d odd, left out %v", len(paths), len(p.unusual), rejects)
	}
}

func BenchmarkOnePeerOfMany(b *testing.B) {
	for _, n := range []int{1000, 5000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p := newPlan(b, false)
			p.cfg.V4 = network("10.0.0.0/8", 24)
			var set []*subnet.Lease
			for i := range n {
				set = append(set, peerLease(fmt.Sprintf("10.%d.%d.0/24", 64+i>>8, i&255), "192.168.100.2", i))
			}
			p.Update(set, nil)
			last := set[n/2]
			for b.Loop() {
				next := *last
				p.Update(nil, []reconcile.Change[subnet.Lease]{{Old: last, New: &next}})
				last = &next
			}
		})
	}
}

// What only this node rejects is marked: about it, this node has to speak up by itself.
func TestLocalRejects(t *testing.T) {
	for name, test := range map[string]struct {
		peer  *subnet.Lease
		local bool
	}{
		"this node's public IP": {peerLease("10.5.2.0/24", "192.168.100.1", 2), true},
		"another address of it": {peerLease("10.5.2.0/24", "192.168.100.77", 2), true},
		"a part of its subnet":  {peerLease("10.5.1.128/25", "192.168.100.2", 2), true},
		"no public IP":          {peerLease("10.5.2.0/24", "127.0.0.1", 2), false},
		"another network":       {peerLease("10.6.2.0/24", "192.168.100.2", 2), false},
	} {
		p := newPlan(t, false)
		p.SetAddrs([]netip.Addr{netip.MustParseAddr("192.168.100.77")})
		_, rejects := p.Paths([]*subnet.Lease{test.peer})
		if len(rejects) != 1 || rejects[0].Local != test.local {
			t.Errorf("%s: rejects %+v, want one, local: %t", name, rejects, test.local)
		}
	}
}
