package linux

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"flannel/internal/test/eventually"
	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
)

// What a pod sends into the pod network leaves encrypted or not at all, whether there is a peer or not, and what was decrypted
// does not leave again. This needs neither ESP nor charon.
func TestNothingLeavesUnencrypted(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		defer m.Close()
		run(t, `ip link set lo up; ip link add cni0 type bridge; ip link set cni0 up
			ip route add default via 192.168.100.254; ip neigh add 192.168.100.254 lladdr 02:00:00:00:00:fe dev eth0; sysctl -qw net.ipv4.ip_forward=1`)
		links, err := m.Ensure(t.Context(), []dataplane.Device{{Name: "eth0", Kind: dataplane.Existing{}}})
		if err != nil {
			t.Fatal(err)
		}
		own := netip.MustParsePrefix("10.5.1.0/24")
		encrypting := []dataplane.Device{{Name: "eth0", Kind: dataplane.IPsec{Local: netip.MustParseAddr("192.168.100.1"), Subnet: own}}}
		state := dataplane.State{Networks: []netip.Prefix{v4Network}, Subnets: []netip.Prefix{own}}
		// pass does what Apply does, apart from the connections.
		pass := func(devices []dataplane.Device) {
			t.Helper()
			m.desired = devices
			m.begin(links, state)
			m.addNetworkRoutes(t.Context(), state)
			err := m.want(state)
			tables := dataplane.Tables{m.nexthops, m.routes, kindIn[*ipsec](m.Driver).policies}
			if err := errors.Join(err, tables.Add(t.Context(), m.opts), tables.Prune(t.Context(), m.opts)); err != nil {
				t.Fatal(err)
			}
		}
		// dropped returns those of the addresses to which the kernel sends nothing from a pod's address.
		dropped := func() string {
			t.Helper()
			var to []string
			for _, ip := range []string{"10.5.1.9", "10.5.2.1", "10.5.3.1", "192.168.100.9"} {
				c, err := (&net.Dialer{LocalAddr: &net.UDPAddr{IP: net.IPv4(10, 5, 1, 1)}}).DialContext(t.Context(), "udp4", ip+":9")
				if err == nil {
					_, err = c.Write([]byte("x"))
					c.Close()
				}
				if errors.Is(err, syscall.EPERM) {
					to = append(to, ip)
				} else if err != nil && ip != "10.5.2.1" { // for the peer there is no ESP
					t.Errorf("to %s: %v", ip, err)
				}
			}
			return strings.Join(to, " ")
		}
		decrypted := func() string { return run(t, "ip route get 10.5.1.9 from 10.5.2.1 iif eth0 2>&1 || true") }
		policies := func() string {
			var all []string
			have, err := kindIn[*ipsec](m.Driver).xfrm.List(t.Context())
			for _, key := range slices.SortedFunc(maps.Keys(have), func(a, b policyKey) int { return strings.Compare(a.String(), b.String()) }) {
				all = append(all, key.String()+" "+have[key].String())
			}
			if err != nil {
				t.Error(err)
			}
			return strings.Join(all, "\n")
		}

		if leaves := decrypted(); !strings.Contains(leaves, "via 192.168.100.254 dev eth0") {
			t.Errorf("without the backend, a packet to a node without pods is routed by %s", leaves)
		}
		run(t, "ip addr add 10.5.1.1/24 dev cni0")
		if to := dropped(); to != "" {
			t.Errorf("without the backend, packets are dropped to %s", to)
		}
		run(t, "ip addr del 10.5.1.1/24 dev cni0")
		pass(encrypting)
		if leaves := decrypted(); strings.Contains(leaves, "dev") {
			t.Errorf("a decrypted packet to a node without pods is routed by %s", leaves)
		}
		run(t, "ip addr add 10.5.1.1/24 dev cni0")
		if arrives := decrypted(); !strings.Contains(arrives, "dev cni0") {
			t.Errorf("a decrypted packet to a pod is routed by %s", arrives)
		}
		if to := dropped(); to != "10.5.2.1 10.5.3.1" {
			t.Errorf("without peers, packets are dropped to %s", to)
		}
		alone := policies()
		state.Paths = []*dataplane.Path{{Dst: netip.MustParsePrefix("10.5.2.0/24"), Via: netip.MustParseAddr("192.168.100.2"), Device: "eth0", Encap: dataplane.ESP{}}}
		pass(encrypting)
		if to := dropped(); to != "10.5.3.1" { // the peer's policy comes before the one that drops
			t.Errorf("with a peer, packets are dropped to %s", to)
		}
		before := policies()

		if _, err := Handback(t.Context(), m.opts, state, false); err != nil {
			t.Error(err)
		}
		if out := policies(); strings.Count(out, "esp from") != 3 || strings.Count(out, "\n") != 2 {
			t.Errorf("after handback: %s", out)
		}
		m.QueueResync()
		// The kernel's notifications of what Handback deleted may come after a pass has added it again. Until those of the
		// additions come, the driver takes it for missing.
		becomes := func(what string, devices []dataplane.Device, want string) {
			t.Helper()
			eventually.True(t, what, func() bool {
				pass(devices)
				return policies() == want
			})
		}
		becomes("the policies are restored", encrypting, before)
		state.Paths = nil
		becomes("those of the peer are gone", encrypting, alone)
		existing := []dataplane.Device{{Name: "eth0", Kind: dataplane.Existing{}}}
		becomes("another backend has no policies", existing, "")
		eventually.True(t, "another backend has no blackholes", func() bool {
			m.QueueResync() // a route that the driver took for missing when it was no longer wanted stays until it is listed
			pass(existing)
			return run(t, "ip xfrm policy; ip route show type blackhole") == ""
		})
	})
}
