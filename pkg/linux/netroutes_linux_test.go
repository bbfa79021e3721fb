package linux

import (
	"net/netip"
	"strings"
	"testing"

	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
)

// leads returns the devices to which the kernel routes packets: those that were decrypted for this node's pods, those of a pod
// to a peer, and those of a pod to a subnet of no peer; of IPv4 and then of IPv6.
func leads(t *testing.T) string {
	t.Helper()
	out := run(t, `dev() { ip route get $1 from $2 iif $3 2>/dev/null | grep -o 'dev [^ ]*' | cut -d' ' -f2 | grep . || echo none; }
		dev 10.5.1.9 10.5.2.9 flannel-wg; dev 10.5.2.9 10.5.1.9 cni0; dev 10.5.9.9 10.5.1.9 cni0
		dev 2001:cafe:42:1::9 2001:cafe:42:2::9 flannel-wg-v6; dev 2001:cafe:42:2::9 2001:cafe:42:1::9 cni0; dev 2001:cafe:42:9::9 2001:cafe:42:1::9 cni0`)
	return strings.Join(strings.Fields(out), " ")
}

// What pods send into the pod network leaves through WireGuard or not at all, whether there is a peer or not, and what was
// decrypted for a node without pods does not leave again.
func TestWireGuardTakesWhatNoPeerHas(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newWGMachine(t)
		run(t, `ip link set lo up; ip link add cni0 type bridge; ip link set cni0 up; sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
			ip route add default via 192.168.100.254; ip -6 route add default via fd00:100::254`)
		routed := func(when, want string) {
			t.Helper()
			if got := leads(t); got != want {
				t.Errorf("%s, packets are routed to\n%s, want\n%s", when, got, want)
			}
		}
		report, when := m.opts.Report, ""
		m.opts.Report = func(table string, entries int, r reconcile.Result) {
			if report(table, entries, r); table == (*wgStore)(nil).Name() && when == "" {
				when = leads(t)
			}
		}
		m.mustPass()
		if !strings.HasPrefix(when, "flannel-wg ") || !strings.Contains(when, " flannel-wg-v6 ") {
			t.Errorf("when the peers are set, packets are routed to\n%s", when)
		}
		routed("without pods", "flannel-wg flannel-wg flannel-wg flannel-wg-v6 flannel-wg-v6 flannel-wg-v6")
		run(t, "ip addr add 10.5.1.1/24 dev cni0; ip addr add 2001:cafe:42:1::1/64 dev cni0 nodad")
		const all = "cni0 flannel-wg flannel-wg cni0 flannel-wg-v6 flannel-wg-v6"
		routed("with a bridge", all)

		run(t, "ip route add 10.5.0.0/16 via 192.168.100.253 proto static")
		m.QueueResync()
		m.mustPass()
		routed("with an operator's route", strings.Replace(all, "flannel-wg flannel-wg", "flannel-wg eth0", 1))
		run(t, "ip route del 10.5.0.0/16 via 192.168.100.253")

		run(t, "ip route del 10.5.0.0/16 metric 65536; ip -6 route flush metric 65536")
		m.QueueResync()
		m.mustPass()
		routed("after drift", all)
		run(t, "ip addr del 10.5.1.1/24 dev cni0; ip route add 10.5.1.0/24 via 192.168.100.253 proto boot") // as flannel's host-gw leaves it
		m.QueueResync()
		m.mustPass()
		if out := strings.TrimSpace(run(t, "ip route show 10.5.1.0/24")); out != "10.5.1.0/24 dev flannel-wg proto 70 scope link metric 65536" {
			t.Errorf("after what flannel left was removed: %s", out)
		}
		run(t, "ip addr add 10.5.1.1/24 dev cni0")
		if _, err := Handback(t.Context(), m.opts, m.state, false); err != nil {
			t.Error(err)
		}
		routed("after handback", all)
		m.QueueResync()
		m.mustPass()
		m.wantWG(t, "after handback and another start", wgSynced)
	})
}

// A network with addresses of nodes is not routed as a whole: packets to other nodes, or to other hosts with such addresses,
// would not leave.
func TestWireGuardBesideHostsOfTheNetwork(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newWGMachine(t)
		all, own := m.state.Paths, m.state.Underlay
		for _, c := range []struct {
			name  string
			paths []*dataplane.Path
			under string
			gone  string // part of the routes
		}{
			{"a peer's address", append([]*dataplane.Path{wgPath(2, "10.5.2.0/24", "10.5.200.2", "flannel-wg", 51820)}, all[1:]...), "192.168.100.1/32", "10.5.0.0/16"},
			{"a peer's IPv6 address", append([]*dataplane.Path{all[0], wgPath(2, "2001:cafe:42:2::/64", "2001:cafe:42:ff::2", "flannel-wg-v6", 51821)}, all[2:]...), "fd00:100::1/128", "2001:cafe:42::/56"},
			{"this node's address", all, "10.5.200.1/32", "10.5.0.0/16"},
			{"this node's IPv6 address", all, "2001:cafe:42:ff::1/128", "2001:cafe:42::/56"},
			{"the link's network", all, "10.5.0.0/16", ""},
		} {
			m.state.Paths, m.state.Underlay = c.paths, []netip.Prefix{netip.MustParsePrefix(c.under)}
			m.mustPass()
			for _, network := range []string{"10.5.0.0/16", "2001:cafe:42::/56", "10.5.1.0/24", "2001:cafe:42:1::/64"} {
				if exists := run(t, "ip route show %[1]s; ip -6 route show %[1]s 2>/dev/null || true", network) != ""; exists == (network == c.gone) {
					t.Errorf("%s is in the network: there is a route to %s: %t", c.name, network, exists)
				}
			}
			m.state.Paths, m.state.Underlay = all, own
			m.mustPass()
			m.wantWG(t, "after "+c.name, wgSynced)
		}
		m.state.Blackholes = m.state.Subnets
		m.mustPass()
		if out := run(t, "ip route show 10.5.1.0/24; ip -6 route show 2001:cafe:42:1::/64"); strings.Count(out, "blackhole") != 2 || strings.Contains(out, "flannel-wg") {
			t.Errorf("with --ip-blackhole-route: %s", out)
		}
		m.state.Underlay = []netip.Prefix{netip.MustParsePrefix("10.5.200.1/32")}
		m.mustPass()
		if out := run(t, "ip route show 10.5.1.0/24"); !strings.Contains(out, "blackhole") {
			t.Errorf("with --ip-blackhole-route, and without a route to the network: %s", out)
		}
		if _, err := Cleanup(t.Context(), dataplane.Options{Log: m.opts.Log}, m.state, false); err != nil {
			t.Error(err)
		}
		m.wantWG(t, "after the cleanup", "")
	})
}
