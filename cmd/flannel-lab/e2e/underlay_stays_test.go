package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"flannel/cmd/flannel-lab/lab"
)

// chosen starts flanneld on the nodes without a flag for the interface, and returns a pod
// of each of the first two.
func chosen(t *testing.T, l *lab.Lab, backend string) (a, b *lab.Pod) {
	t.Helper()
	must(t, l.SetConfig(t.Context(), l.Config(fmt.Sprintf(`{"Type":%q}`, backend))))
	for _, n := range l.Nodes {
		// A metric, as all programs that configure networks set one.
		in(t, n.Namespaces, "ip route add default via 192.168.100.1 metric 100; ip route delete default metric 0")
		launch(t, l, n)
	}
	for _, n := range l.Nodes {
		must(t, n.Ready(t.Context()))
	}
	a, b = pod(t, l.Nodes[0], "a"), pod(t, l.Nodes[1], "b")
	reaches(t, "at first", a, b.IP4)
	return a, b
}

func launch(t *testing.T, l *lab.Lab, n *lab.Node) {
	t.Helper()
	must(t, n.StartWith("-etcd-endpoints="+l.Etcd.Endpoint(), "-ip-masq", fmt.Sprintf("-healthz-port=%d", lab.HealthPort)))
}

// atAddress returns an error unless the store has a lease with this public address and
// none with the other one.
func atAddress(t *testing.T, l *lab.Lab, address, other string) error {
	t.Helper()
	leases, err := l.Leases(t.Context())
	if all := fmt.Sprint(leases); err == nil &&
		(!strings.Contains(all, `"PublicIP":"`+address+`"`) || strings.Contains(all, `"PublicIP":"`+other+`"`)) {
		err = errors.New(all)
	}
	return err
}

// TestFloatingAddress moves a floating address to a node whose own address is away for a
// moment, while flanneld runs and at its start. Another node has the same address, as
// keepalived gives it to two nodes that do not hear each other.
func TestFloatingAddress(t *testing.T) {
	t.Parallel()
	const own, floating = "192.168.100.11", "192.168.100.50"
	const remove, restore = "ip address delete " + own + "/24 dev eth0", "ip address add " + own + "/24 dev eth0"
	for _, backend := range []string{"vxlan", "host-gw"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			l := bare(t, lab.Options{Nodes: 2})
			a, b := chosen(t, l, backend)
			n := l.Nodes[0]
			both := func(what string) {
				t.Helper()
				reaches(t, what, b, a.IP4)
				reaches(t, what, a, b.IP4)
				becomesReady(t, n)
				within(t, "its own address is published", func() error { return atAddress(t, l, own, floating) })
				if found := n.Records(0).With("cause=underlay-changed").Naming("to", floating); len(found) > 0 { // the address is never enough
					t.Errorf("%s: the floating address was used: %s", what, found)
				}
			}
			for _, n := range l.Nodes {
				in(t, n.Namespaces, "ip address add "+floating+"/32 dev eth0")
			}
			both("with a floating address")
			in(t, n.Namespaces, remove)
			within(t, "/readyz says what is missing", func() error { return unready(t, n, floating, "/32") })
			in(t, n.Namespaces, restore)
			both("with its own address again")

			stopped(t, n)
			in(t, n.Namespaces, remove)
			launch(t, l, n)
			within(t, "/readyz says what is missing at a start", func() error { return unready(t, n, floating, "/32") })
			in(t, n.Namespaces, restore)
			both("after a start without its own address")

			stopped(t, n)
			launch(t, l, n) // the floating address is the older one by now
			both("after a start with both")
		})
	}
}

// TestSecondDefaultRoute gives a node a second default route with a better metric, as a VPN
// does, and takes it away again.
func TestSecondDefaultRoute(t *testing.T) {
	t.Parallel()
	const own, vpn = "192.168.100.11", "10.8.0.6"
	for _, backend := range []string{"vxlan", "host-gw"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			l := bare(t, lab.Options{Nodes: 2})
			a, b := chosen(t, l, backend)
			n := l.Nodes[0]
			env := in(t, n.Namespaces, "cat /run/flannel/subnet.env")
			stop := expectNoLoss(t, a, b.IP4)
			for range 2 { // a VPN comes and goes
				in(t, n.Namespaces, `ip link add tun0 mtu 1400 type veth peer far; ip link set far up; ip address add `+vpn+`/24 dev tun0; ip link set tun0 up
					ip route add default via 10.8.0.1 dev tun0 metric 50`)
				within(t, "flanneld status names the other interface", func() error { return says(t, n, "tun0", l.Flanneld(), "status") })
				in(t, n.Namespaces, "ip link delete tun0")
				within(t, "and no longer", func() error { return silent(t, n, "tun0", l.Flanneld(), "status") })
			}
			once(t, n, 0, "cause=underlay-kept", "interface=eth0", "at_start=tun0") // it remembers for which interface it was logged
			stop()
			must(t, atAddress(t, l, own, vpn)) // as before
			must(t, same(env, in(t, n.Namespaces, "cat /run/flannel/subnet.env")))

			mark := len(n.Log())
			// If the interface in use has had no default route for half a minute, the other one is used until it has. The loop's
			// retries find the end of this time.
			in(t, n.Namespaces, `ip link add tun0 mtu 1400 type veth peer far; ip link set far up; ip address add `+vpn+`/24 dev tun0; ip link set tun0 up
				ip route add default via 10.8.0.1 dev tun0 metric 50; ip route delete default metric 100`)
			loggedNaming(t, n, mark, "not-in-step", "problem", "eth0", "tun0", "30s")
			within(t, "the VPN is used", func() error { return atAddress(t, l, vpn, own) })
			in(t, n.Namespaces, "ip route add default via 192.168.100.1 metric 100")
			within(t, "and left", func() error { return atAddress(t, l, own, vpn) })
			reaches(t, "back", a, b.IP4)
			reaches(t, "back", b, a.IP4)
		})
	}
}
