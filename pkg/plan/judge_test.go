package plan

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"flannel/subnet"
)

// A Judge decides as the Plan whose rules it has: what it refuses, and what loses, is what the Plan rejects.
func TestJudgeDecidesAsThePlan(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		p := newPlan(t, false)
		p.SetAddrs([]netip.Addr{netip.MustParseAddr("192.168.100.200")})
		j := p.Judge()
		var leases, valid []*subnet.Lease
		for i := range 1 + rnd.IntN(30) {
			s := fmt.Sprintf("10.%d.%d.0/%d", 5+rnd.IntN(8)/7, 1+rnd.IntN(20), 20+rnd.IntN(6))
			l := peerLease(netip.MustParsePrefix(s).Masked().String(), fmt.Sprintf("%d.168.100.%d", []int{192, 192, 192, 224}[rnd.IntN(4)], 2+rnd.IntN(250)), 2+rnd.IntN(40))
			l.Name, l.Since = fmt.Sprint("n", i), rnd.Int64N(5)
			switch rnd.IntN(20) {
			case 0, 1:
				l.Backend = []string{"", "udp"}[rnd.IntN(2)]
			case 2:
				l.Backend, l.V4.Data = "", nil
			case 3:
				l.V4.Data = []byte(`{"VNI":2,"VtepMAC":"02:00:00:00:00:42"}`)
			}
			switch rnd.IntN(10) {
			case 0:
				l.V4.PublicIP = netip.MustParseAddr("192.168.100.1") // our own
			case 1, 2: // inside the pod network, maybe inside the subnet of another
				l.V4.PublicIP = netip.AddrFrom4([4]byte{10, 5, byte(1 + rnd.IntN(24)), byte(2 + i)})
			}
			leases = append(leases, l)
			if j.Check(l) == nil {
				valid = append(valid, l)
			}
		}
		rejected := map[string]bool{}
		for _, r := range p.Update(leases, nil).Rejects {
			rejected[r.Name] = true
		}
		losers, all := j.Losers(valid), j.Losers(leases)
		for _, l := range leases {
			err := j.Check(l)
			pending := errors.Is(err, subnet.ErrPending) || errors.Is(err, subnet.ErrOtherConfig) && l.Backend == ""
			refused := err != nil && !pending
			if rejected[l.Name] != (refused || losers[l]) || all[l] != rejected[l.Name] || pending != (l.Backend == "" && !rejected[l.Name]) {
				t.Fatalf("seed %d: %v: the plan rejects it: %t; check: %v, loser among the valid: %t, among all: %t", seed, l, rejected[l.Name], err, losers[l], all[l])
			}
		}
	}
}

// What a node with another configuration can publish is told from what no node can use.
func TestJudgeNamesOtherConfigurations(t *testing.T) {
	for _, c := range []struct {
		name, subnet, ip, backend, data string
		other                           bool
	}{
		{"the same", "10.5.7.0/24", "192.168.100.7", "vxlan", `{"VNI":1,"VtepMAC":"02:00:00:00:00:07"}`, false},
		{"another VNI", "10.5.7.0/24", "192.168.100.7", "vxlan", `{"VNI":77,"VtepMAC":"02:00:00:00:00:07"}`, true},
		{"another type", "10.5.7.0/24", "192.168.100.7", "host-gw", ``, true},
		{"a mark without a type", "10.5.7.0/24", "192.168.100.7", "", `{"Adopted":"1"}`, true},
		{"a reservation", "10.5.7.0/24", "192.168.100.7", "", ``, false},
		{"a bad MAC address", "10.5.7.0/24", "192.168.100.7", "vxlan", `{"VNI":77,"VtepMAC":"ff:ff:ff:ff:ff:ff"}`, false},
		{"a bad address", "10.5.7.0/24", "224.0.0.7", "vxlan", `{"VNI":77,"VtepMAC":"02:00:00:00:00:07"}`, false},
		{"a bad address, another type", "10.5.7.0/24", "224.0.0.7", "host-gw", ``, false},
		{"a bad address, without a type", "10.5.7.0/24", "224.0.0.7", "", `{"Adopted":"1"}`, false},
		{"outside the network", "10.6.7.0/24", "192.168.100.7", "host-gw", ``, false},
		{"our own address", "10.5.7.0/24", "192.168.100.1", "host-gw", ``, false},
	} {
		l := peerLease(c.subnet, c.ip, 7)
		l.Backend, l.V4.Data = c.backend, []byte(c.data)
		if err := newPlan(t, false).Judge().Check(l); errors.Is(err, subnet.ErrOtherConfig) != c.other {
			t.Errorf("%s: %v; want that it is of another configuration: %t", c.name, err, c.other)
		}
	}
}

// With host-gw, another node may be on another link, where it reaches peers that this node does not.
func TestJudgeElsewhereIsOnAnyLink(t *testing.T) {
	i := slices.IndexFunc(eachBackend, func(c backendCase) bool { return c.kind.Name == "host-gw" })
	c, p := eachBackend[i], eachBackend[i].newPlan(t)
	for ip, there := range map[string]bool{"192.168.200.7": true, "224.0.0.7": false} {
		l := c.newPeer("10.5.7.0/24", ip)
		if p.Judge().Check(l) == nil || (p.Judge().Elsewhere().Check(l) == nil) != there {
			t.Errorf("%s: here %v, elsewhere %v", ip, p.Judge().Check(l), p.Judge().Elsewhere().Check(l))
		}
	}
}

// Elsewhere our own subnet and addresses are those of a peer.
func TestJudgeElsewhere(t *testing.T) {
	p := newPlan(t, false)
	p.SetAddrs([]netip.Addr{netip.MustParseAddr("192.168.100.9")})
	for _, l := range []*subnet.Lease{peerLease("10.5.1.0/24", "192.168.100.7", 7), peerLease("10.5.7.0/24", "192.168.100.1", 7),
		peerLease("10.5.7.0/24", "192.168.100.9", 7), peerLease("10.5.7.0/24", "192.168.100.7", 1)} {
		if here, there := p.Judge().Check(l), p.Judge().Elsewhere().Check(l); here == nil || there != nil {
			t.Errorf("%v: here %v, elsewhere %v", l, here, there)
		}
	}
	if err := p.Judge().Elsewhere().Check(peerLease("10.5.7.0/24", "224.0.0.1", 7)); err == nil {
		t.Error("a multicast address is accepted elsewhere")
	}
}

// The reason says how a subnet is not one of the network.
func TestOutsideTheNetwork(t *testing.T) {
	for s, want := range map[string]string{"10.5.0.0/16": "is the whole network", "10.0.0.0/8": "contains the whole network 10.5.0.0/16",
		"0.0.0.0/1": "contains the whole network 10.5.0.0/16", "10.6.3.0/24": "is not in the network 10.5.0.0/16"} {
		if err := newPlan(t, false).Judge().Check(peerLease(s, "192.168.100.7", 7)); err == nil || !strings.Contains(err.Error(), "subnet "+s+" "+want) {
			t.Errorf("%s: %v, want %s", s, err, want)
		}
	}
}
