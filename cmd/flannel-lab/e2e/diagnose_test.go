package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
	"flannel/pkg/doctor"
	"flannel/pkg/status"
)

// causes returns what the doctor of a node finds about the ways to other nodes, as
// "FL604 mtu". With arguments such as --peer it tests only some.
func causes(t *testing.T, l *lab.Lab, n *lab.Node, args ...string) (found []string, all []doctor.Result) {
	t.Helper()
	out, err := n.Run(t.Context(), "sh", "-c", l.Flanneld()+" doctor --json --timeout=15s "+strings.Join(args, " ")+" 2>/dev/null; true")
	must(t, err)
	must(t, json.Unmarshal([]byte(out), &all))
	for _, r := range all {
		if r.Cause != "" {
			found = append(found, r.Code+" "+string(r.Cause))
		}
	}
	return found, all
}

// pathFault is a fault on the way from node1 to node2.
type pathFault struct {
	name, node    string // where the scripts run
	fault, repair string
	stop          bool // of node2's flanneld: it is stopped before the fault, and started after the repair
	want          string
	// byError: an ICMP error names the cause. Kernels limit how many they send to an address, so
	// one run of the doctor may see none.
	byError bool
}

// examine makes faults, one after the other. Each time it waits until the probes of node1
// have found that there is one, and compares what the doctor of node1 finds then, which is
// not told the peer.
func examine(t *testing.T, l *lab.Lab, faults []pathFault) {
	t.Helper()
	a, b := l.Nodes[0], l.Nodes[1]
	at := map[string]machine.Namespaces{"infra": l.Infra.Namespaces, "node1": a.Namespaces, "node2": b.Namespaces}
	hasPeers(t, a, 1)
	healthy(t, l, a, b, "the start")
	for _, f := range faults {
		if f.stop {
			must(t, b.Kill())
		}
		began := time.Now()
		in(t, at[f.node], f.fault)
		state := noticed(t, l, a, b)
		probed := time.Since(began)
		found, all := causes(t, l, a)
		if f.byError {
			found, all = finds(t, l, a, f.want)
		}
		t.Logf("%s: %s after %v, named after %v: %v", f.name, state, probed.Round(time.Millisecond),
			time.Since(began).Round(time.Millisecond), problems(all))
		if !slices.Equal(found, []string{f.want}) {
			t.Errorf("%s: the doctor finds %v, want %s", f.name, found, f.want)
		}
		in(t, at[f.node], f.repair)
		if f.stop {
			must(t, b.Start())
			must(t, b.Ready(t.Context()))
		}
		healthy(t, l, a, b, f.name)
	}
}

// finds waits until the doctor of a node finds one cause, which an ICMP error names.
func finds(t *testing.T, l *lab.Lab, n *lab.Node, want string) (found []string, all []doctor.Result) {
	t.Helper()
	within(t, "the doctor finds "+want, func() error {
		if found, all = causes(t, l, n); !slices.Equal(found, []string{want}) {
			return fmt.Errorf("it finds %v", problems(all))
		}
		return nil
	})
	return found, all
}

// noticed waits until the probes of a node have found that a peer is not reachable.
func noticed(t *testing.T, l *lab.Lab, at, of *lab.Node) (state status.ReachState) {
	t.Helper()
	within(t, "the probes notice", func() error {
		r := reachOf(t, l, at, of)
		if r == nil || !slices.Contains([]status.ReachState{status.Unreachable, status.OneWay, status.SmallOnly}, r.State) {
			return fmt.Errorf("the peer is %+v", r)
		}
		state = r.State
		return nil
	})
	return state
}

// healthy waits until the probes of a node reach a peer, as far as they can, and its
// doctor finds no cause.
func healthy(t *testing.T, l *lab.Lab, at, of *lab.Node, after string) {
	t.Helper()
	want := status.Reachable
	if of.Windows != nil {
		want = status.Unproven
	}
	becomes(t, l, at, of, want)
	within(t, "healthy after "+after, func() error {
		if found, all := causes(t, l, at); found != nil {
			return fmt.Errorf("the doctor finds %v", problems(all))
		}
		return nil
	})
}

// problems returns the results with a cause, in full.
func problems(all []doctor.Result) (texts []string) {
	for _, r := range all {
		if r.Cause != "" {
			texts = append(texts, fmt.Sprintf("%s %s %v: %s → %s", r.Code, r.Cause, r.Peers, r.Seen, r.Fix))
		}
	}
	return texts
}

// bridged returns a fault of the network between the nodes, and its repair.
func bridged(rule string) (fault, repair string) {
	return fmt.Sprintf("nft 'table bridge mine { chain f { type filter hook forward priority 0; %s; }; }'", rule), "nft delete table bridge mine"
}

// iptables returns a fault of a node's firewall, and its repair.
func iptables(rule string) (fault, repair string) {
	return "iptables -I " + rule, "iptables -D " + rule
}

// seenByError is a fault that only an ICMP error names.
func seenByError(f pathFault) pathFault {
	f.byError = true
	return f
}

func on(node, name string, want string, script func(string) (string, string), argument string) pathFault {
	fault, repair := script(argument)
	return pathFault{name: name, node: node, fault: fault, repair: repair, want: want}
}

// TestDoctorNamesTheCause breaks the way between two nodes in each way that the doctor
// knows, with vxlan.
func TestDoctorNamesTheCause(t *testing.T) {
	t.Parallel()
	for where, faults := range map[string][]pathFault{
		"device": {
			{name: "no device", node: "node2", stop: true, fault: "ip link delete flannel.1", repair: "true", want: "FL602 port-closed", byError: true},
			{name: "another MAC address", node: "node2", stop: true, fault: "cat /sys/class/net/flannel.1/address >/run/mac; ip link set flannel.1 address 02:00:00:00:00:07",
				repair: "ip link set flannel.1 address $(cat /run/mac)", want: "FL606 mac-mismatch"},
		},
		"peer": {
			on("node2", "drop", "FL603 port-filtered", iptables, "INPUT -p udp --dport 8472 -j DROP"),
			seenByError(on("node2", "reject", "FL602 port-closed", iptables, "INPUT -p udp --dport 8472 -j REJECT")),
			seenByError(on("node2", "prohibited", "FL603 port-filtered", iptables, "INPUT -p udp --dport 8472 -j REJECT --reject-with icmp-host-prohibited")),
			on("node2", "drop in the tunnel", "FL612 peer-drops", iptables, "INPUT -i flannel.1 -j DROP"),
		},
		"network": {
			on("infra", "drop", "FL603 port-filtered", bridged, "udp dport 8472 drop"),
			on("infra", "path MTU", "FL604 mtu", bridged, "meta length > 1400 drop"),
			{name: "cut", node: "infra", fault: "ip link set node2 down", repair: "ip link set node2 up", want: "FL601 peer-down"},
		},
		"own": {
			on("node1", "incoming", "FL609 own-firewall", iptables, "INPUT -p udp --dport 8472 -j DROP"),
			on("node1", "outgoing", "FL609 own-firewall", iptables, "OUTPUT -p udp --dport 8472 -j DROP"),
			{name: "reverse path", node: "node1", fault: "ip route add 192.168.100.12 dev second src 192.168.100.11; sysctl -qw net.ipv4.conf.all.rp_filter=1",
				repair: "ip route delete 192.168.100.12; sysctl -qw net.ipv4.conf.all.rp_filter=0", want: "FL608 reverse-path"},
			{name: "no route", node: "node1", fault: "ip rule add to $(cat /run/peer) unreachable", repair: "ip rule delete to $(cat /run/peer)", want: "FL610 no-route"},
		},
	} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			l := start(t, lab.Options{Nodes: 2}, `{"Type":"vxlan"}`)
			key, _ := leaseOf(t, l, l.Nodes[1])
			subnet := strings.Replace(strings.TrimPrefix(key, leasePrefix), "-", "/", 1)
			must(t, l.Nodes[0].WriteFile("/run/peer", subnet))
			if where == "own" {
				secondUplink(t, l)
			}
			examine(t, l, faults)
		})
	}
}

// secondUplink connects node1 to the bridge by a second device. Neighbours are fixed, so
// that packets to node2 may leave through it and answers still arrive at the first one.
func secondUplink(t *testing.T, l *lab.Lab) {
	t.Helper()
	a, b := l.Nodes[0], l.Nodes[1]
	must(t, l.Infra.Do(func() error {
		br, err := netlink.LinkByName("br0")
		if err != nil {
			return err
		}
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "second", MasterIndex: br.Attrs().Index},
			PeerName: "second", PeerNamespace: netlink.NsFd(a.Files()[0].Fd())})
	}))
	in(t, l.Infra.Namespaces, "ip link set second up")
	in(t, a.Namespaces, "ip link set second up; ip neigh replace 192.168.100.12 lladdr "+in(t, b.Namespaces, "cat /sys/class/net/eth0/address | tr -d '\\n'")+" dev second")
	in(t, b.Namespaces, "ip neigh replace 192.168.100.11 lladdr "+in(t, a.Namespaces, "cat /sys/class/net/eth0/address | tr -d '\\n'")+" dev eth0")
}
