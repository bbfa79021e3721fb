package e2e

import (
	"strings"
	"testing"

	"flannel/cmd/flannel-lab/lab"
	"flannel/internal/test/logtest"
)

// neighbours are commands that create things similar to ours, which cleanup
// must not touch.
const foreign = `
	# what IPv6 does by itself in its own time newLines of no interest
	echo 1 > /proc/sys/net/ipv6/conf/default/addr_gen_mode
	echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
	ip link add vxlan9 type vxlan id 9 dev eth0 dstport 4789; ip link set vxlan9 up
	ip address add 10.77.0.1/32 dev vxlan9
	ip link add cni0 type bridge; ip link set cni0 up; ip address add 10.5.200.1/24 dev cni0
	ip route add 10.78.0.0/24 via 10.78.0.0 dev vxlan9 onlink
	ip route add 10.79.0.0/24 via 192.168.100.1
	ip route add 10.5.240.0/24 via 192.168.100.1 proto static
	ip route add blackhole 10.80.0.0/24
	ip nexthop add id 7 via 192.168.100.1 dev eth0; ip route add 10.81.0.0/24 nhid 7
	ip neigh add 10.78.0.0 lladdr 02:00:00:00:00:78 dev vxlan9 nud permanent
	bridge fdb append 02:00:00:00:00:78 dev vxlan9 dst 192.168.100.1 self permanent
	for ipt in iptables ip6tables; do
		$ipt -t nat -N MINE; $ipt -t nat -A POSTROUTING -j MINE; $ipt -t nat -A MINE -m comment --comment flanneld -j RETURN
		$ipt -N FLANNEL-FWD-NOT; $ipt -A FORWARD -j FLANNEL-FWD-NOT
	done
	nft add table ip flannel-ipv4-not; nft add table inet mine`

// TestCleanup compares a node before the first start of flanneld and after its
// cleanup.
func TestCleanup(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, config string
		family       lab.Family
		args         []string
		routes       string   // number of routes, including blackholes
		removed      []string // parts of the list of removed things
	}{
		{"vxlan dual by iptables", `{"Type":"vxlan"}`, lab.Dual, []string{"-ip-blackhole-route"}, "4",
			[]string{"device flannel.1\n", "device flannel-v6.1\n", "route 10.5.", "route fd05:", "nexthop object"}},
		{"host-gw by iptables", `{"Type":"host-gw"}`, lab.V4, nil, "1", []string{"route 10.5.", "nexthop object"}},
		{"vxlan dual by nftables", `{"Type":"vxlan","VNI":42},"EnableNFTables":true`, lab.Dual, nil, "2",
			[]string{"device flannel.42\n", "device flannel-v6.42\n", "flannel-ipv4", "flannel-ipv6"}},
		{"host-gw by nftables", `{"Type":"host-gw"},"EnableNFTables":true`, lab.Dual, nil, "2",
			[]string{"route 10.5.", "route fd05:", "flannel-ipv6"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := bare(t, lab.Options{Nodes: 2, Family: c.family})
			n := l.Nodes[0]
			in(t, n.Namespaces, foreign)
			before := in(t, n.Namespaces, lab.NetworkState)
			must(t, l.SetConfig(t.Context(), l.Config(c.config+apart)))
			must(t, l.StartAll(t.Context(), c.args...))
			hasPeers(t, n, 1)
			within(t, "its routes are counted", func() error { return has(t, n, `flanneld_entries{table="routes"} `+c.routes) })
			becomesReady(t, n)
			stopped(t, n)

			running := in(t, n.Namespaces, lab.NetworkState)
			refusesMalformed(t, l)
			if change := lab.Changes(running, in(t, n.Namespaces, lab.NetworkState)); change != "" {
				t.Errorf("with a malformed subnet file, cleanup or handback changed\n%s", change)
			}
			planned := in(t, n.Namespaces, l.Flanneld()+" cleanup --dry-run 2>&1")
			if change := lab.Changes(running, in(t, n.Namespaces, lab.NetworkState)); change != "" {
				t.Errorf("the dry run changed\n%s", change)
			}
			for _, what := range c.removed {
				if !strings.Contains(planned, what) {
					t.Errorf("the dry run prints\n%s\nwithout %q", planned, what)
				}
			}
			done := in(t, n.Namespaces, l.Flanneld()+" cleanup 2>&1")
			if done != strings.ReplaceAll(planned, "would remove ", "removed ") {
				t.Errorf("cleanup prints\n%s\nand the dry run printed\n%s", done, planned)
			}
			if change := lab.Changes(before, in(t, n.Namespaces, lab.NetworkState)); change != "" {
				t.Errorf("start and cleanup changed\n%s", change)
			}
			if again := in(t, n.Namespaces, l.Flanneld()+" cleanup --json"); !strings.Contains(again, `"removed": []`) {
				t.Errorf("a second cleanup prints\n%s", again)
			}
			must(t, n.Start(c.args...))
			must(t, n.Ready(t.Context()))
			within(t, "the state is as before", func() error {
				return same(words(running), words(in(t, n.Namespaces, lab.NetworkState)))
			})
		})
	}
	t.Run("bad argument", func(t *testing.T) {
		l := bare(t, lab.Options{Nodes: 1})
		out, err := l.Nodes[0].Run(t.Context(), l.Flanneld(), "cleanup", "all")
		if err == nil || !strings.Contains(out, `"all"`) {
			t.Errorf("%v: %s", err, out)
		}
	})
}

// refusesMalformed checks that cleanup and handback fail on the first node if its subnet file is malformed.
func refusesMalformed(t *testing.T, l *lab.Lab) {
	t.Helper()
	n := l.Nodes[0]
	in(t, n.Namespaces, "cp /run/flannel/subnet.env /run/subnet.env; echo FLANNEL_NETWORK=10.5 >/run/flannel/subnet.env")
	for _, command := range []string{"cleanup", "handback"} {
		_, err := n.Run(t.Context(), l.Flanneld(), command)
		if err == nil || !logtest.Names(err.Error(), "/run/flannel/subnet.env", `FLANNEL_NETWORK="10.5"`, "delete") {
			t.Errorf("%s with a malformed subnet file: %v", command, err)
		}
	}
	in(t, n.Namespaces, "mv /run/subnet.env /run/flannel/subnet.env")
}
