package dataplane

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"flannel/pkg/nstest"
)

// Another hand puts a route before ours while the peer moves: what was ours is behind, with another gateway, and must
// not stay there.
func TestNoRouteStaysBehind(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		m.state.Paths = nil
		at := func(i int, via string) *Path {
			return &Path{Dst: netip.MustParsePrefix("10.5." + string(rune('0'+i)) + ".0/24"), Via: netip.MustParseAddr(via), Device: "eth0"}
		}
		for i, via := range []string{"192.168.100.2", "192.168.100.3", "192.168.100.2", "192.168.100.3"} {
			m.state.Paths = append(m.state.Paths, at(i+2, via))
		}
		m.mustPass()
		for _, prepend := range []string{"ip route prepend 10.5.2.0/24 via 192.168.100.77 dev eth0", "ip route prepend 10.5.2.0/24 via 192.168.100.77 dev eth0 proto 42"} {
			for _, via := range []string{"192.168.100.3", "192.168.100.2"} {
				run(t, "%s", prepend)
				time.Sleep(50 * time.Millisecond) // its notification
				paths := append([]*Path{at(2, via)}, m.state.Paths[1:]...)
				m.state.Paths = paths
				m.mustPass()
				if got := strings.TrimSpace(run(t, "ip route show 10.5.2.0/24")); strings.Count(got, "\n") != 0 || !strings.Contains(got, "via "+via+" ") {
					t.Errorf("after %s, with the peer at %s, there is\n%s", prepend, via, got)
				}
			}
		}
		run(t, "ip route prepend 10.5.2.0/24 via 192.168.100.77 dev eth0")
		time.Sleep(50 * time.Millisecond)
		m.state.Paths = m.state.Paths[1:]
		m.mustPass()
		if got := run(t, "ip route show 10.5.2.0/24"); strings.Contains(got, "proto 70") {
			t.Errorf("the peer is gone, and there is\n%s", got)
		}
	})
}
