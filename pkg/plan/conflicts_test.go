package plan

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"flannel/pkg/reconcile"
	"flannel/subnet"
)

// since gives a lease its age.
func since(l *subnet.Lease, age int64) *subnet.Lease {
	l.Since = age
	return l
}

// Who comes later with what another has, stays out, whatever place its subnet gives it in the order.
func TestTheOlderLeaseStays(t *testing.T) {
	good := since(peerLease("10.5.50.0/24", "192.168.100.2", 2), 10)
	good.V6 = subnet.Endpoint{Subnet: netip.MustParsePrefix("2001:cafe:42:2::/64"), PublicIP: netip.MustParseAddr("fd00:100::2"), Data: good.V4.Data}
	alone := peerLease("10.5.50.0/24", "192.168.100.9", 9) // the key of a node without IPv6 sorts before that with it
	six := peerLease("10.5.3.0/24", "192.168.100.9", 9)
	six.V6 = good.V6
	six.V6.Data = json.RawMessage(`{"VNI":1,"VtepMAC":"02:00:00:00:00:09"}`)
	for name, rogue := range map[string]*subnet.Lease{
		"its MAC, a lower subnet":  peerLease("10.5.2.0/24", "192.168.100.9", 2),
		"its MAC, a higher subnet": peerLease("10.5.60.0/24", "192.168.100.9", 2),
		"its subnet":               alone,
		"its IPv6 subnet":          six,
		"a part of its subnet":     peerLease("10.5.50.0/25", "192.168.100.9", 9),
		"a subnet around its":      peerLease("10.5.48.0/22", "192.168.100.9", 9),
	} {
		rogue.Name = "rogue"
		for _, age := range []int64{11, 9} {
			set := []*subnet.Lease{good, since(rogue, age)}
			slices.SortFunc(set, subnet.Compare)
			_, rejects := newPlan(t, true).Paths(set)
			odd := strings.Contains(name, "a part") || strings.Contains(name, "around")
			want := "rogue"
			if age < 10 && !odd {
				want = good.Name
			}
			if len(rejects) != 1 || rejects[0].Name != want {
				t.Errorf("%s, of age %d: left out %v, want %s alone", name, age, rejects, want)
			}
		}
	}
}

// naive resolves the conflicts of a set by comparing everybody with everybody.
func naive(p *Plan, set []*subnet.Lease) (in []string) {
	var all, won []*peer
	for _, l := range set {
		if one := p.newPeer(l); one.reason == "" {
			all = append(all, one)
		}
	}
	late := map[*peer]bool{}
	for _, one := range all {
		late[one] = slices.ContainsFunc(all, func(other *peer) bool { return isOdd(p, one, other) })
	}
	slices.SortFunc(all, func(a, b *peer) int { return cmp.Or(falseFirst(late[a], late[b]), comparePrecedence(a, b)) })
	for _, one := range all {
		usurper := slices.ContainsFunc(all, func(other *peer) bool { return usurped(p, one, other) })
		if !usurper && !slices.ContainsFunc(won, func(other *peer) bool { return inTheWay(one, other) }) {
			won = append(won, one)
			in = append(in, one.lease.Name)
		}
	}
	slices.Sort(in)
	return in
}

// isOdd reports whether a subnet of one overlaps another subnet of the other's, and has an unusual size or is assigned.
func isOdd(p *Plan, one, other *peer) bool {
	for _, x := range one.paths {
		for _, y := range other.paths {
			if (p.cfg.Assigned || !p.isUsual(x.Dst)) && x.Dst != y.Dst && x.Dst.Overlaps(y.Dst) {
				return true
			}
		}
	}
	return false
}

// usurped reports whether one has a MAC address that is derived from a subnet of the other's, and not from one of its own.
func usurped(p *Plan, one, other *peer) bool {
	for _, x := range one.paths {
		for _, y := range other.paths {
			if x.Device == y.Device && x.Encap == y.Encap && p.derived(y) && !p.derived(x) {
				return true
			}
		}
	}
	return false
}

func inTheWay(a, b *peer) bool {
	for _, x := range a.paths {
		for _, y := range b.paths {
			if x.Dst.Overlaps(y.Dst) || x.Device == y.Device && x.Encap == y.Encap {
				return true
			}
		}
	}
	return false
}

// The short cuts give what comparing everybody with everybody gives, and every node decides alike but for what
// touches its own.
func TestResolvedAlike(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		var set []*subnet.Lease
		for i := range 60 {
			bits, bits6 := 24, 64
			if rnd.IntN(4) == 0 {
				bits, bits6 = 18+rnd.IntN(12), 58+rnd.IntN(20)
			}
			l := peerLease(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte(64 + rnd.IntN(40)), byte(rnd.IntN(256))}), bits).Masked().String(),
				fmt.Sprintf("192.168.100.%d", i+5), rnd.IntN(60))
			if rnd.IntN(3) == 0 {
				six := netip.MustParsePrefix(fmt.Sprintf("2001:cafe:42:%x:%x00::/%d", 128+rnd.IntN(20), rnd.IntN(256), bits6)).Masked()
				l.V6 = subnet.Endpoint{Subnet: six, PublicIP: netip.MustParseAddr("fd00:100::9"), Data: l.V4.Data}
			}
			switch rnd.IntN(6) {
			case 0: // its own derived addresses
				derive(l, l)
			case 1: // somebody else's
				if len(set) > 0 {
					derive(l, set[rnd.IntN(len(set))])
				}
			}
			l.Name, l.Since = fmt.Sprint("lease ", i), rnd.Int64N(30)
			set = append(set, l)
		}
		slices.SortFunc(set, func(a, b *subnet.Lease) int { return subnet.Compare(a, b) })
		p, other, compared := newPlan(t, true), newPlan(t, true), newPlan(t, true)
		p.cfg.Assigned = rnd.IntN(2) == 0
		other.cfg.Assigned, compared.cfg.Assigned = p.cfg.Assigned, p.cfg.Assigned
		other.local.V4 = subnet.Endpoint{Subnet: netip.MustParsePrefix("10.5.2.0/24"), PublicIP: netip.MustParseAddr("192.168.100.2")}
		_, rejects := p.Paths(set)
		_, same := other.Paths(set)
		if !slices.Equal(rejects, same) {
			t.Fatalf("two nodes decide in two ways: %v and %v", rejects, same)
		}
		out := map[string]bool{}
		for _, r := range rejects {
			out[r.Name] = true
		}
		var in []string
		for _, l := range set {
			if !out[l.Name] {
				in = append(in, l.Name)
			}
		}
		if slices.Sort(in); !slices.Equal(in, naive(compared, set)) {
			t.Fatalf("assigned: %t, in are %v, by comparing everybody %v", p.cfg.Assigned, in, naive(compared, set))
		}
	}
}

// A good peer's change among many, while hundreds are in others' way.
func BenchmarkOnePeerAmongRogues(b *testing.B) {
	for _, rogues := range []int{0, 500} {
		b.Run(fmt.Sprint(rogues), func(b *testing.B) {
			p := newPlan(b, false)
			p.cfg.V4 = network("10.0.0.0/8", 24)
			var set []*subnet.Lease
			for i := range 10_000 {
				set = append(set, peerLease(fmt.Sprintf("10.%d.%d.0/24", 64+i>>8, i&255), "192.168.100.2", i))
			}
			for i := range rogues {
				switch i % 3 {
				case 0:
					set = append(set, since(peerLease(fmt.Sprintf("10.%d.%d.128/25", 64+i>>8, i&255), "192.168.100.3", 20_000+i), 1))
				case 1:
					set = append(set, since(peerLease(fmt.Sprintf("10.%d.%d.0/20", 64+i>>8, i&255&^15), "192.168.100.3", 20_000+i), 1))
				default:
					set = append(set, since(peerLease(fmt.Sprintf("10.200.%d.0/24", i&255), "192.168.100.3", i), 1))
				}
			}
			slices.SortFunc(set, subnet.Compare)
			p.Update(set, nil)
			good := slices.IndexFunc(set, func(l *subnet.Lease) bool { return l.V4.Subnet == netip.MustParsePrefix("10.90.7.0/24") })
			last := set[good]
			for b.Loop() {
				next := *last
				p.Update(nil, []reconcile.Change[subnet.Lease]{{Old: last, New: &next}})
				last = &next
			}
		})
	}
}
