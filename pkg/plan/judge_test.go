package plan

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
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
			if rnd.IntN(10) == 0 {
				l.Backend = []string{"", "udp"}[rnd.IntN(2)]
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
			refused := err != nil && !errors.Is(err, subnet.ErrPending)
			if rejected[l.Name] != (refused || losers[l]) || all[l] != rejected[l.Name] || errors.Is(err, subnet.ErrPending) != (l.Backend == "") {
				t.Fatalf("seed %d: %v: the plan rejects it: %t; check: %v, loser among the valid: %t, among all: %t", seed, l, rejected[l.Name], err, losers[l], all[l])
			}
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
