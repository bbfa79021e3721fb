package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"flannel/cmd/flannel-lab/lab"
)

// relic is the state that a stopped flannel left on a node.
type relic struct {
	node            *lab.Node
	four, six       string // start of the node's subnets: 10.5.21, fd05:0:0:15
	mac, mac6       string
	device, device6 string // index and MAC
}

// newRelic returns a node of a flannel cluster. i determines its subnets and
// addresses.
func newRelic(n *lab.Node, i int) *relic {
	return &relic{
		node: n, four: fmt.Sprintf("10.5.%d", i), six: fmt.Sprintf("fd05:0:0:%x", i),
		mac: fmt.Sprintf("c6:d2:32:6f:04:%02x", i), mac6: fmt.Sprintf("c6:d2:32:6f:06:%02x", i),
	}
}

// stranger returns a node that does not exist, with underlay addresses next to
// those of another.
func stranger(beside *lab.Node, i int) *relic {
	return newRelic(&lab.Node{IP4: beside.IP4.Next().Next(), IP6: beside.IP6.Next().Next()}, i)
}

func (r *relic) key() string { return r.four + ".0-24&" + r.six + "::-64" }

func (r *relic) publish(t *testing.T, l *lab.Lab) {
	t.Helper()
	six := r.node.IP6.String()
	putLease(t, l, r.key(), &value{r.node.IP4.String(), &six, "vxlan", &vtep{1, r.mac}, &vtep{1, r.mac6}})
}

// leave writes the entries of one node into its kernel as flannel does, for one
// existing peer and one that was removed.
func (r *relic) leave(t *testing.T, l *lab.Lab, peer *relic) {
	t.Helper()
	n := r.node
	must(t, n.WriteFile("/run/flannel/subnet.env", fmt.Sprintf("FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=%s.1/24\n"+
		"FLANNEL_IPV6_NETWORK=fd05::/48\nFLANNEL_IPV6_SUBNET=%s::1/64\nFLANNEL_MTU=1430\nFLANNEL_IPMASQ=true\n", r.four, r.six)))
	shell(t, n.Namespaces, `sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
		ip link add flannel.1 type vxlan id 1 dev eth0 local %[1]s dstport 8472 nolearning
		ip link add flannel-v6.1 type vxlan id 1 dev eth0 local %[2]s dstport 8472 nolearning
		sysctl -qw net/ipv6/conf/flannel.1/accept_ra=0 net/ipv6/conf/flannel-v6.1/accept_ra=0
		ip link set flannel.1 address %[5]s mtu 1450; ip link set flannel-v6.1 address %[6]s mtu 1430
		ip addr add %[3]s.0/32 dev flannel.1; ip addr add %[4]s::/128 dev flannel-v6.1 nodad
		ip link set flannel.1 up; ip link set flannel-v6.1 up`, n.IP4, n.IP6, r.four, r.six, r.mac, r.mac6)
	for _, p := range []*relic{peer, stranger(n, 99)} {
		r.program(t, p, "add")
	}
	for _, family := range []struct{ command, net, sub, cast string }{
		{"iptables", "10.5.0.0/16", r.four + ".0/24", "224.0.0.0/4"},
		{"ip6tables", "fd05::/48", r.six + "::/64", "ff00::/8"},
	} {
		shell(t, n.Namespaces, `C='-m comment --comment'; M="$C flanneld\ masq"; net=%[2]s sub=%[3]s
			ipt() { %[1]s -w "$@"; }
			ipt -t nat -N FLANNEL-POSTRTG; ipt -N FLANNEL-FWD
			for rule in "-m mark --mark 0x4000/0x4000 @ -j RETURN" "-s $sub -d $net @ -j RETURN" "-s $net -d $sub @ -j RETURN" \
				"! -s $net -d $sub @ -j RETURN" "-s $net ! -d %[4]s @ -j MASQUERADE --random-fully" "! -s $net -d $net @ -j MASQUERADE --random-fully"; do
				ipt -t nat -A FLANNEL-POSTRTG ${rule%%%%@*} -m comment --comment "flanneld masq" ${rule#*@}
			done
			ipt -t nat -A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
			ipt -A FLANNEL-FWD -s $net -m comment --comment "flanneld forward" -j ACCEPT
			ipt -A FLANNEL-FWD -d $net -m comment --comment "flanneld forward" -j ACCEPT
			ipt -A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD`, family.command, family.net, family.sub, family.cast)
	}
	r.publish(t, l)
	r.device, r.device6 = r.identity(t)
}

// program writes the entries of a peer as flannel does. verb is add, or replace
// if they may exist.
func (r *relic) program(t *testing.T, p *relic, verb string) {
	t.Helper()
	shell(t, r.node.Namespaces, `ip route %[1]s %[2]s.0/24 via %[2]s.0 dev flannel.1 onlink
		ip neigh %[1]s %[2]s.0 lladdr %[3]s dev flannel.1 nud permanent
		bridge fdb %[1]s %[3]s dev flannel.1 dst %[4]s self permanent
		ip route %[1]s %[5]s::/64 via %[5]s:: dev flannel-v6.1 onlink
		ip neigh %[1]s %[5]s:: lladdr %[6]s dev flannel-v6.1 nud permanent
		bridge fdb %[1]s %[6]s dev flannel-v6.1 dst %[7]s self permanent`, verb, p.four, p.mac, p.node.IP4, p.six, p.mac6, p.node.IP6)
}

func (r *relic) identity(t *testing.T) (four, six string) {
	t.Helper()
	read := func(dev string) string {
		return shell(t, r.node.Namespaces, "cd /sys/class/net/%s; cat ifindex address", dev)
	}
	return read("flannel.1"), read("flannel-v6.1")
}

// Nodes change from flannel to our flanneld and back while their pods
// communicate.
func TestAdoptionOfWhatFlannelLeft(t *testing.T) {
	t.Parallel()
	l := prepare(t, lab.Options{Nodes: 2, Family: lab.Dual}, `{"Type":"vxlan"}`)
	r := []*relic{newRelic(l.Nodes[0], 21), newRelic(l.Nodes[1], 22)}
	r[0].leave(t, l, r[1])
	r[1].leave(t, l, r[0])
	// Stale entries that flannel does not delete: of an earlier host-gw, and of a
	// former VTEP of a peer.
	shell(t, l.Nodes[0].Namespaces, `ip route add 10.5.88.0/24 via %[1]s dev eth0; ip route add fd05:0:0:58::/64 via %[2]s dev eth0
		bridge fdb add 02:00:00:00:00:58 dev flannel.1 dst %[1]s self permanent`, l.Nodes[1].IP4, l.Nodes[1].IP6)
	a, b := pair(t, l)
	must(t, reach(t.Context(), a, b))

	flow := flood(t, a, b)
	must(t, l.StartAll(t.Context()))
	for _, node := range r {
		node.adopted(t, l)
	}
	if got := len(leases(t, l)); got != 2 {
		t.Errorf("%d leases, want the two existing ones", got)
	}
	flow.checkNoLoss(t, "from flannel to ours")

	// A peer that joins now gets an entry in our format, which flannel must also be
	// able to replace.
	third := stranger(l.Nodes[1], 23)
	third.publish(t, l)
	for _, n := range l.Nodes {
		waitSynced(t, l, n)
	}
	flow = flood(t, a, b)
	for i, rel := range r {
		_, err := rel.node.Stop(t.Context())
		must(t, err)
		rel.program(t, r[1-i], "replace")
		rel.program(t, third, "replace")
		if out := shell(t, rel.node.Namespaces, "ip route show dev flannel.1; ip -6 route show dev flannel-v6.1"); strings.Contains(out, "proto 70") {
			t.Errorf("%s: flannel did not replace our routes: %s", rel.node.Name, out)
		}
	}
	time.Sleep(100 * time.Millisecond) // in which pings would get lost
	flow.checkNoLoss(t, "from ours to flannel")
	must(t, l.StartAll(t.Context()))
	for _, n := range l.Nodes {
		waitSynced(t, l, n)
		eventually(t, "one nexthop object for each gateway", "4", func(ctx context.Context) (string, error) {
			return try(ctx, n.Namespaces, "ip nexthop show proto 70 | wc -l")
		})
	}
	must(t, reach(t.Context(), a, b))
}

// adopted checks that correct state is as flannel left it, and that stale state
// is gone.
func (r *relic) adopted(t *testing.T, l *lab.Lab) {
	t.Helper()
	n := r.node
	waitSynced(t, l, n)
	if four, six := r.identity(t); four != r.device || six != r.device6 {
		t.Errorf("%s: the devices are now %q %q, were %q %q", n.Name, four, six, r.device, r.device6)
	}
	if got, want := fmt.Sprint(ours(t, l, n)), fmt.Sprint([]string{r.key(), "1 " + r.mac, "1 " + r.mac6}); got != want {
		t.Errorf("%s: the lease is %s, was %s", n.Name, got, want)
	}
	if out := shell(t, n.Namespaces, "ip route show root 10.5.0.0/16 proto 70; ip -6 route show root fd05::/48 proto 70"); out != "" {
		t.Errorf("%s: routes were replaced: %s", n.Name, out)
	}
	if out := shell(t, n.Namespaces, "ip route show 10.5.88.0/24; ip -6 route show fd05:0:0:58::/64"); out != "" {
		t.Errorf("%s: stale routes were not deleted: %s", n.Name, out)
	}
	for _, command := range []string{"iptables", "ip6tables"} {
		out := shell(t, n.Namespaces, "%s-save", command)
		if count := strings.Count(out, "flanneld"); count != 10 || strings.Count(out, "-j FLANNEL") != 2 {
			t.Errorf("%s: %d rules of ours, want 10:\n%s", n.Name, count, out)
		}
	}
}
