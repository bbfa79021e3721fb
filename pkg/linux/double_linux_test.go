package linux

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"flannel/internal/test/eventually"
	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
)

// becomes passes until the peer's routes are right: what else the kernel tells may come before what is waited for.
func (m *machine) becomes(when string, right func(routes string) bool) {
	m.t.Helper()
	eventually.Nil(m.t, when, func() error {
		m.mustPass()
		if got := run(m.t, "ip route show 10.5.2.0/24"); !right(got) {
			return fmt.Errorf("there is\n%s", got)
		}
		return nil
	})
}

// told runs a command as another program, and waits until the kernel's notification of its change has arrived.
func (m *machine) told(command string) {
	m.t.Helper()
	select {
	case <-m.Changes(): // of before
	default:
	}
	run(m.t, "%s", command)
	select {
	case <-m.Changes():
	case <-time.After(2 * time.Minute):
		m.t.Fatalf("nobody told of %s", command)
	}
}

// Another hand puts a route before ours while the peer moves: what was ours is behind, with another gateway, and must
// not stay there.
func TestNoRouteStaysBehind(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		m.state.Paths = nil
		at := func(i int, via string) *dataplane.Path {
			return &dataplane.Path{Dst: netip.MustParsePrefix("10.5." + string(rune('0'+i)) + ".0/24"), Via: netip.MustParseAddr(via), Device: "eth0", Encap: dataplane.Direct{}}
		}
		for i, via := range []string{"192.168.100.2", "192.168.100.3", "192.168.100.2", "192.168.100.3"} {
			m.state.Paths = append(m.state.Paths, at(i+2, via))
		}
		m.mustPass()
		for _, prepend := range []string{"ip route prepend 10.5.2.0/24 via 192.168.100.77 dev eth0", "ip route prepend 10.5.2.0/24 via 192.168.100.77 dev eth0 proto 42"} {
			for _, via := range []string{"192.168.100.3", "192.168.100.2"} {
				m.told(prepend)
				paths := append([]*dataplane.Path{at(2, via)}, m.state.Paths[1:]...)
				m.state.Paths = paths
				m.becomes("after "+prepend+", with the peer at "+via, func(got string) bool {
					return strings.Count(got, "\n") == 1 && strings.Contains(got, "via "+via+" ")
				})
			}
		}
		m.told("ip route prepend 10.5.2.0/24 via 192.168.100.77 dev eth0")
		m.state.Paths = m.state.Paths[1:]
		m.becomes("the peer is gone", func(got string) bool { return !strings.Contains(got, "proto 70") })
	})
}
