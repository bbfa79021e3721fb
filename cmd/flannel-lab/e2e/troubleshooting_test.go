package e2e

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
	"flannel/pkg/status"
)

// way lists what a request from a pod of the first node to one of the second
// passes: interfaces, as tcpdump prints them on both nodes.
var way = []string{"node1 cni0 In", "node1 flannel.1 Out", "node1 eth0 Out", "node2 eth0 In", "node2 flannel.1 In", "node2 cni0 Out"}

// otherRoute lets a node reach the first one through another interface, where
// nobody is.
const otherRoute = `ip link add other type veth peer name end; ip link set end up; ip link set other up
	ip address add 172.30.0.1/24 dev other; ip route add 192.168.100.11 dev other; sysctl -qw net.ipv4.conf.all.rp_filter=`

// dropped are faults, in the order of the last table of "Pods do not reach each
// other" in Documentation/troubleshooting.md: where the request ends, and what
// the doctor of that node finds.
var dropped = []struct {
	name, node     string
	fault, repair  string // scripts on that node
	last           string // of way
	code, evidence string // of the doctor, and what a script on that node must find
}{
	{"forwarding at A", "node1", `nft 'table inet mine { chain f { type filter hook forward priority 10; policy drop; }; }'`, "nft delete table inet mine",
		"node1 cni0 In", "FL203", ""},
	{"outgoing at A", "node1", "iptables -I OUTPUT -p udp --dport 8472 -j DROP", "iptables -D OUTPUT -p udp --dport 8472 -j DROP",
		"node1 flannel.1 Out", "FL204 FL609", ""},
	{"between the nodes", "infra", `nft 'table bridge mine { chain f { type filter hook forward priority 0; udp dport 8472 drop; }; }'`, "nft delete table bridge mine",
		"node1 eth0 Out", "", ""},
	{"incoming at B", "node2", "iptables -I INPUT -p udp --dport 8472 -j DROP", "iptables -D INPUT -p udp --dport 8472 -j DROP",
		"node2 eth0 In", "FL204 FL609", ""},
	{"reverse path filter of B", "node2", otherRoute + "1", "ip link delete other; sysctl -qw net.ipv4.conf.all.rp_filter=0",
		"node2 eth0 In", "", "nstat -asz TcpExtIPReversePathFilter | grep -q 'Filter *[1-9]'"},
	{"loose reverse path filter of B", "node2", otherRoute + "2", "ip link delete other; sysctl -qw net.ipv4.conf.all.rp_filter=0",
		"node2 cni0 Out", "", ""},
	{"guard of B", "node1", `nft 'table ip mine { chain p { type filter hook postrouting priority 300; udp dport 8472 ip saddr set 192.168.100.99; }; }'`,
		"nft delete table ip mine", "node2 eth0 In", "FL603", ""},
	{"forwarding at B", "node2", "iptables -I FORWARD -i flannel.1 -j DROP", "iptables -D FORWARD -i flannel.1 -j DROP",
		"node2 flannel.1 In", "FL203", ""},
}

// TestWherePacketsEnd follows the steps of the page for each fault: the doctor
// names it or is silent, and tcpdump shows where the request ends.
func TestWherePacketsEnd(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2}, `{"Type":"vxlan","Guard":"enforce","GuardTrial":0}`)
	a, b := pair(t, l)
	reaches(t, "at first", a, b.IP4)
	at := map[string]machine.Namespaces{"infra": l.Infra.Namespaces}
	for _, n := range l.Nodes {
		at[n.Name] = n.Namespaces
		in(t, n.Namespaces, fmt.Sprintf("tcpdump -lni any 'host %s or udp port 8472' >/run/trace 2>/run/tcpdump &", b.IP4))
		within(t, "tcpdump listens", func() error { _, err := try(t.Context(), n.Namespaces, "grep listening /run/tcpdump"); return err })
	}
	size := 100 // of requests, which tells those of one case from all others
	// sent pings until requests have passed the way up to last, and returns their
	// size.
	sent := func(t *testing.T, last string) int {
		t.Helper()
		size++
		within(t, "a request is at "+last, func() error {
			_, _ = try(t.Context(), a.Namespaces, "ping -c 1 -W 0.1 -s %d %s", size, b.IP4)
			if got := passed(t, l, size); !slices.Equal(got, upTo(last)) {
				return fmt.Errorf("requests passed %q", got)
			}
			return nil
		})
		return size
	}
	for _, c := range dropped {
		in(t, at[c.node], c.fault)
		mark := sent(t, c.last)
		if c.evidence != "" {
			in(t, at[c.node], c.evidence)
		}
		if c.node != "infra" {
			n, other := l.Nodes[0], l.Nodes[1]
			if c.node == other.Name {
				n, other = other, n
			}
			// The doctor does not test a peer of which probes know nothing, such as one whose lease has just changed: with
			// another route, node2 sends from another address.
			within(t, "the probes know something of the peer", func() error {
				if r := reachOf(t, l, n, other); r == nil || r.State == status.UnknownReach {
					return fmt.Errorf("they say %+v", r)
				}
				return nil
			})
			if got := failures(t, l, at[c.node]); got != c.code {
				t.Errorf("%s: the doctor finds %q, want %q", c.name, got, c.code)
			}
		}
		in(t, at[c.node], c.repair)
		sent(t, way[len(way)-1]) // tcpdump prints packets in their order: whatever came of the fault is there now
		if got, want := passed(t, l, mark), upTo(c.last); !slices.Equal(got, want) {
			t.Errorf("%s: requests passed %q, want %q", c.name, got, want)
		}
	}
	within(t, "the guard has found packets", func() error { return says(t, l.Nodes[1], "outsider", l.Flanneld(), "status") })
}

var (
	captured = regexp.MustCompile(`^\S+ (\S+) +(In|Out|P|B|M) `)
	request  = regexp.MustCompile(`ICMP echo request, .*, length (\d+)$`)
)

// upTo returns the part of way that ends with a hop.
func upTo(last string) []string { return way[:slices.Index(way, last)+1] }

// passed returns which part of way requests with so many bytes have passed.
func passed(t *testing.T, l *lab.Lab, size int) (hops []string) {
	t.Helper()
	seen := map[string]bool{}
	for _, n := range l.Nodes {
		hop := ""
		for line := range strings.Lines(in(t, n.Namespaces, "cat /run/trace")) {
			if m := captured.FindStringSubmatch(line); m != nil {
				hop = n.Name + " " + m[1] + " " + m[2]
			} // else it is the packet in the tunnel's one before
			if m := request.FindStringSubmatch(strings.TrimSpace(line)); m != nil && m[1] == fmt.Sprint(size+8) {
				seen[hop] = true
			}
		}
	}
	for _, hop := range way {
		if seen[hop] {
			hops = append(hops, hop)
		}
	}
	return hops
}

// failures returns the codes of the checks that fail.
func failures(t *testing.T, l *lab.Lab, n machine.Namespaces) string {
	t.Helper()
	var all []struct{ Code, Verdict, Seen string }
	must(t, json.Unmarshal([]byte(in(t, n, l.Flanneld()+" doctor --json --timeout=20s || true")), &all))
	for _, r := range all {
		if strings.HasPrefix(r.Code, "FL6") {
			t.Logf("%s %s: %s", r.Code, r.Verdict, r.Seen)
		}
	}
	var codes []string
	for _, r := range all {
		if r.Verdict == "fail" && r.Code != "FL302" { // the plugins are in no directory of the lab
			codes = append(codes, r.Code)
		}
	}
	return strings.Join(codes, " ")
}
