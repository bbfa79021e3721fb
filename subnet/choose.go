package subnet

import (
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"slices"
)

// Fits returns an error if the subnets of l cannot be those of a node in a network with cfg.
func Fits(cfg Config, l *Lease) error {
	return errors.Join(fits("IPv4", cfg.V4, l.V4.Subnet), fits("IPv6", cfg.V6, l.V6.Subnet),
		cfg.CheckUnderlay(l.V4.Subnet, l.V6.Subnet))
}

func fits(family string, n Network, s netip.Prefix) error {
	switch {
	case !n.On() && !s.IsValid():
		return nil
	case !n.On():
		return fmt.Errorf("subnet %v is set, but %s is disabled", s, family)
	case !s.IsValid():
		return fmt.Errorf("no %s subnet", family)
	case s.Bits() != n.SubnetLen:
		return fmt.Errorf("%v is not a /%d", s, n.SubnetLen)
	case !n.Prefix.Contains(s.Addr()):
		return fmt.Errorf("%v is not in %v", s, n.Prefix)
	case s.Addr().Less(n.Min) || n.Max.Less(s.Addr()):
		return fmt.Errorf("%v is not between %v and %v", s, n.Min, n.Max)
	}
	return nil
}

// Free reports whether no lease in taken overlaps a subnet of l.
func Free(l *Lease, taken []*Lease) bool {
	return !slices.ContainsFunc(taken, func(t *Lease) bool {
		return overlap(l.V4.Subnet, t.V4.Subnet) || overlap(l.V6.Subnet, t.V6.Subnet)
	})
}

// overlap reports whether a and b have an address in common. The zero Prefix overlaps nothing.
func overlap(a, b netip.Prefix) bool {
	if a.Bits() > b.Bits() {
		a, b = b, a
	}
	return a.Contains(b.Addr()) // false for a zero Prefix, and for different families
}

// ErrFull is what Choose returns when all subnets of a network are leased.
var ErrFull = errors.New("no free subnet")

// Choose returns a random free subnet for each family of cfg, the zero Prefix for a disabled one. It overlaps no lease in
// taken, of any size, and no underlay network, except one that contains the whole pod network. Every free subnet is
// equally likely, so that nodes that start together rarely choose the same one. The error says which network is full.
func Choose(cfg Config, taken []*Lease, rnd *rand.Rand) (v4, v6 netip.Prefix, err error) {
	v4, err = choose(cfg.V4, occupants(taken, cfg, cfg.V4, func(l *Lease) netip.Prefix { return l.V4.Subnet }), rnd)
	if err != nil {
		return netip.Prefix{}, netip.Prefix{}, err
	}
	v6, err = choose(cfg.V6, occupants(taken, cfg, cfg.V6, func(l *Lease) netip.Prefix { return l.V6.Subnet }), rnd)
	if err != nil {
		return netip.Prefix{}, netip.Prefix{}, err
	}
	return v4, v6, nil
}

// occupants returns the prefixes that a new subnet of n must not overlap. of returns the subnet of a lease in the family of n.
func occupants(leases []*Lease, cfg Config, n Network, of func(*Lease) netip.Prefix) []netip.Prefix {
	var prefixes []netip.Prefix
	for _, l := range leases {
		if p := of(l); p.IsValid() {
			prefixes = append(prefixes, p)
		}
	}
	for _, under := range cfg.Underlay {
		if under.Bits() > n.Prefix.Bits() {
			prefixes = append(prefixes, under)
		}
	}
	return prefixes
}

// span is a range of consecutive subnet numbers, from first to last inclusive. Subnet 0 is the one at Network.Min.
type span struct{ first, last *big.Int }

// choose numbers the subnets from Min on, draws a number i below the number of free subnets, and returns the i-th free one.
// Its cost depends on the number of taken subnets, not on the size of the network. An IPv6 network may have more than 2^64
// subnets, therefore the big integers.
//
// Example: Min is 10.5.0.0 and Max 10.5.9.0, with subnets of length 24: 10 subnets, 0 to 9. The leases 10.5.2.0/24 and
// 10.5.4.0/23 take the spans 2-2 and 4-5, so that 7 are free: 0 1 3 6 7 8 9. Let i be 3. The first span begins at 2, not
// above i, so it is skipped: i becomes 4. The second begins at 4: i becomes 6. No span is left: the result is 10.5.6.0/24.
func choose(n Network, taken []netip.Prefix, rnd *rand.Rand) (netip.Prefix, error) {
	if !n.On() {
		return netip.Prefix{}, nil
	}
	total := new(big.Int).Sub(number(n.Max, n.SubnetLen), number(n.Min, n.SubnetLen))
	total.Add(total, big.NewInt(1))
	spans := occupied(n, total, taken)
	free := new(big.Int).Set(total)
	for _, s := range spans {
		free.Sub(free, new(big.Int).Sub(s.last, s.first)).Sub(free, big.NewInt(1))
	}
	if free.Sign() <= 0 {
		return netip.Prefix{}, fmt.Errorf("%w: %v of %v in %v are taken", ErrFull, total, total, n.Prefix)
	}
	pick := new(big.Int)
	if free.IsUint64() {
		pick.SetUint64(rnd.Uint64N(free.Uint64()))
	} else {
		pick.SetUint64(rnd.Uint64()) // a choice among the first 2^64 is enough
	}
	for _, s := range spans {
		if pick.Cmp(s.first) < 0 {
			break
		}
		pick.Add(pick, new(big.Int).Sub(s.last, s.first)).Add(pick, big.NewInt(1))
	}
	return numbered(n, pick), nil
}

// occupied returns the spans of taken subnets within 0 to total-1, sorted and merged. A prefix longer than a subnet takes
// the whole subnet.
func occupied(n Network, total *big.Int, taken []netip.Prefix) []span {
	base, end := number(n.Min, n.SubnetLen), new(big.Int).Sub(total, big.NewInt(1))
	var spans []span
	for _, p := range taken {
		if p.Addr().BitLen() != n.Prefix.Addr().BitLen() {
			continue
		}
		first := number(p.Masked().Addr(), n.SubnetLen)
		last := new(big.Int).Set(first)
		if wider := n.SubnetLen - p.Bits(); wider > 0 {
			last.Add(last, new(big.Int).Lsh(big.NewInt(1), uint(wider))).Sub(last, big.NewInt(1))
		}
		first.Sub(first, base)
		last.Sub(last, base)
		if last.Sign() < 0 || first.Cmp(end) > 0 {
			continue
		}
		if first.Sign() < 0 {
			first.SetInt64(0)
		}
		if last.Cmp(end) > 0 {
			last.Set(end)
		}
		spans = append(spans, span{first, last})
	}
	slices.SortFunc(spans, func(a, b span) int { return a.first.Cmp(b.first) })
	var merged []span
	for _, s := range spans {
		if n := len(merged); n > 0 && s.first.Cmp(merged[n-1].last) <= 0 {
			if s.last.Cmp(merged[n-1].last) > 0 {
				merged[n-1].last = s.last
			}
			continue
		}
		merged = append(merged, s)
	}
	return merged
}

// number returns the network bits of an address as an integer. Numbers of consecutive subnets are consecutive.
func number(a netip.Addr, subnetLen int) *big.Int {
	return new(big.Int).Rsh(new(big.Int).SetBytes(a.AsSlice()), uint(a.BitLen()-subnetLen))
}

// numbered is the inverse of number, relative to Min: it returns subnet i.
func numbered(n Network, i *big.Int) netip.Prefix {
	width := n.Min.BitLen()
	i = new(big.Int).Add(i, number(n.Min, n.SubnetLen))
	addr, _ := netip.AddrFromSlice(i.Lsh(i, uint(width-n.SubnetLen)).FillBytes(make([]byte, width/8)))
	return netip.PrefixFrom(addr, n.SubnetLen)
}
