package etcd

import (
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"slices"

	"flannel/subnet"
)

// This file chooses the subnet of a new lease, for candidate (acquire.go); what is taken is decided in taken.go. Its
// functions are pure, but for rnd.

// keepSubnets returns those subnets of l that fit cfg and overlap no lease in taken. l has the subnets of this node's own
// subnet file, which an earlier run wrote. The other subnets are zero Prefixes, as are those of disabled families.
func keepSubnets(cfg subnet.Config, l *subnet.Lease, taken []*subnet.Lease) (v4, v6 netip.Prefix) {
	// Fits checks both families, and each must be checked alone. It also rejects a subnet that contains a part of
	// cfg.Underlay. A subnet inside an underlay network is kept; the daemon warns of it.
	only4, only6 := cfg, cfg
	only4.V6, only6.V4 = subnet.Network{}, subnet.Network{}
	one4, one6 := &subnet.Lease{V4: l.V4}, &subnet.Lease{V6: l.V6}
	if subnet.Fits(only4, one4) == nil && isFree(one4, taken) {
		v4 = l.V4.Subnet
	}
	if subnet.Fits(only6, one6) == nil && isFree(one6, taken) {
		v6 = l.V6.Subnet
	}
	return v4, v6
}

// isFree reports whether no lease in taken overlaps a subnet of l. A zero Prefix, no subnet, overlaps nothing.
func isFree(l *subnet.Lease, taken []*subnet.Lease) bool {
	return !slices.ContainsFunc(taken, func(t *subnet.Lease) bool {
		return l.V4.Subnet.Overlaps(t.V4.Subnet) || l.V6.Subnet.Overlaps(t.V6.Subnet)
	})
}

// errFull is what chooseFree returns when all subnets of a network are leased.
var errFull = errors.New("no free subnet")

// chooseFree returns a random free subnet for each family of cfg, the zero Prefix for a disabled one. It overlaps no
// lease in taken, of any size, and no network in cfg.Underlay, except one that contains the whole pod network: every
// subnet would overlap that one. Every free subnet is equally likely, so that nodes that start together rarely choose
// the same one. The error wraps errFull, and says which network is full.
func chooseFree(cfg subnet.Config, taken []*subnet.Lease, rnd *rand.Rand) (v4, v6 netip.Prefix, err error) {
	occupied := make([]netip.Prefix, 0, 2*len(taken)+len(cfg.Underlay))
	for _, l := range taken {
		occupied = append(occupied, l.V4.Subnet, l.V6.Subnet)
	}
	// The daemon has filled cfg.Underlay from the host's interface: its addresses, and the networks that it reaches
	// without a gateway. candidate adds the addresses of other nodes if they may be inside the pod network.
	for _, under := range cfg.Underlay {
		if podNetwork := cfg.NetworkOf(under.Addr()); under.Bits() > podNetwork.Prefix.Bits() { // of the same family
			occupied = append(occupied, under)
		}
	}
	if v4, err = chooseOf(cfg.V4, occupied, rnd); err == nil {
		v6, err = chooseOf(cfg.V6, occupied, rnd)
	}
	return v4, v6, err
}

// chooseOf numbers the subnets, draws a number i below the number of free subnets, and returns the i-th free one. Its cost
// depends on the number of occupied prefixes, not on the size of the network. An IPv6 network may have more than 2^64
// subnets, therefore the big integers.
//
// Example: Min is 10.5.0.0 and Max 10.5.9.0, with subnets of length 24: 10 subnets, called 0 to 9 here. The leases
// 10.5.2.0/24 and 10.5.4.0/23 occupy 2, 4 and 5, so that 7 are free, in the ranges 0-1, 3-3 and 6-9. Let i be 3. The
// first range has 2 subnets, so it is skipped: i becomes 1. The second has 1: i becomes 0. The result is the first one of
// the third range, 10.5.6.0/24.
func chooseOf(n subnet.Network, occupied []netip.Prefix, rnd *rand.Rand) (netip.Prefix, error) {
	if !n.On() {
		return netip.Prefix{}, nil
	}
	ranges, free := freeRanges(n, occupied), new(big.Int)
	for _, r := range ranges {
		free.Add(free, r.size())
	}
	if free.Sign() == 0 {
		return netip.Prefix{}, fmt.Errorf("%w: all %v in %v are taken", errFull, allSubnets(n).size(), n.Prefix)
	}
	pick := new(big.Int) // i of the example; free is above 0, so there is a range
	if free.IsUint64() {
		pick.SetUint64(rnd.Uint64N(free.Uint64()))
	} else {
		pick.SetUint64(rnd.Uint64()) // a choice among the first 2^64 is enough
	}
	for pick.Cmp(ranges[0].size()) >= 0 {
		pick.Sub(pick, ranges[0].size())
		ranges = ranges[1:]
	}
	return numbered(n, pick.Add(pick, ranges[0].first)), nil
}

// numbers is a range of consecutive subnet numbers, from first to end, without end; see number.
type numbers struct{ first, end *big.Int }

func (r numbers) size() *big.Int { return new(big.Int).Sub(r.end, r.first) }

// allSubnets returns the numbers of all subnets of n that may be leased.
func allSubnets(n subnet.Network) numbers {
	last := number(n.Max, n.SubnetLen)
	return numbers{number(n.Min, n.SubnetLen), last.Add(last, big.NewInt(1))}
}

// freeRanges returns the numbers of the subnets that overlap no occupied prefix, in order. An occupied prefix longer than a
// subnet takes the whole subnet; one of the other family is ignored.
func freeRanges(n subnet.Network, occupied []netip.Prefix) (free []numbers) {
	all := allSubnets(n)
	taken := append(make([]numbers, 0, len(occupied)+1), numbers{all.end, all.end}) // a sentinel: it ends the last range
	for _, p := range occupied {
		if p.Addr().BitLen() != n.Prefix.Addr().BitLen() { // also the zero Prefix, whose Addr has length 0
			continue
		}
		first := number(p.Masked().Addr(), n.SubnetLen)
		size := new(big.Int).Lsh(big.NewInt(1), uint(max(n.SubnetLen-p.Bits(), 0)))
		taken = append(taken, numbers{first, size.Add(size, first)})
	}
	slices.SortFunc(taken, func(a, b numbers) int { return a.first.Cmp(b.first) })
	next := all.first // all numbers below it were visited
	for _, t := range taken {
		if t.first.Cmp(all.end) > 0 {
			break
		}
		if next.Cmp(t.first) < 0 {
			free = append(free, numbers{next, t.first})
		}
		if next.Cmp(t.end) < 0 {
			next = t.end
		}
	}
	return free
}

// number returns the network bits of an address as an integer. Numbers of consecutive subnets are consecutive.
func number(a netip.Addr, subnetLen int) *big.Int {
	return new(big.Int).Rsh(new(big.Int).SetBytes(a.AsSlice()), uint(a.BitLen()-subnetLen))
}

// numbered is the inverse of number: it returns the subnet of n with a number.
func numbered(n subnet.Network, number *big.Int) netip.Prefix {
	width := n.Min.BitLen()
	bits := new(big.Int).Lsh(number, uint(width-n.SubnetLen))
	addr, _ := netip.AddrFromSlice(bits.FillBytes(make([]byte, width/8))) // never fails: 4 or 16 bytes
	return netip.PrefixFrom(addr, n.SubnetLen)
}
