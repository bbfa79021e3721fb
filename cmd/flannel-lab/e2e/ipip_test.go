//go:build kernels

package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"flannel/cmd/flannel-lab/lab"
)

// The tests of this file need the module ipip, which not every kernel has.

var ipipDrifts = []drift{
	{"route given an MTU", "ip route replace $S/24 via $VIA dev flannel.ipip onlink mtu 900"},
	{"route through the underlay", "ip route replace $S/24 via $VIA dev eth0"},
	{"route added", "ip route add 10.5.0.0/24 via 192.168.100.77 dev flannel.ipip onlink"},
	{"device deleted", "ip link del flannel.ipip"},
	{"device down and up", "ip link set flannel.ipip down; ip link set flannel.ipip up"},
	{"device replaced", "ip link del flannel.ipip; ip link add flannel.ipip type ipip remote 192.168.100.77 local 192.168.100.11"},
	{"local address changed", "ip link set flannel.ipip type ipip local 192.168.100.77"},
	{"TTL and path MTU discovery", "ip link set flannel.ipip type ipip local 192.168.100.11 ttl 3 pmtudisc"},
	{"encapsulation in UDP", "ip link set flannel.ipip type ipip local 192.168.100.11 encap fou encap-sport auto encap-dport 5555"},
	{"device address deleted", "ip addr flush dev flannel.ipip || true"},
	{"device address added", "ip addr add 10.5.0.1/32 dev flannel.ipip"},
	{"device MTU changed", "ip link set flannel.ipip mtu 1400"},
}

// Drift of what ipip makes, and of what it shares with other backends.
func TestIPIPDrift(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2}, `{"Type":"ipip"}`+apart)
	d := newDrifter(t, l)
	d.paused = true
	for _, drift := range append(ipipDrifts, routeDrifts...) {
		d.apply(t, drift)
	}
	d.print(t)
}

func TestIPIP(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2}, `{"Type":"ipip"}`+apart, atOnce)
	n := l.Nodes[0]
	if v := leases(t, l)[ours(t, l, n)[0]]; v.BackendType != "ipip" || v.BackendData != nil {
		t.Errorf("the lease is %+v", v)
	}
	a, b := pair(t, l)
	talk(t, a, b, a.IP4, b.IP4, lab.Outside4)
	inFullSize(t, a, b, "1480")
	const properties = "ip -d link show flannel.ipip | grep -oE 'remote any|local [0-9.]+|ttl [a-z0-9]+|tos [a-z0-9]+|(no)?pmtudisc' | xargs"
	if out := shell(t, n.Namespaces, properties); out != "remote any local 192.168.100.11 ttl inherit tos inherit nopmtudisc" {
		t.Errorf("the device is %s", out)
	}
	f := flood(t, a, b)
	restartAll(t, l, func(n *lab.Node) error { _, err := n.Stop(t.Context()); return err })
	restartAll(t, l, (*lab.Node).Kill)
	f.checkNoLoss(t, "stopped, killed and started")

	in(t, n.Namespaces, "echo 1 >/proc/sys/net/ipv4/conf/eth0/promote_secondaries; ip addr add 192.168.100.61/24 dev eth0; ip addr del 192.168.100.11/24 dev eth0; ip route replace default via 192.168.100.1")
	within(t, "the tunnel has the new address", func() error { return says(t, n, "local 192.168.100.61 ", "ip", "-d", "link", "show", "flannel.ipip") })
	reaches(t, "from the new address", a, b.IP4)
	reaches(t, "to the new address", b, a.IP4)

	stopped(t, n)
	in(t, n.Namespaces, l.Flanneld()+" cleanup 2>&1")
	must(t, silent(t, n, "flannel", "ip", "link"))                                // cleanup has ended
	must(t, silent(t, n, "10.5.", "sh", "-c", "ip route | grep -v cni0 || true")) // likewise
}

// Nodes change between backends while they run, and nothing of the former one
// stays.
func TestIPIPAmongBackends(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 4, Subnets: 2}, `{"Type":"vxlan"}`, atOnce)
	n := l.Nodes[0]
	a, b := pair(t, l)
	near := pod(t, l.Nodes[2], "c")
	tunnelled := func(n *lab.Node) string {
		base, _, _ := strings.Cut(ours(t, l, n)[0], "-")
		return fmt.Sprintf("%s/24 via %s dev flannel.ipip onlink", base, n.IP4)
	}
	direct := func(n *lab.Node) string {
		return strings.Replace(tunnelled(n), "dev flannel.ipip onlink", "dev eth0", 1)
	}
	for _, c := range []struct{ backend, want, device string }{
		{`{"Type":"ipip"}`, words(tunnelled(l.Nodes[1]) + "\n" + tunnelled(l.Nodes[2]) + "\n" + tunnelled(l.Nodes[3])), "flannel.ipip"},
		{`{"Type":"ipip","DirectRouting":true}`, words(tunnelled(l.Nodes[1]) + "\n" + direct(l.Nodes[2]) + "\n" + tunnelled(l.Nodes[3])), "flannel.ipip"},
		{`{"Type":"vxlan"}`, wantRoutes4(t, l, n), "flannel.1"},
		{`{"Type":"ipip"}`, words(tunnelled(l.Nodes[1]) + "\n" + tunnelled(l.Nodes[2]) + "\n" + tunnelled(l.Nodes[3])), "flannel.ipip"},
		{`{"Type":"host-gw"}`, words(direct(l.Nodes[2])), ""},
	} {
		must(t, l.SetConfig(t.Context(), l.Config(c.backend)))
		eventually(t, c.backend, c.want, func(ctx context.Context) (string, error) { return routes(ctx, n) })
		eventually(t, "the devices of "+c.backend, c.device, func(ctx context.Context) (string, error) {
			return try(ctx, n.Namespaces, "ls /sys/class/net | grep ^flannel || true")
		})
		if c.device != "" {
			reaches(t, c.backend+", behind the router", a, b.IP4)
		}
		reaches(t, c.backend+", on the same link", a, near.IP4)
	}
}

// wantRoutes4 returns the routes of a node through flannel.1.
func wantRoutes4(t *testing.T, l *lab.Lab, n *lab.Node) string {
	t.Helper()
	var lines []string
	for _, peer := range l.Nodes {
		if peer != n {
			base, _, _ := strings.Cut(ours(t, l, peer)[0], "-")
			lines = append(lines, fmt.Sprintf("%s/24 via %s dev flannel.1 onlink", base, base))
		}
	}
	return words(strings.Join(lines, "\n"))
}

// Nodes change from flannel to our flanneld while their pods communicate.
func TestIPIPAdoption(t *testing.T) {
	t.Parallel()
	l := prepare(t, lab.Options{Nodes: 2}, `{"Type":"ipip"}`)
	for i, n := range l.Nodes {
		peer := l.Nodes[1-i]
		putLease(t, l, fmt.Sprintf("10.5.2%d.0-24", i+1), &value{PublicIP: n.IP4.String(), BackendType: "ipip"})
		must(t, n.WriteFile("/run/flannel/subnet.env", fmt.Sprintf("FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.2%d.1/24\nFLANNEL_MTU=1480\nFLANNEL_IPMASQ=true\n", i+1)))
		// With flannel's masquerading, connection tracking is on already. When it is switched on, it may drop one of two
		// first packets of the tunnel that are under way at once: it resolves no such clash for IP in IP.
		shell(t, n.Namespaces, `sysctl -qw net.ipv4.ip_forward=1
			iptables -t nat -N FLANNEL-POSTRTG; iptables -t nat -A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
			ip link add flannel.ipip type ipip local %s ttl inherit tos inherit nopmtudisc
			ip link set flannel.ipip mtu 1480 up; ip addr add 10.5.2%d.0/32 dev flannel.ipip
			ip route add 10.5.2%d.0/24 via %s dev flannel.ipip onlink; ip route add 10.5.88.0/24 via 192.168.100.88 dev flannel.ipip onlink`,
			n.IP4, i+1, 2-i, peer.IP4)
	}
	const index = "cat /sys/class/net/flannel.ipip/ifindex"
	before := shell(t, l.Nodes[0].Namespaces, index)
	a, b := pair(t, l)
	reaches(t, "with flannel", a, b.IP4)
	stop := expectNoLoss(t, a, b.IP4)
	must(t, l.StartAll(t.Context()))
	for i, n := range l.Nodes {
		eventually(t, n.Name+" keeps flannel's route and deletes the stale one", fmt.Sprintf("10.5.2%d.0/24 via %s onlink", 2-i, l.Nodes[1-i].IP4),
			func(ctx context.Context) (string, error) {
				out, err := try(ctx, n.Namespaces, "ip route show dev flannel.ipip")
				return words(out), err
			})
	}
	stop()
	if after := shell(t, l.Nodes[0].Namespaces, index); after != before {
		t.Errorf("the device was replaced: its index is %s, was %s", after, before)
	}
}

func TestIPIPDualStack(t *testing.T) {
	t.Parallel()
	l := testIPv4Alone(t, `{"Type":"ipip"}`, "ipip")
	within(t, "a dual-stack peer has a route", func() error {
		return says(t, l.Nodes[0], "via 192.168.100.77 dev flannel.ipip", "ip", "route", "show", "10.5.7.0/24")
	})
}

// A kernel that lacks the module is named, and flanneld goes on when it is
// there.
func TestMissingModule(t *testing.T) {
	host := func(script string) {
		t.Helper()
		if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v %s", script, err, out)
		}
	}
	host("modprobe -r ipip; mkdir -p /run/modprobe.d; echo install ipip /bin/false >/run/modprobe.d/e2e.conf")
	t.Cleanup(func() { host("rm -f /run/modprobe.d/e2e.conf") })
	l := prepare(t, lab.Options{Nodes: 1}, `{"Type":"ipip"}`)
	n := l.Nodes[0]
	must(t, n.Start())
	within(t, "/readyz names the module", func() error { return unready(t, n, "modprobe", "ipip") })
	once(t, n, 0, "cause=no-kernel-module") // its reason stays the same
	host("rm /run/modprobe.d/e2e.conf; modprobe ipip")
	must(t, n.Ready(t.Context()))
}

// Nodes are prepared for flannel: their routes get its form.
func TestHandbackIPIP(t *testing.T) {
	t.Parallel()
	l := testHandback(t, "ipip", lab.V4, "route 10.5.")
	n := l.Nodes[0]
	base, _, _ := strings.Cut(ours(t, l, l.Nodes[1])[0], "-")
	want := fmt.Sprintf("%s/24 via %s dev flannel.ipip onlink", base, l.Nodes[1].IP4)
	eventually(t, "our flanneld uses flannel's route", want, func(ctx context.Context) (string, error) {
		out, err := try(ctx, n.Namespaces, "ip route show root 10.5.0.0/16 | grep -v cni0")
		return words(out), err
	})
}

func TestGuardIPIP(t *testing.T) { testGuard(t, "ipip", false) }
