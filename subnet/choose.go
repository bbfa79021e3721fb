package subnet

import (
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"slices"
)

// Fits says why the subnets of l cannot be a node's under cfg, nil if they can.
func Fits(cfg Config, l *Lease) error {
	return errors.Join(fits("IPv4", cfg.V4, l.V4.Subnet), fits("IPv6", cfg.V6, l.V6.Subnet),
		cfg.CheckUnderlay(l.V4.Subnet, l.V6.Subnet))
}

func fits(family string, n Network, s netip.Prefix) error {
	switch {
	case !n.On() && !s.IsValid():
		return nil
	case !n.On():
		return fmt.Errorf("%v is there, but %s is off", s, family)
	case !s.IsValid():
		return fmt.Errorf("it has no %s subnet", family)
	case s.Bits() != n.SubnetLen:
		return fmt.Errorf("%v is not a /%d", s, n.SubnetLen)
	case !n.Prefix.Contains(s.Addr()):
		return fmt.Errorf("%v is outside of %v", s, n.Prefix)
	case s.Addr().Less(n.Min) || n.Max.Less(s.Addr()):
		return fmt.Errorf("%v is not between %v and %v", s, n.Min, n.Max)
	}
	return nil
}

// Free tells whether no lease in taken overlaps a subnet of l.
func Free(l *Lease, taken []*Lease) bool {
	return !slices.ContainsFunc(taken, func(t *Lease) bool {
		return overlap(l.V4.Subnet, t.V4.Subnet) || overlap(l.V6.Subnet, t.V6.Subnet)
	})
}

func overlap(a, b netip.Prefix) bool {
	if a.Bits() > b.Bits() {
		a, b = b, a
	}
	return a.Contains(b.Addr()) // not if either is the zero Prefix, or they are of different families
}

// ErrFull is what Choose returns when all subnets of a network are leased.
var ErrFull = errors.New("no free subnet")

// Choose picks a random subnet in each family of cfg that overlaps none in taken, whatever their size, and nothing of
// the underlay (but for networks there that contain the whole pod network). Every free subnet is equally likely, so
// that nodes starting together seldom meet. The error says which network is full.
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

// occupants are what a new subnet of a network must not overlap.
func occupants(leases []*Lease, cfg Config, n Network, of func(*Lease) netip.Prefix) []netip.Prefix {
	var all []netip.Prefix
	for _, l := range leases {
		if p := of(l); p.IsValid() {
			all = append(all, p)
		}
	}
	for _, under := range cfg.Underlay {
		if under.Bits() > n.Prefix.Bits() {
			all = append(all, under)
		}
	}
	return all
}

// span is a run of subnets, by their numbers counted from Min; both ends belong to it.
type span struct{ first, last *big.Int }

// choose numbers the subnets from Min on and takes the n-th free one: the cost depends on how many are taken, not on
// how many there are. An IPv6 network may have more than 2^64 of them, hence the big integers.
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
		return netip.Prefix{}, fmt.Errorf("%w: %v of %v in %v are leased", ErrFull, total, total, n.Prefix)
	}
	pick := new(big.Int)
	if free.IsUint64() {
		pick.SetUint64(rnd.Uint64N(free.Uint64()))
	} else {
		pick.SetUint64(rnd.Uint64()) // 2^64 of them are choice enough
	}
	for _, s := range spans {
		if pick.Cmp(s.first) < 0 {
			break
		}
		pick.Add(pick, new(big.Int).Sub(s.last, s.first)).Add(pick, big.NewInt(1))
	}
	return numbered(n, pick), nil
}

// occupied returns the runs of taken subnets in [0, total), in order and merged.
func occupied(n Network, total *big.Int, taken []netip.Prefix) []span {
	base, end := number(n.Min, n.SubnetLen), new(big.Int).Sub(total, big.NewInt(1))
	var all []span
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
		all = append(all, span{first, last})
	}
	slices.SortFunc(all, func(a, b span) int { return a.first.Cmp(b.first) })
	var merged []span
	for _, s := range all {
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

// number is the address without its host bits, as an integer.
func number(a netip.Addr, subnetLen int) *big.Int {
	return new(big.Int).Rsh(new(big.Int).SetBytes(a.AsSlice()), uint(a.BitLen()-subnetLen))
}

// numbered is the inverse: the i-th subnet counted from Min.
func numbered(n Network, i *big.Int) netip.Prefix {
	width := n.Min.BitLen()
	i = new(big.Int).Add(i, number(n.Min, n.SubnetLen))
	addr, _ := netip.AddrFromSlice(i.Lsh(i, uint(width-n.SubnetLen)).FillBytes(make([]byte, width/8)))
	return netip.PrefixFrom(addr, n.SubnetLen)
}
