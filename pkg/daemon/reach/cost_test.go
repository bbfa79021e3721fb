package reach

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	"flannel/subnet"
)

// crowd returns a network with that many peers.
func crowd(peers int, addressing Addressing) Network {
	local := subnet.Lease{V4: subnet.Endpoint{Subnet: netip.MustParsePrefix("10.255.0.0/24"), PublicIP: netip.MustParseAddr("192.168.0.1")}}
	n := Network{Local: local, Addressing: addressing, MTU: 1450, Synced: true}
	for i := range peers {
		n.Peers = append(n.Peers, &subnet.Lease{Name: fmt.Sprint("node", i), Backend: "vxlan", V4: subnet.Endpoint{
			Subnet:   netip.PrefixFrom(netip.AddrFrom4([4]byte{11, byte(i >> 8), byte(i), 0}), 24),
			PublicIP: netip.AddrFrom4([4]byte{192, 169, byte(i >> 8), byte(i)})}})
	}
	return n
}

// Without an address to probe, peers take no memory.
func TestNoMemoryWithoutProbes(t *testing.T) {
	n := crowd(10000, None)
	m := newMesh(func(int) int { return 0 }, func() uint64 { return 0 })
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	m.Update((&world{}).now, n)
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 100_000 {
		t.Errorf("took %d bytes for 10,000 peers", took)
	}
}

// BenchmarkCrowd measures a turn, of which there is one a second, among 10,000 peers:
// when all answer, when none does, and with a pass before each turn. It also prints the
// memory for the peers.
func BenchmarkCrowd(b *testing.B) {
	const peers = 10000
	for _, c := range []struct {
		name            string
		answers, passes bool
	}{{"answering", true, false}, {"silent", false, false}, {"passes", true, true}} {
		b.Run(fmt.Sprintf("%s/%d", c.name, peers), func(b *testing.B) {
			w := &world{}
			n := crowd(peers, Tunnels)
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			token := uint64(0)
			m := newMesh(func(n int) int { token++; return int(token % uint64(n)) }, func() uint64 { token++; return token })
			m.Update(w.now, n)
			turn := func() {
				w.now = w.now.Add(interval)
				if c.passes {
					m.Update(w.now, n)
				}
				if r, due := m.Turn(w.now); due && c.answers {
					m.Received(w.now, r.to, true, false, r.body)
				}
				m.Changes(w.now)
			}
			for range 3 * peers {
				turn()
				if c.passes {
					break
				}
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			for b.Loop() {
				turn()
			}
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/peers, "B/peer")
		})
	}
}

// Peers that are gone take no memory in the lists of the others when the round is over.
func TestNoMemoryOfDepartedPeers(t *testing.T) {
	w, n := &world{}, crowd(10000, Tunnels)
	m := newMesh(func(int) int { return 0 }, func() uint64 { return 0 })
	m.Update(w.now, n)
	for _, p := range m.peers.All() {
		m.suspects = append(m.suspects, p.targets...)
	}
	n.Peers = n.Peers[:3]
	m.Update(w.now, n)
	for range 10 { // which end a round
		w.now = w.now.Add(interval)
		m.Turn(w.now)
	}
	if cap(m.order) > 100 || cap(m.suspects) > 100 {
		t.Errorf("among %d peers, the order has room for %d, and the list of suspects for %d", len(n.Peers), cap(m.order), cap(m.suspects))
	}
}
