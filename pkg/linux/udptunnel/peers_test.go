package udptunnel

import (
	"math/rand/v2"
	"net/netip"
	"testing"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// slowFind finds the smallest subnet with an address by looking at all.
func slowFind(all map[netip.Prefix]netip.AddrPort, a netip.Addr) (via netip.AddrPort) {
	bits := -1
	for s, v := range all {
		if s.Contains(a) && s.Bits() > bits {
			bits, via = s.Bits(), v
		}
	}
	return via
}

// Whatever subnets come and go, nested ones among them, the table finds what looking at all of them does.
func TestPeersAgainstModel(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	p, model := &Peers{}, map[netip.Prefix]netip.AddrPort{}
	find := finder{peers: p}
	random := func() netip.Prefix {
		bits := 24
		if rnd.IntN(5) == 0 {
			bits = 20 + rnd.IntN(11)
		}
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte(rnd.IntN(24)), byte(rnd.IntN(256))}), bits).Masked()
	}
	for round := range 400 {
		set, deleted := map[netip.Prefix]netip.AddrPort{}, []netip.Prefix(nil)
		for range rnd.IntN(6) {
			set[random()] = netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 168, 0, byte(rnd.IntN(256))}), uint16(8285+rnd.IntN(2)))
		}
		for range rnd.IntN(6) {
			deleted = append(deleted, random())
		}
		p.Set(set)
		p.Delete(deleted)
		for s, via := range set {
			model[s] = via
		}
		for _, s := range deleted {
			delete(model, s)
		}
		find.refresh()
		if len(p.All()) != len(model) || find.table != nil && len(find.table.entries) != len(model) {
			t.Fatalf("round %d: %d subnets, want %d", round, len(p.All()), len(model))
		}
		for range 50 {
			a := netip.AddrFrom4([4]byte{10, 5, byte(rnd.IntN(25)), byte(rnd.IntN(256))})
			want, got := slowFind(model, a), netip.AddrPort{}
			if e := find.find(number(a)); e != nil {
				got = e.addr.AddrPort()
				got = netip.AddrPortFrom(got.Addr().Unmap(), got.Port())
				if e.via != number(got.Addr()) || e.port != got.Port() {
					t.Fatalf("an entry with two addresses: %+v", e)
				}
			}
			if got != want {
				t.Fatalf("round %d: %s leads to %v, want %v", round, a, got, want)
			}
		}
	}
}

func manyPeers(n int) map[netip.Prefix]netip.AddrPort {
	all := map[netip.Prefix]netip.AddrPort{}
	for i := range n {
		all[netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(64 + i>>8), byte(i), 0}), 24)] =
			netip.AddrPortFrom(netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)}), 8285)
	}
	return all
}

// Lookups of packets to ever other peers, and one peer's change, among 10,000.
func BenchmarkPeers(b *testing.B) {
	p := &Peers{}
	p.Set(manyPeers(10_000))
	b.Run("find", func(b *testing.B) {
		find := finder{peers: p}
		find.refresh()
		a := uint32(10<<24 | 64<<16)
		for b.Loop() {
			if a += 7 << 8; a >= 10<<24|100<<16 {
				a -= 36 << 16
			}
			if find.find(a) == nil {
				b.Fatalf("nobody has %x", a)
			}
		}
	})
	b.Run("change", func(b *testing.B) {
		one := map[netip.Prefix]netip.AddrPort{prefix("10.70.7.0/24"): netip.MustParseAddrPort("172.16.9.9:8285")}
		for b.Loop() {
			p.Set(one)
		}
	})
}
