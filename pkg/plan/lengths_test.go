package plan

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"flannel/subnet"
)

// newPlanOf returns the plan of a node in a cluster that assigns subnets.
func newPlanOf(t *testing.T, own *subnet.Lease) *Plan {
	p := newPlan(t, own.V6.On())
	cfg := p.cfg
	cfg.Assigned = true
	return New(cfg, *own, p.backend)
}

// rejectedBy returns the names of the peers that a plan rejects, in their order.
func rejectedBy(p *Plan, leases ...*subnet.Lease) (names []string) {
	_, rejects := p.Paths(slices.SortedFunc(slices.Values(leases), subnet.Compare))
	for _, r := range rejects {
		names = append(names, r.Name)
	}
	return names
}

// After a change of the cluster's node CIDR mask, two nodes with subnets of different lengths have one MAC address: all
// nodes reject the same one, which alone knows that it is.
func TestOneMACWithTwoLengths(t *testing.T) {
	for _, v := range []struct {
		older, younger string
		derived        bool // from the subnet of the younger lease
	}{{"10.5.50.0/24", "10.5.60.0/25", false}, {"10.5.60.0/25", "10.5.50.0/24", false}, {"10.5.50.0/24", "10.5.60.0/25", true}, {"10.5.60.0/25", "10.5.50.0/24", true}} {
		older, younger := since(peerLease(v.older, "192.168.100.2", 2), 1), since(peerLease(v.younger, "192.168.100.3", 2), 2)
		winner, loser := older, younger
		if v.derived {
			derive(younger, younger)
			older.V4.Data = younger.V4.Data
			winner, loser = younger, older
		}
		for _, own := range []string{"10.5.1.0/24", "10.5.1.0/25"} {
			if got := rejectedBy(newPlanOf(t, peerLease(own, "192.168.100.1", 1)), older, younger); !slices.Equal(got, []string{loser.Name}) {
				t.Errorf("%+v: the node with %s rejects %v, want %s alone", v, own, got, loser.Name)
			}
		}
		for _, side := range []struct {
			us, them  *subnet.Lease
			outranked int
		}{{winner, loser, 0}, {loser, winner, 1}} {
			p := newPlanOf(t, side.us)
			if p.Paths([]*subnet.Lease{side.them}); len(p.Outranked()) != side.outranked {
				t.Errorf("%+v: %s is outranked by %v, want %d devices", v, side.us.Name, p.Outranked(), side.outranked)
			}
		}
	}
}

// A peer does not lose its precedence because another one has its subnet, of a size that is unusual here.
func TestEqualSubnetsOfUnusualSize(t *testing.T) {
	good, twin := since(peerLease("10.5.50.0/25", "192.168.100.2", 2), 1), since(peerLease("10.5.50.0/25", "192.168.100.3", 3), 3)
	twin.Name = "subnets/twin"
	mac := since(peerLease("10.5.60.0/24", "192.168.100.4", 2), 2)
	if got := rejectedBy(newPlan(t, false), good, twin, mac); !slices.Equal(got, []string{twin.Name, mac.Name}) {
		t.Errorf("rejected %v", got)
	}
}

// A public IP inside another's subnet gets the peer with the IP rejected, if the cluster assigns the subnets, or the subnet is
// of the usual size.
func TestLoopsWithTwoLengths(t *testing.T) {
	for _, c := range []struct {
		owner    string
		assigned bool
		owners   bool // it is the owner that is rejected
	}{{"10.5.7.4/30", false, true}, {"10.5.7.4/30", true, false}, {"10.5.7.0/25", false, true}, {"10.5.7.0/25", true, false}, {"10.5.7.0/24", false, false}, {"10.5.6.0/23", false, true}, {"10.5.6.0/23", true, false}} {
		owner, inside := peerLease(c.owner, "192.168.100.7", 7), peerLease("10.5.2.0/24", "10.5.7.5", 2)
		p := newPlan(t, false)
		p.cfg.Assigned = c.assigned
		want := inside.Name
		if c.owners {
			want = owner.Name
		}
		if got := rejectedBy(p, owner, inside); !slices.Equal(got, []string{want}) {
			t.Errorf("%+v: rejected %v, want %s alone", c, got, want)
		}
	}
}

// After kube-controller-manager has assigned a /24 of which another node has the second half, the older node is used.
func TestAssignedAroundAnother(t *testing.T) {
	older, around := since(peerLease("10.5.50.128/25", "192.168.100.2", 2), 1), since(peerLease("10.5.50.0/24", "192.168.100.3", 3), 2)
	for _, own := range []string{"10.5.1.0/24", "10.5.1.0/25", "10.5.2.0/23"} {
		if got := rejectedBy(newPlanOf(t, peerLease(own, "192.168.100.1", 1)), older, around); !slices.Equal(got, []string{around.Name}) {
			t.Errorf("the node with %s rejects %v, want %s alone", own, got, around.Name)
		}
	}
}

// Nodes with subnets of different lengths, in a cluster that assigns them, decide alike, whatever the others publish.
func TestAllLengthsDecideAlike(t *testing.T) {
	rnd := rand.New(rand.NewPCG(9, 10))
	rejected := 0
	for range 200 {
		var set []*subnet.Lease
		for i := range 40 {
			ip := fmt.Sprintf("192.168.100.%d", i+5)
			if rnd.IntN(8) == 0 {
				ip = fmt.Sprintf("10.5.%d.%d", 64+rnd.IntN(40), rnd.IntN(256))
			}
			at := i
			if rnd.IntN(4) == 0 { // maybe in another's subnet
				at = rnd.IntN(40)
			}
			v4 := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte(64 + at), byte(rnd.IntN(256))}), 22+rnd.IntN(5)).Masked()
			l := since(peerLease(v4.String(), ip, rnd.IntN(60)), rnd.Int64N(30))
			if l.Name = fmt.Sprint("lease ", i); rnd.IntN(2) == 0 {
				v6 := netip.MustParsePrefix(fmt.Sprintf("2001:cafe:42:%x:%x00::/%d", 128+at, rnd.IntN(256), []int{63, 64, 72, 82}[rnd.IntN(4)])).Masked()
				l.V6 = subnet.Endpoint{Subnet: v6, PublicIP: netip.MustParseAddr(fmt.Sprintf("fd00:100::%x", i+5)), Data: l.V4.Data}
			}
			switch rnd.IntN(6) {
			case 0:
				derive(l, l)
			case 1:
				if len(set) > 0 {
					derive(l, set[rnd.IntN(len(set))])
				}
			}
			set = append(set, l)
		}
		slices.SortFunc(set, subnet.Compare)
		var first []subnet.Rejected
		for i, bits := range []int{24, 25, 26} {
			own := dualLease(1, 0)
			own.V4.Subnet = netip.PrefixFrom(own.V4.Subnet.Addr(), bits)
			own.V6.Subnet = netip.PrefixFrom(own.V6.Subnet.Addr(), []int{64, 72, 82}[i])
			own.V4.Data = json.RawMessage(`{"VNI":1,"VtepMAC":"02:00:00:00:ff:01"}`)
			own.V6.Data = own.V4.Data
			_, rejects := newPlanOf(t, own).Paths(set)
			if i == 0 {
				first = rejects
				rejected += len(rejects)
			}
			if !slices.Equal(rejects, first) {
				t.Fatalf("the node with length %d rejects %v, the first one %v", bits, rejects, first)
			}
		}
	}
	if rejected < 1000 {
		t.Errorf("%d are rejected of 8,000: too few to show anything", rejected)
	}
}
