package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"flannel/cmd/flannel-lab/lab"
	"flannel/internal/test/nstest/ipshow"
)

// device returns the properties of the tunnel device.
func device(ctx context.Context, n *lab.Node) (string, error) {
	return try(ctx, n.Namespaces, `for d in $(ls /sys/class/net | grep ^flannel); do
			ip -d -o link show $d | grep -oE 'flannel[^:]*:|\bmtu [0-9]+|vxlan id [0-9]+ local [0-9.]+ dev [a-z0-9]+|dstport [0-9]+|nolearning|gbp' | sort -u | xargs echo
		done; grep MTU /run/flannel/subnet.env`)
}

// Every setting of vxlan is changed in etcd while the nodes run. Devices,
// subnet.env and traffic must follow.
func TestSettingsOfVXLAN(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2}, `{"Type":"vxlan"}`, atOnce)
	a, b := pair(t, l)
	for _, c := range []struct{ settings, want string }{
		{``, "dstport 8472 flannel.1: mtu 1450 nolearning vxlan id 1 local %s dev eth0\nFLANNEL_MTU=1450"},
		{`,"VNI":4096,"Port":4789`, "dstport 4789 flannel.4096: mtu 1450 nolearning vxlan id 4096 local %s dev eth0\nFLANNEL_MTU=1450"}, // with Windows
		{`,"Port":4789`, "dstport 4789 flannel.1: mtu 1450 nolearning vxlan id 1 local %s dev eth0\nFLANNEL_MTU=1450"},
		{`,"GBP":true`, "dstport 8472 flannel.1: gbp mtu 1450 nolearning vxlan id 1 local %s dev eth0\nFLANNEL_MTU=1450"},
		{`,"Learning":true`, "dstport 8472 flannel.1: mtu 1450 vxlan id 1 local %s dev eth0\nFLANNEL_MTU=1450"},
		{`,"MTU":1400`, "dstport 8472 flannel.1: mtu 1350 nolearning vxlan id 1 local %s dev eth0\nFLANNEL_MTU=1350"},
		{`,"VNI":7`, "dstport 8472 flannel.7: mtu 1450 nolearning vxlan id 7 local %s dev eth0\nFLANNEL_MTU=1450"},
	} {
		began := time.Now()
		must(t, l.SetConfig(t.Context(), l.Config(`{"Type":"vxlan"`+c.settings+`}`)))
		for _, n := range l.Nodes {
			eventually(t, c.settings, fmt.Sprintf(c.want, n.IP4),
				func(ctx context.Context) (string, error) { return device(ctx, n) })
		}
		must(t, reach(t.Context(), a, b))
		t.Logf("%-26s applied on both nodes, pods reach each other after %v", c.settings,
			time.Since(began).Round(time.Millisecond))
		// A daemon that starts again keeps the device.
		n := l.Nodes[0]
		const index = "cd /sys/class/net/flannel.*; cat ifindex address"
		before := shell(t, n.Namespaces, index)
		must(t, n.Kill())
		must(t, n.Start(atOnce))
		must(t, n.Ready(t.Context()))
		if after := shell(t, n.Namespaces, index); after != before {
			t.Errorf("%s: after a restart the device is %q, was %q", c.settings, after, before)
		}
	}
}

// podNetworks are the networks of the lab's pods.
var podNetworks = []netip.Prefix{netip.MustParsePrefix(lab.Network4), netip.MustParsePrefix(lab.Network6)}

// routes returns the routes to pods of other nodes, as text.
func routes(ctx context.Context, n *lab.Node) (string, error) {
	var all []string
	err := n.Do(func() (err error) {
		all, err = ipshow.Routes()
		return err
	})
	all = slices.DeleteFunc(ipshow.Within(all, podNetworks...), func(route string) bool { return !strings.Contains(route, " proto 70") })
	return words(strings.NewReplacer(" proto 70", "", " metric 1024", "").Replace(strings.Join(all, "\n"))), err
}

// wantRoutes returns the routes that a node should have: direct routes to the
// peers in direct, and to the others routes through the tunnel, or none without
// tunnel.
func wantRoutes(t *testing.T, l *lab.Lab, n *lab.Node, tunnel bool, direct ...*lab.Node) string {
	t.Helper()
	var lines []string
	for _, peer := range l.Nodes {
		if peer == n {
			continue
		}
		gateway, near := "", false
		for _, d := range direct {
			near = near || d == peer
		}
		four, six, _ := strings.Cut(ours(t, l, peer)[0], "&")
		for _, f := range []struct{ key, public, device string }{{four, peer.IP4.String(), "flannel.1"},
			{six, peer.IP6.String(), "flannel-v6.1"}} {
			base, _, _ := strings.Cut(f.key, "-")
			switch gateway = fmt.Sprintf("via %s dev eth0", f.public); {
			case !near && !tunnel:
				continue
			case !near:
				gateway = fmt.Sprintf("via %s dev %s onlink", base, f.device)
			}
			lines = append(lines, strings.Replace(f.key, "-", "/", 1)+" "+gateway)
		}
	}
	return words(strings.Join(lines, "\n"))
}

// Nodes 1 and 3 are on one network, 2 and 4 on another. A router joins the
// networks.
func TestTwoNetworksAndARouter(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 4, Subnets: 2, Family: lab.Dual}, `{"Type":"vxlan"}`, atOnce)
	n := l.Nodes[0]
	a, b := pair(t, l)
	pods := []*lab.Pod{a, b, pod(t, l.Nodes[2], "c"), pod(t, l.Nodes[3], "d")}
	follow := func(what, backend, want string) {
		t.Helper()
		must(t, l.SetConfig(t.Context(), l.Config(backend)))
		took := eventually(t, what, want, func(ctx context.Context) (string, error) { return routes(ctx, n) })
		t.Logf("%s: routes are correct after %v", what, took.Round(time.Millisecond))
	}
	reachAll := func() {
		t.Helper()
		for _, from := range pods {
			for _, to := range pods {
				if from != to {
					must(t, reach(t.Context(), from, to))
				}
			}
		}
	}
	reachAll()
	floods := []*flow{flood(t, pods[0], pods[2]), flood(t, pods[0], pods[1])}
	for range 2 {
		follow("DirectRouting on", `{"Type":"vxlan","DirectRouting":true}`, wantRoutes(t, l, n, true, l.Nodes[2]))
		reachAll()
		follow("DirectRouting off", `{"Type":"vxlan"}`, wantRoutes(t, l, n, true))
		reachAll()
	}
	for _, f := range floods {
		f.checkNoLoss(t, "DirectRouting on and off")
	}
	for _, direct := range []bool{true, false} {
		must(t, l.SetConfig(t.Context(), l.Config(fmt.Sprintf(`{"Type":"vxlan","DirectRouting":%t}`, direct))))
		for i, node := range l.Nodes {
			var near []*lab.Node
			if direct {
				near = append(near, l.Nodes[(i+2)%4])
			}
			// Until all nodes have switched, packets come on ways that are not theirs.
			eventually(t, "routes of "+node.Name, wantRoutes(t, l, node, true, near...), func(ctx context.Context) (string, error) { return routes(ctx, node) })
		}
		check := noneForged(t, l)
		reachAll()
		check()
	}
	mark := len(n.Log())
	follow("host-gw", `{"Type":"host-gw"}`, wantRoutes(t, l, n, false, l.Nodes[2]))
	for _, pair := range [][2]int{{0, 2}, {2, 0}, {1, 3}, {3, 1}} {
		must(t, reach(t.Context(), pods[pair[0]], pods[pair[1]]))
	}
	loggedNaming(t, n, mark, "peer-rejected", "reason", "192.168.101.12", "eth0")
	loggedNaming(t, n, mark, "peer-rejected", "reason", "192.168.101.14", "eth0")
	if len(n.Records(mark).With("cause=peer-rejected").Naming("reason", "192.168.100.13")) > 0 {
		t.Error("there is also a warning about the peer on the same network")
	}
	eventually(t, "no tunnel device, and the MTU of the underlay", "FLANNEL_MTU=1500",
		func(ctx context.Context) (string, error) { return device(ctx, n) })
	follow("alloc", `{"Type":"alloc"}`, "")
	eventually(t, "subnet.env with alloc", "FLANNEL_MTU=1500",
		func(ctx context.Context) (string, error) { return device(ctx, n) })
	follow("vxlan again", `{"Type":"vxlan"}`, wantRoutes(t, l, n, true))
	reachAll()
}

// The backend that only assigns subnets. Routes that others make stay.
func TestAlloc(t *testing.T) {
	t.Parallel()
	l := prepare(t, lab.Options{Nodes: 2}, `{"Type":"alloc"}`+apart)
	const others = "10.5.240.0/24 via 192.168.100.1 dev eth0"
	for _, n := range l.Nodes {
		shell(t, n.Namespaces, "ip route add "+others)
	}
	must(t, l.StartAll(t.Context()))
	for _, n := range l.Nodes {
		env, err := n.SubnetEnv()
		must(t, err)
		key := ours(t, l, n)[0]
		if base, _, _ := strings.Cut(key, "-"); env["FLANNEL_SUBNET"] != strings.TrimSuffix(base, "0")+"1/24" ||
			env["FLANNEL_MTU"] != "1500" {
			t.Errorf("%s: subnet.env is %v, the lease %s", n.Name, env, key)
		}
		if out := shell(t, n.Namespaces, "ip -br link | grep flannel || true; ip route show root 10.5.0.0/16; ip nexthop show"); words(out) != others {
			t.Errorf("%s: not only subnet.env was created: %s", n.Name, out)
		}
	}
}

// A blackhole route for the node's own subnet drops packets for deleted pods,
// and never those for existing pods.
func TestBlackholeRoute(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2, Family: lab.Dual}, `{"Type":"vxlan"}`, "-ip-blackhole-route")
	n := l.Nodes[0]
	four, six, _ := strings.Cut(ours(t, l, n)[0], "&")
	four, six = strings.Replace(four, "-", "/", 1), strings.Replace(six, "-", "/", 1)
	want := words("blackhole " + four + " proto 70 metric 65536\nblackhole " + six + " dev lo proto 70 metric 65536")
	blackholes := func(ctx context.Context) (string, error) {
		out, err := try(ctx, n.Namespaces, "ip route show type blackhole; ip -6 route show type blackhole")
		return words(out), err
	}
	eventually(t, "blackhole routes", want, blackholes)
	a, b := pair(t, l)
	a2 := pod(t, n, "a2")
	for _, pair := range [][2]*lab.Pod{{a, a2}, {a, b}, {b, a2}} {
		must(t, reach(t.Context(), pair[0], pair[1]))
	}
	shell(t, n.Namespaces, "ip route del blackhole %s metric 65536", four)
	t.Logf("a deleted blackhole route is restored after %v", eventually(t, "blackhole restored", want, blackholes))
	_, err := n.Stop(t.Context())
	must(t, err)
	must(t, n.Start())
	must(t, n.Ready(t.Context()))
	eventually(t, "no blackhole without the flag", "", blackholes)
	must(t, reach(t.Context(), a, b))
}
