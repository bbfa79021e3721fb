package doctor

import (
	"net/netip"
	"testing"
)

func TestReservedAddresses(t *testing.T) {
	reserve := func(first string, n int) func(*Snapshot) {
		return func(s *Snapshot) {
			var all []netip.Addr
			for a := addr(first); len(all) < n; a = a.Next() {
				all = append(all, a)
			}
			s.Linux.Reserved = Known(all)
		}
	}
	ports := func(n int) func(*Snapshot) {
		return func(s *Snapshot) {
			for i := range n {
				s.Linux.Devices.Value = append(s.Linux.Devices.Value, Device{Name: "veth", Index: 100 + i, Type: "veth", MTU: 1450, Master: 9})
			}
		}
	}
	delegate := func(conf string) func(*Snapshot) {
		return func(s *Snapshot) { s.files(CNIFile{"10-flannel.conf", conf}) }
	}
	both := func(changes ...func(*Snapshot)) func(*Snapshot) {
		return func(s *Snapshot) {
			for _, change := range changes {
				change(s)
			}
		}
	}
	checkAll(t, healthy, []testCase{
		{"FL213", OK, "1", func(*Snapshot) {}},
		{"FL213", OK, "100", reserve("10.5.3.2", 100)},
		{"FL213", Warn, "200 253 10.5.3.0/24 1", reserve("10.5.3.2", 200)},
		{"FL213", OK, "200", both(reserve("10.5.3.2", 200), ports(150))},
		{"FL213", Fail, "253 10.5.3.0/24 1", reserve("10.5.3.2", 253)},
		{"FL213", Fail, "253 10.5.3.0/24", both(reserve("10.5.3.2", 253), ports(252))},
		{"FL213", OK, "0", reserve("10.9.3.2", 253)}, // of another network
		// Without a bridge, nothing tells the number of pods.
		{"FL213", Skipped, "ptp", both(reserve("10.5.3.2", 253), delegate(`{"type":"flannel","delegate":{"type":"ptp"}}`))},
		{"FL213", Skipped, "flannel", both(reserve("10.5.3.2", 253), delegate(`{"type":"calico"}`))},
		{"FL213", Fail, "253", both(reserve("10.5.3.2", 253), delegate(`{"type":"flannel","delegate":{"type":"bridge"}}`))},
		{"FL213", Fail, "253", both(reserve("10.5.3.2", 253), delegate(`{"type":"flannel"}`))},
		{"FL213", Skipped, "", func(s *Snapshot) { s.Linux.Reserved = Absent[[]netip.Addr]("no directory") }},
		{"FL213", Undecided, "denied", func(s *Snapshot) { s.Linux.Reserved = Unknown[[]netip.Addr]("denied") }},
	})
}
