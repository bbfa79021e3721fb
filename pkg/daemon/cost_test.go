package daemon

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"flannel/backend"
	"flannel/pkg/conf"
	"flannel/pkg/dataplane"
	"flannel/pkg/plan"
	"flannel/pkg/underlay"
	"flannel/subnet"
	"flannel/subnet/peerset"
)

// One peer of 10,000 publishes another VTEP address: all that happens between the store and the dataplane.
func BenchmarkOneLeaseOf10000(b *testing.B) {
	lease := func(i, mac int) *subnet.Lease {
		return &subnet.Lease{Name: fmt.Sprintf("n%05d", i), Backend: "vxlan", V4: subnet.Endpoint{
			Subnet:   netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(64 + i>>8), byte(i), 0}), 24),
			PublicIP: netip.AddrFrom4([4]byte{192, 168, byte(i >> 8), byte(i)}),
			Data:     json.RawMessage(fmt.Sprintf(`{"VNI":1,"VtepMAC":"02:00:00:%02x:%02x:%02x"}`, mac>>16, mac>>8&255, mac&255))}}
	}
	change := func(i, mac int) peerset.Change {
		l := lease(i, mac)
		return peerset.Change{Name: l.Name, Entry: peerset.Entry{Lease: l}}
	}
	vxlanBackend, _, err := backend.KindOf("vxlan").Parse(conf.Parse([]byte(`{}`)), "linux")(backend.Node{V4: true, Underlay: underlay.Link{Name: "eth0", MTU: 1500}})
	if err != nil {
		b.Fatal(err)
	}
	p := plan.New(subnet.Config{V4: subnet.Network{Prefix: netip.MustParsePrefix("10.0.0.0/8"), SubnetLen: 24}, Backend: "vxlan"}, *lease(0, 0), vxlanBackend)
	in := newInbox()
	keeper := peerset.NewKeeper("n00000", 0, true, slog.New(slog.DiscardHandler), in.setPeers)
	var all []peerset.Change
	for i := range 10_000 {
		all = append(all, change(i, i))
	}
	keeper.ApplyAll(all, false)
	set, _ := in.takePeers()
	p.Update(set.Leases, set.Changes)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		keeper.Apply([]peerset.Change{change(5000, 20_000+i%20_000)}, false)
		set, _ := in.takePeers()
		if planned := p.Update(set.Leases, set.Changes); len(planned.Changes) != 2 || len(planned.Paths) != 9999 {
			b.Fatalf("%d changes, %d paths", len(planned.Changes), len(planned.Paths))
		}
	}
}

// manyPaths are the paths to the subnets from 10.first to 10.last.
func manyPaths(first, last int) (all []*dataplane.Path) {
	for i := first; i <= last; i++ {
		all = append(all, &dataplane.Path{Dst: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24),
			Via: netip.AddrFrom4([4]byte{192, 168, byte(i >> 8), byte(i)}), Device: tunnelDevice,
			Encap: dataplane.VTEP{MAC: dataplane.MAC{2, 0, 0, 0, byte(i >> 8), byte(i)}}})
	}
	return all
}

// passesWithOrphans returns a function that makes a pass of a node with 7,500 peers and 2,500 orphans. With changes, one
// peer has another path in each.
func passesWithOrphans(t testing.TB, changes bool) (pass func()) {
	s := startOver(t, time.Hour, manyPaths(0, 9999)...)
	leased := manyPaths(0, 7499)
	pass = func() {
		p := s.newPass()
		p.known, p.links, p.state = true, s.links, p.desired()
		if changes {
			leased = append(manyPaths(0, 0), leased[1:]...)
		}
		p.state.Paths, p.state.Since = leased, leased
		for _, part := range s.parts {
			if part.name == partPaths && part.reconcile != nil {
				p.failed.add(part.name, part.reconcile(t.Context(), p))
			}
		}
		if err := p.failed.err(); err != nil || len(s.kernel.last.Paths) != 10_000 {
			t.Fatalf("%d paths: %v", len(s.kernel.last.Paths), err)
		}
	}
	pass()
	return pass
}

func BenchmarkOrphansOf10000(b *testing.B) {
	for _, changes := range []bool{false, true} {
		b.Run(fmt.Sprintf("changes=%t", changes), func(b *testing.B) {
			pass := passesWithOrphans(b, changes)
			b.ReportAllocs()
			for b.Loop() {
				pass()
			}
		})
	}
}

// While orphans are retained, a pass does not compare them with all peers again.
func TestOrphansAreComparedWithChanges(t *testing.T) {
	if n := testing.AllocsPerRun(5, passesWithOrphans(t, false)); n > 100 {
		t.Errorf("a pass without changes makes %v allocations", n)
	}
}
