package daemon

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"

	"flannel/backend"
	"flannel/pkg/conf"
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
	keeper := peerset.NewKeeper("n00000", 0, slog.New(slog.DiscardHandler), in.setPeers)
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
