package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"flannel/cmd/flannel-lab/lab"
	"flannel/pkg/doctor"
	"flannel/pkg/status"
)

// verdict returns what the doctor of a node finds by one check.
func verdict(t *testing.T, l *lab.Lab, n *lab.Node, code string) doctor.Result {
	t.Helper()
	_, all := causes(t, l, n)
	i := slices.IndexFunc(all, func(r doctor.Result) bool { return r.Code == code })
	if i < 0 {
		t.Fatalf("the doctor has no result of %s: %v", code, all)
	}
	return all[i]
}

// sysctl reads a kernel parameter of a node.
func sysctl(t *testing.T, n *lab.Node, path string) string {
	t.Helper()
	return strings.TrimSpace(shell(t, n.Namespaces, "cat /proc/sys/%s", path))
}

// A node that forwards nothing that arrives on one device cuts its pods off. It repairs its
// own devices, and names the parameters of others; its peers do not call it reachable.
func TestForwardingOfADevice(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ backend, foreign string }{
		"vxlan":   {`{"Type":"vxlan"}`, "net/ipv4/conf/cni0/forwarding"},
		"host-gw": {`{"Type":"host-gw"}`, "net/ipv4/conf/eth0/forwarding"},
		"udp":     {`{"Type":"udp"}`, "net/ipv4/conf/cni0/forwarding"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := start(t, lab.Options{Nodes: 2}, c.backend+apart)
			first, second := l.Nodes[0], l.Nodes[1]
			a, b := pair(t, l)
			reaches(t, "the start", a, b.IP4)
			allReachable(t, l)
			within(t, "the peer's kernel answers for its pods", func() error { return answersForPods(t, first) })
			// A node that joins sends probes before its peers have read its lease.
			within(t, "the guard takes no probe of a peer for a forged packet", func() error {
				g := (&guardTest{l: l}).guard(t, first)
				if dropped, counted := status.Found(&g); dropped+counted != "" {
					return fmt.Errorf("dropped %q, counted %q", dropped, counted)
				}
				return nil
			})
			if r := verdict(t, l, second, "FL201"); r.Verdict != doctor.OK {
				t.Errorf("before: %+v", r)
			}
			marks := marksOf(l)
			in(t, second.Namespaces, "sysctl -w "+c.foreign+"=0")
			within(t, "/readyz names the parameter", func() error { return unready(t, second, "sysctl -w "+c.foreign+"=1") })
			if r := verdict(t, l, second, "FL201"); r.Verdict != doctor.Fail || !strings.Contains(r.Seen, c.foreign) {
				t.Errorf("the doctor finds %+v", r)
			}
			becomes(t, l, first, second, status.NotForwarding)
			once(t, first, marks[first], "cause=peer-not-forwarding")
			if found, all := causes(t, l, first); !slices.Equal(found, []string{"FL614 peer-not-forwarding"}) {
				t.Errorf("the doctor of a peer finds %v", problems(all))
			}
			if got := sysctl(t, second, c.foreign); got != "0" {
				t.Errorf("a parameter of somebody else's device was changed to %s", got)
			}
			in(t, second.Namespaces, "sysctl -w "+c.foreign+"=1")
			becomesReady(t, second)
			allReachable(t, l)
			reaches(t, "the end", a, b.IP4)
		})
	}
}

// flanneld repairs its own devices. While it does not run, its peers find that the node
// does not forward.
func TestForwardingOfOwnDevice(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ backend, device string }{
		"vxlan":     {`{"Type":"vxlan"}`, "flannel.1"},
		"wireguard": {`{"Type":"wireguard"}`, "flannel-wg"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := start(t, lab.Options{Nodes: 2}, c.backend+apart)
			first, second := l.Nodes[0], l.Nodes[1]
			a, b := pair(t, l)
			allReachable(t, l)
			path := "net/ipv4/conf/" + c.device + "/forwarding"
			for _, stop := range []bool{false, true} {
				if stop {
					// A node whose kernel has never reported an ended hop limit may have a firewall.
					within(t, "the peer's kernel answers for its pods", func() error { return answersForPods(t, first) })
					must(t, second.Kill())
				}
				in(t, second.Namespaces, "sysctl -w "+path+"=0")
				if stop {
					becomes(t, l, first, second, status.NotForwarding)
					must(t, second.Start())
				}
				within(t, "repaired", func() error {
					if got := sysctl(t, second, path); got != "1" {
						return fmt.Errorf("it is %s", got)
					}
					return nil
				})
				becomesReady(t, second)
				reaches(t, "after the repair", a, b.IP4)
				becomes(t, l, first, second, status.Reachable)
			}
		})
	}
}

// answersForPods returns an error unless a node has received reports of ended hop limits.
func answersForPods(t *testing.T, n *lab.Node) error {
	t.Helper()
	if got := strings.TrimSpace(shell(t, n.Namespaces, "awk '/^IcmpMsg:/ { for (i = 1; i <= NF; i++) if (names) { if (name[i] == \"InType11\") print $i } else name[i] = $i; names = 1 }' /proc/net/snmp")); got == "" || got == "0" {
		return fmt.Errorf("%s reports", got)
	}
	return nil
}

// A host whose new devices have no IPv6 and forward nothing, as a hardening script has it.
func TestHardenedHost(t *testing.T) {
	t.Parallel()
	l := prepare(t, lab.Options{Nodes: 2, Family: lab.Dual}, `{"Type":"vxlan"}`+apart)
	in(t, l.Nodes[1].Namespaces, "sysctl -w net.ipv6.conf.default.disable_ipv6=1 net.ipv4.conf.default.rp_filter=1 net.ipv4.conf.all.rp_filter=1")
	must(t, l.StartAll(t.Context()))
	for _, n := range l.Nodes {
		becomesReady(t, n)
	}
	in(t, l.Nodes[1].Namespaces, "sysctl -w net.ipv6.conf.default.disable_ipv6=0") // the pods' devices are not ours
	a, b := pair(t, l)
	reachesBoth(t, "pods", a, b)
	allReachable(t, l)
}

// An underlay that drops packets with addresses of pods, as a switch with port security
// does: the answers of the nodes themselves prove nothing, and nobody says that they do.
func TestProbesPortSecurity(t *testing.T) {
	t.Parallel()
	l := prepare(t, lab.Options{Nodes: 2}, `{"Type":"host-gw"}`+apart)
	in(t, l.Infra.Namespaces, "nft 'table bridge mine { chain f { type filter hook forward priority 0; ip saddr 10.5.0.0/16 drop; }; }'")
	must(t, l.StartAll(t.Context()))
	first, second := l.Nodes[0], l.Nodes[1]
	pair(t, l)
	for _, n := range []*lab.Node{first, second} {
		becomes(t, l, n, l.Nodes[1-slices.Index(l.Nodes, n)], status.Unproven)
	}
	in(t, l.Infra.Namespaces, "nft delete table bridge mine")
	allReachable(t, l)
	noAlarm(t, l, map[*lab.Node]int{}) // probes are missed for longer before there is one: reach.grace
}
