package reconcile

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"
)

// Whatever is set and deleted, also while the entries are visited, a CompactMap has the entries
// that Go's map has.
func TestCompactMapIsAMap(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var m CompactMap[int, int]
	want := map[int]int{}
	most := 0 // chunks at a time
	for step := range 40000 {
		keys := 1 + step%5000 // from a few keys to several chunks, and back
		switch key := rnd.IntN(keys); rnd.IntN(3) {
		case 0:
			m.Delete(key)
			delete(want, key)
		default:
			m.Set(key, step)
			want[key] = step
		}
		most = max(most, len(m.chunks))
		if step%5000 == 2500 {
			for key, value := range m.All() {
				m.Set(key, -value)
				want[key] = -want[key]
			}
		}
		if step%5000 == 0 {
			for key := range m.All() {
				if rnd.IntN(16) != 0 { // so many that the map shrinks meanwhile
					m.Delete(key)
					delete(want, key)
				}
			}
		}
		key := rnd.IntN(keys)
		value, found := m.Get(key)
		if wanted, exists := want[key]; found != exists || value != wanted || m.Has(key) != exists {
			t.Fatalf("step %d: %d has %d, %t, want %d, %t", step, key, value, found, wanted, exists)
		}
		if step%250 == 0 && (!maps.Equal(maps.Collect(m.All()), want) || m.Len() != len(want)) {
			t.Fatalf("step %d: %v, want %v", step, maps.Collect(m.All()), want)
		}
	}
	if most < 3 {
		t.Errorf("there were never more than %d chunks", most)
	}
}

// A CompactMap takes less memory than Go's map, and gives it back.
func TestCompactMapMemory(t *testing.T) {
	const count = 10000
	key := func(i int) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)
	}
	var m CompactMap[netip.Prefix, struct{}]
	used := func(do func()) int64 {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		do()
		runtime.GC()
		runtime.ReadMemStats(&after)
		return int64(after.HeapAlloc) - int64(before.HeapAlloc)
	}
	usual := map[netip.Prefix]struct{}{}
	compact := used(func() {
		m.Reserve(count)
		for i := range count {
			m.Set(key(i), struct{}{})
		}
	})
	gos := used(func() {
		for i := range count {
			usual[key(i)] = struct{}{}
		}
	})
	if compact > 50*count || compact > gos*2/3 { // 41 are usual; the rest is what else the process allocates
		t.Errorf("%d entries take %d bytes, in Go's map %d", count, compact, gos)
	}
	freed := used(func() {
		for i := range count {
			if i%100 != 0 {
				m.Delete(key(i))
			}
		}
	})
	if -freed < compact*9/10 {
		t.Errorf("of %d bytes, %d were given back", compact, -freed)
	}
	if m.Len() != count/100 || len(usual) != count {
		t.Errorf("%d entries are left", m.Len())
	}
	for i := range count {
		if kept := i%100 == 0; m.Has(key(i)) != kept {
			t.Errorf("%v is in the map: %t, want %t", key(i), !kept, kept)
		}
	}
	for i := range count {
		m.Delete(key(i))
	}
	if room := cap(m.chunks); room > 1 {
		t.Errorf("an empty Map has room for %d chunks", room)
	}
}

func BenchmarkCompactMapGet(b *testing.B) {
	var m CompactMap[netip.Prefix, int]
	usual := map[netip.Prefix]int{}
	var keys []netip.Prefix
	for i := range 10000 {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)
		keys = append(keys, p)
		m.Set(p, i)
		usual[p] = i
	}
	b.Run("compact", func(b *testing.B) {
		b.ReportAllocs()
		for i := range b.N {
			m.Get(keys[i%len(keys)])
		}
	})
	b.Run("Go's", func(b *testing.B) {
		b.ReportAllocs()
		for i := range b.N {
			_ = usual[keys[i%len(keys)]]
		}
	})
}
