package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"flannel/cmd/flannel-lab/lab"
	"flannel/pkg/doctor"
)

const enforcing = `{"Type":"vxlan","Guard":"enforce","GuardTrial":0}` + apart

// A node whose tunnel's packets are translated tells the others from where they come.
func TestGuardTranslatedPeer(t *testing.T) {
	t.Parallel()
	s := &guardTest{l: start(t, lab.Options{Nodes: 2}, enforcing)}
	n, other := s.l.Nodes[0], s.l.Nodes[1]
	s.a, s.b = pair(t, s.l)
	must(t, reach(t.Context(), s.a, s.b))
	const source = "192.168.100.98"
	shell(t, n.Namespaces, `nft add table ip translate
		nft add chain ip translate out '{ type filter hook postrouting priority 300; }'
		nft add rule ip translate out udp dport 8472 ip saddr set %s`, source)
	before := s.counted(t, other, "outsider")
	within(t, "what comes from the other address is dropped", func() error {
		s.a.Answers(t.Context(), s.b.IP4)
		if s.counted(t, other, "outsider") == before {
			return fmt.Errorf("nothing is")
		}
		return nil
	})
	within(t, "the doctor's advice", func() error {
		return says(t, other, "--tunnel-source", "sh", "-c", s.l.Flanneld()+" doctor || true")
	})
	stopped(t, n)
	must(t, n.Start("--tunnel-source="+source))
	must(t, n.Ready(t.Context()))
	_, value := leaseOf(t, s.l, n)
	var lease struct{ BackendData struct{ Sources []string } }
	must(t, json.Unmarshal([]byte(value), &lease))
	if len(lease.BackendData.Sources) != 1 || lease.BackendData.Sources[0] != source {
		t.Errorf("the lease is %s; want the source %s", value, source)
	}
	within(t, "the other node knows the source", func() error {
		return says(t, other, source, "nft", "list", "set", "inet", "flannel-guard", "peers4")
	})
	check := noneForged(t, s.l)
	f := flood(t, s.a, s.b)
	s.listen(t)
	s.legitimate(t)
	s.outlives(t)
	f.checkNoLoss(t, "a translated peer")
	check()
}

// A node of flannel, by the entries that flannel makes, behind guards that enforce.
func TestGuardWithFlannel(t *testing.T) {
	t.Parallel()
	l := prepare(t, lab.Options{Nodes: 2, Family: lab.Dual}, enforcing)
	ours, flannels := l.Nodes[0], newRelic(l.Nodes[1], 22)
	must(t, ours.Start())
	must(t, ours.Ready(t.Context()))
	flannels.leave(t, l, relicOf(t, l, ours))
	a, b := pair(t, l)
	waitSynced(t, l, ours)
	within(t, "the guard enforces", func() error { return (&guardTest{l: l}).enforces(t, ours) })
	check := noneForgedBy(t, ours)
	must(t, reach(t.Context(), a, b))
	f := flood(t, a, b)
	s := &guardTest{l: l, a: a, b: b}
	for _, v6 := range []bool{false, true} {
		s.v6 = v6
		pod, host := s.of(a.IP4, a.IP6), s.of(flannels.node.IP4, flannels.node.IP6)
		must(t, flannels.node.Ping(t.Context(), pod)) // by flannel's host, from its tunnel
		shell(t, flannels.node.Namespaces, "ping -q -c 1 -W 60 -I %s %s", host, pod)
		must(t, a.Ping(t.Context(), host))
		must(t, ours.Ping(t.Context(), s.of(b.IP4, b.IP6)))
	}
	// Peers come and go, and the daemon is killed.
	third := stranger(ours, 23)
	for range 3 {
		third.publish(t, l)
		within(t, "the third node is a peer", func() error { return says(t, ours, third.four, l.Flanneld(), "status", "--peers") })
		_, err := etcdClient(t, l).Delete(t.Context(), subnetKeys+third.key())
		must(t, err)
		within(t, "the third node is gone", func() error { return silent(t, ours, third.four, "ip", "route") })
	}
	must(t, ours.Kill())
	must(t, ours.Start())
	within(t, "the daemon is ready again", func() error { return ours.Ready(t.Context()) })
	f.checkNoLoss(t, "flannel's pods and ours")
	check()
}

// A subnet moves to another node at once: the key of a node that has died gets the
// address of another one. The guards take the subnet's pods from the new node, and no
// longer from the former one, and packets between other nodes are not lost.
func TestGuardSubnetMoves(t *testing.T) {
	t.Parallel()
	l := prepare(t, lab.Options{Nodes: 4}, enforcing)
	s := &guardTest{l: l}
	former, next := l.Nodes[2], l.Nodes[3]
	for _, n := range l.Nodes[:3] {
		must(t, n.Start())
		must(t, n.Ready(t.Context()))
		within(t, n.Name+" enforces", func() error { return s.enforces(t, n) })
	}
	s.a, s.b = pair(t, l)
	c := pod(t, former, "c")
	must(t, reach(t.Context(), s.a, s.b))
	must(t, reach(t.Context(), s.b, c))
	acquainted(t, l)
	check := noneForgedBy(t, l.Nodes[:2]...)
	f := flood(t, s.a, s.b)
	key, _ := leaseOf(t, l, former)
	must(t, former.Kill())
	putLease(t, l, key, &value{PublicIP: next.IP4.String(), BackendType: "vxlan", BackendData: &vtep{1, "02:cc:00:00:00:04"}})
	for _, n := range l.Nodes[:2] {
		within(t, n.Name+" knows the new node", func() error {
			return says(t, n, next.IP4.String(), "nft", "list", "set", "inet", "flannel-guard", "owners4-24")
		})
	}
	must(t, next.Start())
	must(t, next.Ready(t.Context()))
	if has, _ := leaseOf(t, l, next); has != key {
		t.Fatalf("the new node has subnet %s, not %s", has, key)
	}
	d := pod(t, next, "d")
	must(t, reach(t.Context(), d, s.a))
	must(t, reach(t.Context(), s.b, d))
	f.checkNoLoss(t, "a subnet moves to another node")
	check()
	before := s.counted(t, l.Nodes[1], "outsider")
	within(t, "pods of the former node are dropped", func() error {
		if c.Answers(t.Context(), s.b.IP4) {
			t.Fatal("a pod of the former node gets an answer") // the guard has had the new node from the start
		}
		if s.counted(t, l.Nodes[1], "outsider") == before {
			return errors.New("none is")
		}
		return nil
	})
}

// A node joins while another one reads no leases, whose guard counts its probes. Nobody is
// warned of these, but of other packets.
func TestGuardNodeJoins(t *testing.T) {
	t.Parallel()
	l := prepare(t, lab.Options{Nodes: 2}, `{"Type":"vxlan"}`+apart)
	s := &guardTest{l: l}
	n, joining := l.Nodes[0], l.Nodes[1]
	must(t, n.Start())
	must(t, n.Ready(t.Context()))
	stopped(t, n)
	must(t, joining.Start())
	must(t, joining.Ready(t.Context()))
	within(t, "its probes are counted", func() error {
		_, err := try(t.Context(), n.Namespaces, "nft list counter inet flannel-guard counted-outsider | awk '$1 == \"packets\" { n = $2 } END { exit n < 3 }'")
		return err
	})
	must(t, n.Start())
	must(t, n.Ready(t.Context()))
	hasPeers(t, n, 1)
	within(t, "all that was counted is of a node that has joined", func() error {
		if g := s.guard(t, n); g.Packets["outsider"] < 3 || g.Joined["outsider"] != g.Packets["outsider"] {
			return fmt.Errorf("packets that were counted: %v; those of them of nodes that have joined: %v", g.Packets, g.Joined)
		}
		return nil
	})
	logged(t, n, 0, "cause=packets-of-joined-nodes", "node="+joining.IP4.String())
	check := func(want doctor.Verdict) {
		t.Helper()
		_, all := causes(t, l, n)
		if !slices.ContainsFunc(all, func(r doctor.Result) bool { return r.Code == "FL211" && r.Verdict == want }) {
			t.Errorf("want FL211 to be %s: %+v", want, all)
		}
	}
	check(doctor.OK)
	s.a, s.b = pair(t, l)
	c, err := dialFrom(l.Infra.Namespaces, netip.Addr{}, netip.AddrPortFrom(n.IP4, 8472))
	must(t, err)
	defer c.Close()
	before := s.counted(t, n, "outsider")
	_, err = c.Write(s.encapsulate(t, "vxlan", s.b.IP4))
	must(t, err)
	within(t, "a packet of an outsider is counted", func() error {
		if s.counted(t, n, "outsider") == before {
			return errors.New("it is not")
		}
		return nil
	})
	check(doctor.Warn)
}

// relicOf describes one of our nodes to flannel.
func relicOf(t *testing.T, l *lab.Lab, n *lab.Node) *relic {
	t.Helper()
	key, text := leaseOf(t, l, n)
	var v value
	must(t, json.Unmarshal([]byte(text), &v))
	four, six, _ := strings.Cut(key, "&")
	return &relic{node: n, four: strings.TrimSuffix(four, ".0-24"), six: strings.TrimSuffix(six, "::-64"),
		mac: v.BackendData.VtepMAC, mac6: v.BackendV6Data.VtepMAC}
}
