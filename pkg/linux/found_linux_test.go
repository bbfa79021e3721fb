package linux

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
)

// found asks a new run for the paths that the kernel has.
func (m *machine) found() string {
	m.t.Helper()
	m.restart()
	links, err := m.Ensure(m.t.Context(), m.devices)
	if err != nil {
		m.t.Fatal(err)
	}
	paths, err := m.Found(m.t.Context(), links, m.state)
	if err != nil {
		m.t.Fatal(err)
	}
	return pathsText(paths)
}

// A new run finds the paths that the one before, or a flannel, has left, and nothing else.
func TestFound(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		if got := m.found(); got != "" {
			t.Errorf("on a new node it finds\n%s", got)
		}
		m.state.Paths = append(m.state.Paths,
			&dataplane.Path{Dst: netip.MustParsePrefix("10.5.8.0/24"), Via: netip.MustParseAddr("192.168.100.8"), Device: "eth0", Encap: dataplane.Direct{}},
			&dataplane.Path{Dst: netip.MustParsePrefix("2001:cafe:42:8::/64"), Via: netip.MustParseAddr("fd00:100::8"), Device: "eth0", Encap: dataplane.Direct{}})
		m.state.Blackholes = []netip.Prefix{netip.MustParsePrefix("10.5.1.0/24")}
		m.mustPass()
		// flannel's forms, and what is no path: without a neighbour, without an FDB entry, outside the network, another
		// metric, blackhole, somebody else's, through a device of another configuration.
		run(t, `ip route add 10.5.9.0/24 via 192.168.100.9 dev eth0
			ip route add 10.5.10.0/24 via 10.5.10.0 dev flannel.1 onlink
			ip neigh add 10.5.10.0 lladdr 02:00:00:00:01:10 dev flannel.1 nud permanent
			bridge fdb add 02:00:00:00:01:10 dev flannel.1 dst 192.168.100.10 self permanent
			ip route add 10.5.11.0/24 via 10.5.11.0 dev flannel.1 onlink
			ip route add 10.5.12.0/24 via 10.5.12.0 dev flannel.1 onlink
			ip neigh add 10.5.12.0 lladdr 02:00:00:00:01:12 dev flannel.1 nud permanent
			ip route add 10.99.0.0/24 via 10.99.0.0 dev flannel.1 onlink proto 70
			ip route add 10.5.13.0/24 via 192.168.100.13 metric 5 proto 70
			ip route add blackhole 10.5.14.0/24
			ip route add 10.5.15.0/24 via 192.168.100.15 proto static
			ip link add flannel.9 type vxlan id 9 dstport 9999 dev eth0; ip link set flannel.9 up
			ip route add 10.5.16.0/24 via 10.5.16.0 dev flannel.9 onlink`)
		before := kernel(t)
		want := `10.5.2.0/24 at 192.168.100.2 through flannel.1 to 02:00:00:00:01:02
10.5.3.0/24 at 192.168.100.3 through flannel.1 to 02:00:00:00:01:03
10.5.4.0/24 at 192.168.100.4 through flannel.1 to 02:00:00:00:01:04
10.5.8.0/24 at 192.168.100.8 through eth0 to 00:00:00:00:00:00
10.5.9.0/24 at 192.168.100.9 through eth0 to 00:00:00:00:00:00
10.5.10.0/24 at 192.168.100.10 through flannel.1 to 02:00:00:00:01:10
2001:cafe:42:2::/64 at fd00:100::2 through flannel-v6.1 to 02:00:00:00:01:02
2001:cafe:42:3::/64 at fd00:100::3 through flannel-v6.1 to 02:00:00:00:01:03
2001:cafe:42:4::/64 at fd00:100::4 through flannel-v6.1 to 02:00:00:00:01:04
2001:cafe:42:8::/64 at fd00:100::8 through eth0 to 00:00:00:00:00:00`
		if got := m.found(); got != want {
			t.Errorf("it finds\n%s\nwant\n%s", got, want)
		}
		if after := kernel(t); after != before {
			t.Errorf("finding changed\n%s\nto\n%s", before, after)
		}
	})
}

// Whatever call fails, a list is whole or it is an error, and the next pass writes nothing that exists.
func TestFoundWithFailedCalls(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		m.mustPass()
		want, faults := pathsText(byDst(m.state.Paths)), nstest.NewFaults(t)
		for n, calls := 0, 0; n <= calls && !t.Failed(); n++ {
			m.restart()
			links, err := m.Ensure(t.Context(), m.devices)
			if err != nil {
				t.Fatal(err)
			}
			faults.Fail(n, unix.ENOBUFS)
			paths, err := m.Found(t.Context(), links, m.state)
			calls = max(calls, faults.Fail(0, 0))
			if got := pathsText(paths); err == nil && got != want || err != nil && (paths != nil || !reconcile.IsUnknown(err)) || n == 0 && calls == 0 {
				t.Errorf("call %d of %d failed: %v, and it finds\n%s\nwant\n%s", n, calls, err, got, want)
			}
			if m.mustPass(); m.done != (reconcile.Result{}) {
				t.Errorf("call %d of %d failed: %v, and the first pass did %+v", n, calls, err, m.done)
			}
		}
	})
}

func pathsText(paths []*dataplane.Path) string {
	var lines []string
	for _, p := range paths {
		end, _ := p.End()
		lines = append(lines, fmt.Sprintf("%s at %s through %s to %s", p.Dst, p.Via, p.Device, end.MAC))
	}
	return strings.Join(lines, "\n")
}

func byDst(paths []*dataplane.Path) []*dataplane.Path {
	return slices.SortedFunc(slices.Values(paths), dataplane.ComparePaths)
}

// What is found is what the kernel holds already: to want it writes nothing, and it stays while all else goes.
func TestFoundStays(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		m.mustPass()
		run(t, "ip route add 10.5.9.0/24 via 10.5.9.0 dev flannel.1 onlink") // without a neighbour
		m.restart()
		links, err := m.Ensure(t.Context(), m.devices)
		if err != nil {
			t.Fatal(err)
		}
		if m.state.Paths, err = m.Found(t.Context(), links, m.state); err != nil {
			t.Fatal(err)
		}
		m.mustPass()
		if got := kernel(t); got != synced || m.done.Set != 0 || m.done.Deleted != 1 {
			t.Errorf("%+v done; the kernel has\n%s\nwant\n%s", m.done, got, synced)
		}
		m.state.Paths = nil
		m.mustPass()
		if got, want := strings.Count(kernel(t), "02:00:00:00:01:"), 0; got != want {
			t.Errorf("nothing is wanted, and there is\n%s", kernel(t))
		}
	})
}
