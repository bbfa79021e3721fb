package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"flannel/cmd/flannel-lab/lab"
	"flannel/pkg/status"
)

// reachOf returns what a node's probes know of a peer; nil: nothing.
func reachOf(t *testing.T, l *lab.Lab, at, of *lab.Node) *status.Reach {
	t.Helper()
	var r status.Report
	out, err := try(t.Context(), at.Namespaces, "%s status --json || true", l.Flanneld())
	must(t, err)
	if json.Unmarshal([]byte(out), &r) != nil { // the daemon does not run
		return nil
	}
	for _, p := range r.Peers {
		if isOf(p, of) {
			return p.Reach
		}
	}
	return nil
}

// isOf reports whether a peer is a node of the lab.
func isOf(p status.Peer, n *lab.Node) bool {
	return slices.Contains(p.PublicIPs, n.IP4) || n.IP6.IsValid() && slices.Contains(p.PublicIPs, n.IP6)
}

// becomes waits until a node's probes have found a peer in a state.
func becomes(t *testing.T, l *lab.Lab, at, of *lab.Node, want status.ReachState) (found status.Reach) {
	t.Helper()
	within(t, fmt.Sprintf("%s is %s at %s", of.Name, want, at.Name), func() error {
		r := reachOf(t, l, at, of)
		if r == nil || r.State != want {
			return fmt.Errorf("it is %+v", r)
		}
		found = *r
		return nil
	})
	return found
}

// asked waits until a node's probes of a peer take a way.
func asked(t *testing.T, l *lab.Lab, at, of *lab.Node, via status.Via) {
	t.Helper()
	within(t, fmt.Sprintf("%s is asked via %s", of.Name, via), func() error {
		if r := reachOf(t, l, at, of); r == nil || r.Via != via {
			return fmt.Errorf("the peer is %+v", r)
		}
		return nil
	})
}

// allReachable waits until all nodes have found all others reachable.
func allReachable(t *testing.T, l *lab.Lab) {
	t.Helper()
	for _, at := range l.Nodes {
		for _, of := range l.Nodes {
			if at != of && at.Windows == nil {
				becomes(t, l, at, of, status.Reachable)
			}
		}
	}
}

// dropping drops packets on a node until the returned function is called.
func dropping(t *testing.T, n *lab.Node, rule string) (stop func()) {
	t.Helper()
	shell(t, n.Namespaces, "nft add table inet mine; nft 'add chain inet mine in { type filter hook prerouting priority -500; }'")
	shell(t, n.Namespaces, "nft 'add rule inet mine in iifname eth0 %s drop'", rule)
	return func() { shell(t, n.Namespaces, "nft delete table inet mine") }
}

// cutOff drops all packets from and to a node until the returned function is called.
func cutOff(t *testing.T, n *lab.Node) (heal func()) {
	t.Helper()
	heal = dropping(t, n, "")
	shell(t, n.Namespaces, "nft 'add chain inet mine out { type filter hook postrouting priority 500; }'; nft add rule inet mine out oifname eth0 drop")
	return heal
}

var alarms = []string{"peer-unreachable", "peer-one-way", "peer-mtu", "peer-not-forwarding"}

// noAlarm fails if a node has logged that a peer is not reachable.
func noAlarm(t *testing.T, l *lab.Lab, marks map[*lab.Node]int) {
	t.Helper()
	for _, n := range l.Nodes {
		for _, cause := range alarms {
			if found := n.Records(marks[n]).With("cause=" + cause); len(found) > 0 {
				t.Errorf("%s has logged %s", n.Name, found)
			}
		}
	}
}

func marksOf(l *lab.Lab) map[*lab.Node]int {
	marks := map[*lab.Node]int{}
	for _, n := range l.Nodes {
		marks[n] = len(n.Log())
	}
	return marks
}

// A node that is cut off is found by the others, and again when it is back; a daemon that
// is killed and started again is not noticed. The third node sends no probes, like
// flannel.
func TestProbes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		backend string
		family  lab.Family
		via     status.Via
	}{
		"vxlan":     {`{"Type":"vxlan"}`, lab.Dual, status.ViaTunnel},
		"direct":    {`{"Type":"vxlan","DirectRouting":true}`, lab.V4, status.ViaTunnel},
		"wireguard": {`{"Type":"wireguard"}`, lab.Dual, status.ViaTunnel},
		"udp":       {`{"Type":"udp"}`, lab.V4, status.ViaTunnel},
		"host-gw":   {`{"Type":"host-gw"}`, lab.Dual, status.ViaUnderlay},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := prepare(t, lab.Options{Nodes: 3, Family: c.family}, c.backend+apart)
			for i, n := range l.Nodes {
				must(t, n.Start(fmt.Sprintf("--probe=%t", i < 2)))
			}
			first, second, third := l.Nodes[0], l.Nodes[1], l.Nodes[2]
			want := map[*lab.Node]status.ReachState{second: status.Reachable, third: status.Reachable}
			if c.via == status.ViaUnderlay {
				want = map[*lab.Node]status.ReachState{second: status.Unproven, third: status.Unproven}
			}
			for _, of := range []*lab.Node{second, third} {
				if r := becomes(t, l, first, of, want[of]); r.Via != c.via {
					t.Errorf("%s is probed via %s, at %s", of.Name, r.Via, r.Target)
				}
			}
			noAlarm(t, l, map[*lab.Node]int{}) // probes are missed for longer before there is one: reach.grace
			if c.backend == `{"Type":"host-gw"}` {
				pair(t, l)
				asked(t, l, first, second, status.ViaPods)
				want[second] = status.Reachable
			}
			marks := marksOf(l)
			must(t, second.Kill())
			must(t, second.Start())
			becomes(t, l, second, first, want[second])
			noAlarm(t, l, marks)

			for _, of := range []*lab.Node{second, third} {
				heal := cutOff(t, of)
				becomes(t, l, first, of, status.Unreachable)
				once(t, first, marks[first], "cause=peer-unreachable", "peer="+nameOf(t, first, of))
				heal()
				becomes(t, l, first, of, want[of])
				once(t, first, marks[first], "cause=peer-reachable", "peer="+nameOf(t, first, of))
			}
		})
	}
}

// nameOf returns the name of a peer's lease.
func nameOf(t *testing.T, at, of *lab.Node) string {
	t.Helper()
	r, err := reportOf(t, at)
	must(t, err)
	for _, p := range r.Peers {
		if isOf(p, of) {
			return p.Name
		}
	}
	t.Fatal("no such peer")
	return ""
}

// Packets of one direction are lost, or large ones.
func TestProbesPartial(t *testing.T) {
	t.Parallel()
	for _, enforce := range []string{"", `,"Guard":"enforce","GuardTrial":0`} {
		l := start(t, lab.Options{Nodes: 3}, `{"Type":"vxlan"`+enforce+`}`+apart)
		first, second, third := l.Nodes[0], l.Nodes[1], l.Nodes[2]
		allReachable(t, l)
		heal := dropping(t, second, "ip saddr "+first.IP4.String()+" udp dport 8472")
		becomes(t, l, first, second, status.OneWay) // whose requests arrive
		becomes(t, l, second, first, status.Unreachable)
		heal()
		allReachable(t, l)
		heal = dropping(t, second, "ip length > 1000 udp dport 8472")
		becomes(t, l, first, second, status.SmallOnly)
		becomes(t, l, second, first, status.SmallOnly)
		becomes(t, l, first, third, status.Reachable)
		heal()
		allReachable(t, l)
		logged(t, first, 0, "cause=peer-mtu")
	}
}

// A node whose own uplink is down says nothing about the others, before and after.
func TestProbesOwnUplink(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2}, `{"Type":"vxlan"}`+apart)
	first, second := l.Nodes[0], l.Nodes[1]
	allReachable(t, l)
	mark := len(first.Log())
	in(t, first.Namespaces, "ip link set eth0 down")
	becomes(t, l, first, second, status.UnknownReach)
	becomes(t, l, second, first, status.Unreachable)
	in(t, first.Namespaces, "ip link set eth0 up; ip route replace default via 192.168.100.1")
	becomes(t, l, first, second, status.Reachable)
	becomes(t, l, second, first, status.Reachable)
	noAlarm(t, l, map[*lab.Node]int{first: mark, second: len(second.Log())})
}

// Without CAP_NET_RAW, or with --probe=false, the daemon works, and says once that it
// probes no peers.
func TestNoProbes(t *testing.T) {
	t.Parallel()
	l := prepare(t, lab.Options{Nodes: 2}, `{"Type":"vxlan"}`+apart)
	first, second := l.Nodes[0], l.Nodes[1]
	must(t, first.StartIn("setpriv", append([]string{"--bounding-set=-net_raw", "--inh-caps=-all", l.Flanneld()}, first.Args()...)...))
	must(t, second.Start("--probe=false"))
	for _, n := range l.Nodes {
		becomesReady(t, n)
	}
	once(t, first, 0, "cause=no-probes")                                    // it tries to open the socket once
	if found := second.Records(0).With("cause=no-probes"); len(found) > 0 { // it does not try
		t.Errorf("logged without reason: %s", found)
	}
	for _, at := range l.Nodes {
		_, body, err := at.Ask(t.Context(), "/metrics")
		must(t, err)
		if reachOf(t, l, first, second) != nil || reachOf(t, l, second, first) != nil || strings.Contains(body, "flanneld_probes_total") {
			t.Error("peers are probed")
		}
	}
}

// A node of flannel is reachable, and the doctor finds nothing wrong with it. If it loses
// its device, that is found and named.
func TestProbesFlannel(t *testing.T) {
	t.Parallel()
	l := prepare(t, lab.Options{Nodes: 2, Family: lab.Dual}, `{"Type":"vxlan"}`)
	ours, flannels := l.Nodes[0], newRelic(l.Nodes[1], 22)
	must(t, ours.Start())
	must(t, ours.Ready(t.Context()))
	flannels.leave(t, l, relicOf(t, l, ours))
	if r := becomes(t, l, ours, flannels.node, status.Reachable); r.Via != status.ViaTunnel {
		t.Errorf("it is probed via %s, at %s", r.Via, r.Target)
	}
	healthy(t, l, ours, flannels.node, "the start")
	noAlarm(t, l, map[*lab.Node]int{}) // probes are missed for longer before there is one: reach.grace
	in(t, flannels.node.Namespaces, "ip link delete flannel.1")
	becomes(t, l, ours, flannels.node, status.Unreachable)
	finds(t, l, ours, "FL602 port-closed")
}

// A Windows host has no address in the overlay, and is asked at its own. The doctor finds
// nothing wrong with it.
func TestProbesWindows(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2, Windows: 1}, mixedVXLAN)
	linux, windows := l.Nodes[0], l.Nodes[1]
	if r := becomes(t, l, linux, windows, status.Unproven); r.Via != status.ViaUnderlay || r.Target != windows.IP4 {
		t.Errorf("it is probed via %s, at %s", r.Via, r.Target)
	}
	healthy(t, l, linux, windows, "the start")
	if found := windows.Records(0).With("cause=no-probes"); len(found) > 0 { // likewise
		t.Errorf("a warning about probes on Windows: %s", found)
	}
}
