package e2e

import (
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
)

// inFullSize checks that two pods on two nodes have the MTU in subnet.env, and
// that packets of this size pass between them in both directions and all
// families.
func inFullSize(t *testing.T, a, b *lab.Pod, mtu string) {
	t.Helper()
	for _, way := range [][2]*lab.Pod{{a, b}, {b, a}} {
		from, to := way[0], way[1]
		if env, err := from.Node.SubnetEnv(); err != nil || env["FLANNEL_MTU"] != mtu {
			t.Errorf("subnet.env of %s is %v (%v), want FLANNEL_MTU=%s", from.Node.Name, env, err, mtu)
		}
		if out := shell(t, from.Namespaces, "ip -o link show eth0"); !strings.Contains(out, " mtu "+mtu+" ") {
			t.Errorf("the interface of %s should have the MTU of subnet.env, %s: %s", from.Name, mtu, out)
		}
		must(t, reach(t.Context(), from, to))
		for _, at := range []netip.Addr{to.IP4, to.IP6} {
			if at.IsValid() {
				fullSize(t, from, to, at, mtu)
			}
		}
	}
}

// fullSize sends packets of exactly the MTU that must not be fragmented, and a
// TCP stream.
func fullSize(t *testing.T, from, to *lab.Pod, at netip.Addr, mtu string) {
	t.Helper()
	size, err := strconv.Atoi(mtu)
	must(t, err)
	size -= 20 + 8 // headers of IPv4 and ICMP
	if at.Is6() {
		size -= 20
	}
	shell(t, from.Namespaces, "ping -q -c 3 -i 0.01 -W 60 -M do -s %d %s", size, at)
	if out, err := try(t.Context(), from.Namespaces, "ping -q -c 1 -W 0.1 -M do -s %d %s", size+1, at); err == nil {
		t.Errorf("a packet larger than the MTU passed: %s", out)
	}
	moved, err := machine.Transfer(t.Context(), from.Namespaces, to.Namespaces, at, 100*time.Millisecond)
	must(t, err)
	t.Logf("%s to %s: packets of %s bytes pass unfragmented; %.1f Gbit/s", from.Name, at, mtu, moved.Gbit())
}

// podMTU returns the MTU of pods over an underlay with an MTU of 1500 bytes.
func podMTU(backend string, family lab.Family) string {
	switch {
	case backend == "host-gw":
		return "1500"
	case backend == "wireguard":
		return "1420" // in all families, see package dataplane
	case family.Has6():
		return "1430" // the outer header is IPv6
	}
	return "1450"
}
