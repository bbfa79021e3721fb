package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
	"flannel/pkg/dataplane"
)

// guardTest is a lab with two nodes and a pod on each. The victim is the pod of the second
// node; the others send to it what they must not.
type guardTest struct {
	l        *lab.Lab
	a, b     *lab.Pod
	v6       bool // IPv6 instead of IPv4
	received atomic.Int64
	port     uint16 // where the victim listens
}

// The guard counts all of what an outsider, a pod and a forging node send, and drops it
// if it enforces. What is legitimate always passes.
func TestGuard(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"vxlan", "udp", "host-gw"} {
		t.Run(backend, func(t *testing.T) { testGuard(t, backend, false) })
	}
	t.Run("vxlan IPv6", func(t *testing.T) { testGuard(t, "vxlan", true) })
}

func testGuard(t *testing.T, backend string, v6 bool) {
	t.Parallel()
	family := lab.V4
	if v6 {
		family = lab.Dual
	}
	s := &guardTest{l: start(t, lab.Options{Nodes: 2, Family: family}, `{"Type":"`+backend+`"}`+apart), v6: v6}
	s.a, s.b = pair(t, s.l)
	must(t, reach(t.Context(), s.a, s.b))
	s.listen(t)
	if backend != "host-gw" {
		s.addThird(t, backend)
	}
	ways := s.ways(t, backend)
	for _, w := range ways {
		if w.closed {
			s.attack(t, w, 0)
		} else {
			s.attack(t, w, forgedPackets)
		}
	}
	s.legitimate(t)
	must(t, s.l.SetConfig(t.Context(), s.l.Config(`{"Type":"`+backend+`","Guard":"enforce","GuardTrial":0}`+apart)))
	for _, n := range s.l.Nodes {
		within(t, n.Name+" enforces", func() error { return s.enforces(t, n) })
	}
	f := flood(t, s.a, s.b)
	for _, w := range ways {
		s.attack(t, w, 0)
	}
	s.legitimate(t)
	if backend == "udp" { // whose packets the daemon forwards
		f.checkNoLoss(t, "the guard enforces")
		s.outlives(t)
	} else {
		s.outlives(t)
		f.checkNoLoss(t, "the guard enforces, the daemon is killed")
	}
	s.repairs(t)
}

// The guard drops nothing as long as it finds packets of a peer, such as one whose
// address is translated, and says which. The operator lists the peer's address.
func TestGuardWaits(t *testing.T) {
	t.Parallel()
	s := &guardTest{l: start(t, lab.Options{Nodes: 2}, `{"Type":"vxlan","Guard":"enforce","GuardTrial":3600}`+apart)}
	s.a, s.b = pair(t, s.l)
	must(t, reach(t.Context(), s.a, s.b))
	s.listen(t)
	n := s.l.Nodes[1]
	ways := s.ways(t, "vxlan")
	translated := ways[slices.IndexFunc(ways, func(w forged) bool { return w.rule == "outsider" })]
	s.attack(t, translated, forgedPackets)
	within(t, "the reason", func() error {
		g := s.guard(t, n)
		if g.Enforce || !strings.Contains(g.Waiting, s.a.IP4.String()) || !strings.Contains(g.Waiting, s.l.Nodes[0].IP4.String()) {
			return fmt.Errorf("the guard is %+v; it should wait because of %s", g, s.a.IP4)
		}
		return nil
	})
	found := logged(t, n, 0, "cause=forged-packet", "rule=outsider", "inside_from="+s.a.IP4.String())
	if len(found) != 1 {
		t.Errorf("%d lines about packets that are alike", len(found))
	}
	within(t, "the doctor's advice", func() error { return says(t, n, "GuardSources", "sh", "-c", s.l.Flanneld()+" doctor || true") })
	must(t, s.l.SetConfig(t.Context(), s.l.Config(`{"Type":"vxlan","Guard":"enforce","GuardTrial":1,"GuardSources":["192.168.100.1"]}`+apart)))
	within(t, "it enforces", func() error { return s.enforces(t, n) })
	c, err := translated.conn()
	must(t, err)
	defer c.Close()
	before := s.received.Load()
	must(t, translated.send(c))
	within(t, "the source on the list passes", func() error {
		if s.received.Load() == before {
			return errors.New("it does not")
		}
		return nil
	})
	s.legitimate(t)
}

// TestForgedFrames shows what there is without a guard: what a host that is no node and a
// pod without privileges send to the tunnel's port arrives with vxlan, and not with
// wireguard.
func TestForgedFrames(t *testing.T) {
	t.Parallel()
	for backend, arrives := range map[string]bool{"vxlan": true, "wireguard": false} {
		t.Run(backend, func(t *testing.T) {
			s := &guardTest{l: start(t, lab.Options{Nodes: 2}, `{"Type":"`+backend+`","Guard":"off"}`+apart)}
			s.a, s.b = pair(t, s.l)
			must(t, reach(t.Context(), s.a, s.b))
			s.listen(t)
			honest, err := dialFrom(s.a.Namespaces, s.a.IP4, netip.AddrPortFrom(s.victim(), s.port))
			must(t, err)
			defer honest.Close()
			for _, w := range s.ways(t, "vxlan") {
				if w.rule != "outsider" && w.rule != "pod" {
					continue
				}
				c, err := w.conn()
				must(t, err)
				defer c.Close()
				want := s.received.Load() + 1
				if arrives {
					want++
				}
				if err := w.send(c); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
					t.Fatal(err)
				}
				_, err = honest.Write([]byte("honest")) // on the same way, and later
				must(t, err)
				within(t, w.rule+": the datagrams arrive", func() error {
					if n := s.received.Load(); n < want {
						return fmt.Errorf("%d of %d", n, want)
					}
					return nil
				})
				if n := s.received.Load(); n != want {
					t.Errorf("%s: %d datagrams arrived, want %d", w.rule, n, want)
				}
			}
		})
	}
}

// counted returns how many packets a rule has found.
func (s *guardTest) counted(t *testing.T, n *lab.Node, rule string) uint64 {
	t.Helper()
	return s.guard(t, n).Packets[rule]
}

func (s *guardTest) guard(t *testing.T, n *lab.Node) dataplane.GuardReport {
	t.Helper()
	r, err := reportOf(t, n)
	must(t, err)
	if r.Guard == nil {
		t.Fatalf("%s has no guard", n.Name)
	}
	if r.Guard.Problem != "" {
		t.Fatalf("the guard of %s: %s", n.Name, r.Guard.Problem)
	}
	return *r.Guard
}

func (s *guardTest) enforces(t *testing.T, n *lab.Node) error {
	if !s.guard(t, n).Enforce {
		return fmt.Errorf("the guard only counts")
	}
	return nil
}

// legitimate sends what must pass, and checks that the guard has counted nothing of it.
func (s *guardTest) legitimate(t *testing.T) {
	t.Helper()
	var before []string
	for _, n := range s.l.Nodes {
		before = append(before, fmt.Sprint(s.guard(t, n).Packets))
	}
	node1, node2 := s.l.Nodes[0], s.l.Nodes[1]
	outside, host1, host2 := s.of(lab.Outside4, lab.Outside6), s.of(node1.IP4, node1.IP6), s.of(node2.IP4, node2.IP6)
	talk(t, s.a, s.b, s.of(s.a.IP4, s.a.IP6), s.victim(), outside)
	for _, way := range []struct {
		from machine.Namespaces
		to   netip.Addr
	}{
		{node1.Namespaces, s.victim()}, // a host to a pod of another node
		{node2.Namespaces, s.victim()}, // a host to its own pod
		{s.b.Namespaces, host1},        // a pod to another host
		{s.b.Namespaces, host2},        // a pod to its own host
		{node1.Namespaces, host2},
	} {
		must(t, way.from.Ping(t.Context(), way.to))
	}
	// A program of a host, bound to the host's own address.
	shell(t, node1.Namespaces, "ping -q -c 1 -W 60 -I %s %s", host1, s.victim())
	for i, n := range s.l.Nodes {
		if after := fmt.Sprint(s.guard(t, n).Packets); after != before[i] {
			t.Errorf("%s counted legitimate packets: %s, before %s", n.Name, after, before[i])
		}
	}
}

// guardTable returns the guard's table of a node without what changes with traffic, and
// without the order in which its sets, counters and chains were made. The order of rules
// stays.
func guardTable(t *testing.T, n *lab.Node) (string, error) {
	out, err := try(t.Context(), n.Namespaces, "nft -s list table inet flannel-guard | "+lab.WithoutSenders)
	_, content, _ := strings.Cut(strings.TrimSuffix(strings.TrimSpace(out), "\n}"), "{\n")
	blocks := strings.Split(content, "\n\n")
	slices.Sort(blocks)
	return strings.Join(blocks, "\n\n"), err
}

// outlives kills and restarts a daemon.
func (s *guardTest) outlives(t *testing.T) {
	n := s.l.Nodes[1]
	want, err := guardTable(t, n)
	must(t, err)
	must(t, n.Kill())
	if left, err := guardTable(t, n); err != nil || left != want {
		t.Errorf("the guard did not outlive the daemon: %v", err)
	}
	must(t, n.Start())
	within(t, "the daemon is ready again", func() error { return n.Ready(t.Context()) })
}

// repairs has others destroy the table.
func (s *guardTest) repairs(t *testing.T) {
	n := s.l.Nodes[1]
	want, err := guardTable(t, n)
	must(t, err)
	set, more := "peers4", "192.0.2.1"
	if s.v6 {
		set, more = "peers6", "2001:db8::1"
	}
	for _, harm := range []string{
		"nft delete table inet flannel-guard",
		"nft flush set inet flannel-guard " + set,
		"nft flush chain inet flannel-guard direct",
		"nft add rule inet flannel-guard prerouting drop",
		"nft add element inet flannel-guard " + set + " '{ " + more + " }'",
	} {
		shell(t, n.Namespaces, "%s", harm)
		within(t, "repaired after "+harm, func() error {
			have, err := guardTable(t, n)
			if err == nil && have != want {
				err = fmt.Errorf("the table is %s\nwant %s", have, want)
			}
			return err
		})
	}
}

// noneForged waits until all nodes know each other, and returns a check that no guard has
// found packets since: all of them are legitimate, and would be lost if it enforced.
func noneForged(t *testing.T, l *lab.Lab) (check func()) {
	t.Helper()
	acquainted(t, l)
	return noneForgedBy(t, slices.DeleteFunc(slices.Clone(l.Nodes), func(n *lab.Node) bool { return n.Windows != nil })...)
}

// noneForgedBy is noneForged for some nodes, which know all that send to them.
func noneForgedBy(t *testing.T, nodes ...*lab.Node) (check func()) {
	t.Helper()
	// By all guards of a node; "": it has none. The counters of nodes that have joined are not those of rules: the guard
	// writes them when it knows the nodes.
	counted := func(n *lab.Node) string {
		out, err := try(context.Background(), n.Namespaces, "nft list counters | awk '/counter/ { rule = $2 } /packets/ && rule !~ /^joined-/ { sum += $2 } END { print sum }'")
		must(t, err)
		return out
	}
	before := map[*lab.Node]string{}
	for _, n := range nodes {
		if before[n] = counted(n); before[n] == "" {
			t.Errorf("%s has no guard", n.Name)
		}
	}
	return func() {
		t.Helper()
		for n, had := range before {
			if has := counted(n); has != had {
				t.Errorf("the guards of %s have found %s packets, before %s", n.Name, has, had)
			}
		}
	}
}
