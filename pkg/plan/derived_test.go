package plan

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"flannel/backend"
	"flannel/pkg/conf"
	"flannel/pkg/dataplane"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

// derive gives a lease the MAC addresses that a new device of another lease's owner gets.
func derive(l, of *subnet.Lease) {
	b, _, err := backend.KindOf("vxlan").Parse(conf.Parse([]byte(`{}`)), "linux")(backend.Node{V4: true, V6: true, Underlay: underlay.Link{Name: "eth0", MTU: 1500}})
	if err != nil {
		panic(err)
	}
	for _, dev := range b.Devices(*of)[1:] {
		e := &l.V4
		if dev.Kind.(dataplane.VXLAN).Addr[0].Addr().Is6() {
			e = &l.V6
		}
		e.Data = json.RawMessage(fmt.Sprintf(`{"VNI":1,"VtepMAC":"%s"}`, dev.MAC))
	}
}

func dualLease(i int, age int64) *subnet.Lease {
	l := since(peerLease(fmt.Sprintf("10.5.%d.0/24", i), fmt.Sprintf("192.168.100.%d", i), i), age)
	l.V6 = subnet.Endpoint{Subnet: netip.MustParsePrefix(fmt.Sprintf("2001:cafe:42:%x::/64", i)), PublicIP: netip.MustParseAddr(fmt.Sprintf("fd00:100::%x", i)), Data: l.V4.Data}
	return l
}

// However old a lease is, with another's derived MAC address it is out, and that one stays.
func TestDerivedAddressBeatsAge(t *testing.T) {
	victim := dualLease(50, 10)
	derive(victim, victim)
	four, six, odd, same := dualLease(60, 1), dualLease(40, 1), peerLease("10.5.48.0/25", "192.168.100.9", 9), peerLease("10.5.50.0/24", "192.168.100.9", 9)
	four.V4.Data, six.V6.Data, odd.V4.Data, same.V4.Data = victim.V4.Data, victim.V6.Data, victim.V4.Data, victim.V4.Data
	for name, test := range map[string]struct {
		rogue *subnet.Lease
		want  string
	}{
		"its IPv4 MAC": {four, "rogue"}, "its IPv6 MAC": {six, "rogue"}, "its MAC, an odd subnet": {odd, "rogue"},
		"its subnet, and so its MAC": {same, victim.Name}, // who is older has the subnet
	} {
		test.rogue.Name, test.rogue.Since = "rogue", 1
		set := []*subnet.Lease{victim, test.rogue}
		slices.SortFunc(set, subnet.Compare)
		if _, rejects := newPlan(t, true).Paths(set); len(rejects) != 1 || rejects[0].Name != test.want {
			t.Errorf("%s: rejected %v, want %s alone", name, rejects, test.want)
		}
	}
}

// With a subnet of a size of which an IPv6 network has very many, any MAC address could be made a derived one, unless the
// cluster assigns the subnets.
func TestOddSubnetDerivesNothing(t *testing.T) {
	for _, length := range []int{80, 81} { // of a network with length 56
		victim, other := dualLease(50, 10), dualLease(48, 20)
		other.V6.Subnet = netip.PrefixFrom(other.V6.Subnet.Addr(), length)
		derive(other, other)
		victim.V6.Data = other.V6.Data
		want := victim
		if length == 81 {
			want = other
		}
		if got := rejectedBy(newPlan(t, true), other, victim); !slices.Equal(got, []string{want.Name}) {
			t.Errorf("length %d: rejected %v, want %s alone", length, got, want.Name)
		}
		for _, bits := range []int{64, length} {
			own := dualLease(1, 1)
			own.V6.Subnet = netip.PrefixFrom(own.V6.Subnet.Addr(), bits)
			if got := rejectedBy(newPlanOf(t, own), other, victim); !slices.Equal(got, []string{victim.Name}) {
				t.Errorf("length %d, assigned: the node with length %d rejects %v, want %s alone", length, bits, got, victim.Name)
			}
		}
	}
}

// Of two nodes with one MAC address, the one that all others reject knows that it is, and it alone.
func TestOutranked(t *testing.T) {
	for _, backendConfig := range []string{`{}`, `{"DirectRouting": true}`} {
		for name, test := range map[string]struct {
			older        int64 // of the second; the first is of age 10
			one, two     bool  // has its derived address; else a common one
			first, other int   // how many devices each has to change
		}{
			"the other one is older":            {older: 9, first: 2},
			"the other one is younger":          {older: 11, other: 2},
			"of the same age":                   {older: 10, other: 2},
			"the first has its derived one":     {older: 9, one: true, other: 2},
			"the other one has its derived one": {older: 11, two: true, first: 2},
		} {
			one, two := dualLease(2, 10), dualLease(3, test.older)
			switch {
			case test.one:
				derive(one, one)
			case test.two:
				derive(two, two)
				one.V4.Data, one.V6.Data = two.V4.Data, two.V6.Data
			}
			if !test.two {
				two.V4.Data, two.V6.Data = one.V4.Data, one.V6.Data
			}
			for _, side := range []struct {
				us, them *subnet.Lease
				want     int
			}{{one, two, test.first}, {two, one, test.other}} {
				p := planOf(t, backendConfig, *side.us)
				p.Paths([]*subnet.Lease{side.them})
				if got := p.Outranked(); len(got) != side.want || slices.ContainsFunc(slices.Collect(maps.Values(got)), func(by string) bool { return by != side.them.Name }) {
					t.Errorf("%s, %s: %s is outranked on %v, want %d devices", backendConfig, name, side.us.Name, got, side.want)
				}
				if p.Paths(nil); len(p.Outranked()) != 0 {
					t.Errorf("%s, %s: still outranked by a lease that is gone", backendConfig, name)
				}
			}
		}
	}
}

func planOf(t *testing.T, backendConfig string, local subnet.Lease) *Plan {
	t.Helper()
	link := underlay.Link{Name: "eth0", MTU: 1500, OnLink: []netip.Prefix{netip.MustParsePrefix("192.168.100.0/24"), netip.MustParsePrefix("fd00:100::/64")}}
	b, _, err := backend.KindOf("vxlan").Parse(conf.Parse([]byte(backendConfig)), "linux")(backend.Node{V4: true, V6: true, Underlay: link})
	if err != nil {
		t.Fatal(err)
	}
	return New(newPlan(t, true).cfg, local, b)
}

// Nobody else can be at an address of this node's, whatever interface has it, and for as long as it has it.
func TestAddressesOfThisNode(t *testing.T) {
	vip, docker, six, good := dualLease(2, 1), dualLease(3, 1), dualLease(4, 1), dualLease(5, 1)
	docker.V4.PublicIP = netip.MustParseAddr("172.17.0.1")
	set := []*subnet.Lease{vip, docker, six, good}
	p := newPlan(t, true)
	for _, step := range []struct {
		addrs []netip.Addr
		want  []string
	}{
		{nil, nil},
		{[]netip.Addr{docker.V4.PublicIP, vip.V4.PublicIP}, []string{vip.Name, docker.Name}},
		{[]netip.Addr{docker.V4.PublicIP, six.V6.PublicIP}, []string{docker.Name, six.Name}},
		{[]netip.Addr{docker.V4.PublicIP, netip.MustParseAddr("192.168.100.77"), six.V6.PublicIP}, []string{docker.Name, six.Name}},
		{[]netip.Addr{docker.V4.PublicIP}, []string{docker.Name}},
	} {
		slices.SortFunc(step.addrs, netip.Addr.Compare)
		p.SetAddrs(step.addrs)
		paths, rejects := p.Paths(set)
		var got []string
		for _, r := range rejects {
			got = append(got, r.Name)
		}
		if !slices.Equal(got, step.want) || len(paths) != 2*(len(set)-len(step.want)) {
			t.Errorf("with the addresses %v: rejected %v, %d paths; want %v rejected", step.addrs, rejects, len(paths), step.want)
		}
		fresh := newPlan(t, true)
		fresh.SetAddrs(step.addrs)
		if _, want := fresh.Paths(set); !slices.Equal(rejects, want) {
			t.Errorf("with the addresses %v: rejected %v, a new plan %v", step.addrs, rejects, want)
		}
	}
	if slices.Contains(set, nil) {
		t.Error("the caller's leases were changed")
	}
}

// A Service's virtual address comes and goes on a node with thousands of them, among thousands of peers.
func BenchmarkOneAddressOfMany(b *testing.B) {
	p := newPlan(b, false)
	p.cfg.V4 = network("10.0.0.0/8", 24)
	var set []*subnet.Lease
	var addrs []netip.Addr
	for i := range 10_000 {
		set = append(set, peerLease(fmt.Sprintf("10.%d.%d.0/24", 64+i>>8, i&255), "192.168.100.2", i))
		addrs = append(addrs, netip.AddrFrom4([4]byte{172, 20, byte(i >> 8), byte(i)}))
	}
	p.SetAddrs(addrs)
	p.Update(set, nil)
	for i := 0; b.Loop(); i++ {
		p.SetAddrs(addrs[i%2:])
		p.Update(set, nil)
	}
}
