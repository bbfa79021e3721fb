package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
	"flannel/pkg/status"
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

// forged is a way to send into the pod network.
type forged struct {
	rule string // that finds it
	from machine.Namespaces
	at   *lab.Node // that has to find it
	send func(c net.Conn) error
	// closed means that the victim receives nothing even without a guard.
	closed bool
	conn   func() (net.Conn, error)
}

// forgedPackets is how many packets each way sends.
const forgedPackets = 1000

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

// of selects the address of the family in use.
func (s *guardTest) of(v4, v6 netip.Addr) netip.Addr {
	if s.v6 {
		return v6
	}
	return v4
}

func (s *guardTest) victim() netip.Addr { return s.of(s.b.IP4, s.b.IP6) }

// base returns the base address of the subnet in the key of a lease.
func (s *guardTest) base(t *testing.T, key string) netip.Addr {
	t.Helper()
	if !s.v6 {
		return address(t, key)
	}
	_, key, found := strings.Cut(key, "&")
	text, _, ofSubnet := strings.Cut(key, "-")
	a, err := netip.ParseAddr(text)
	if !found || !ofSubnet || err != nil {
		t.Fatalf("the key of the lease is %s: %v", key, err)
	}
	return a
}

// addThird publishes the lease of a third node.
func (s *guardTest) addThird(t *testing.T, backend string) {
	t.Helper()
	key, v := "10.5.7.0-24", &value{PublicIP: "192.168.100.77", BackendType: backend}
	switch backend {
	case "udp":
		v.BackendType = ""
	case "vxlan":
		v.BackendData = &vtep{1, "02:cc:00:00:00:07"}
	}
	if s.v6 {
		six := "fd00:100::77"
		key, v.PublicIPv6, v.BackendV6Data = key+"&fd05:0:0:7::-64", &six, &vtep{1, "02:cc:00:00:06:07"}
	}
	putLease(t, s.l, key, v)
	for _, n := range s.l.Nodes {
		within(t, n.Name+" has a path to the third node", func() error { return says(t, n, "10.5.7.0/24", s.l.Flanneld(), "status", "--peers") })
	}
}

// listen counts the datagrams that the victim receives.
func (s *guardTest) listen(t *testing.T) {
	var c *net.UDPConn
	must(t, s.b.Do(func() (err error) { c, err = net.ListenUDP("udp", nil); return err }))
	s.port = uint16(c.LocalAddr().(*net.UDPAddr).Port)
	t.Cleanup(func() { c.Close() })
	go func() {
		for buf := make([]byte, 2048); ; {
			if _, _, err := c.ReadFromUDP(buf); err != nil {
				return
			}
			s.received.Add(1)
		}
	}()
}

func (s *guardTest) ways(t *testing.T, backend string) []forged {
	node1, node2 := s.l.Nodes[0], s.l.Nodes[1]
	inSubnetOf := func(n *lab.Node, host byte) netip.Addr {
		key, _ := leaseOf(t, s.l, n)
		b := s.base(t, key).AsSlice()
		b[len(b)-1] = host
		a, _ := netip.AddrFromSlice(b)
		return a
	}
	node, router := s.of(node2.IP4, node2.IP6), "ip"
	if s.v6 {
		router = "ip -6"
	}
	// An address of the second node's pods, which the first node's pod and a host beside the nodes claim.
	stolen := inSubnetOf(node2, 200)
	foreign := s.of(netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("2001:db8::7"))
	// With this preferred lifetime, nobody uses an address unless he asks for it.
	shell(t, s.a.Namespaces, "for a in %s %s; do ip addr add $a dev eth0 nodad preferred_lft 0; done", stolen, foreign)
	shell(t, s.l.Infra.Namespaces, "ip addr add %s dev lo nodad; %s route add %s via %s", stolen, router, s.victim(), node)
	plain := func(from machine.Namespaces) func() (net.Conn, error) {
		return func() (net.Conn, error) { return dialFrom(from, stolen, netip.AddrPortFrom(s.victim(), s.port)) }
	}
	write := func(c net.Conn) error { _, err := c.Write([]byte("forged")); return err }
	ways := []forged{
		{rule: "spoofed", from: s.a.Namespaces, at: node1, send: write, conn: plain(s.a.Namespaces)},
		{rule: "spoofed", from: s.l.Infra.Namespaces, at: node2, send: write, conn: plain(s.l.Infra.Namespaces)},
		{rule: "spoofed", from: s.a.Namespaces, at: node1, send: write, conn: func() (net.Conn, error) {
			return dialFrom(s.a.Namespaces, foreign, netip.AddrPortFrom(node, 9))
		}, closed: true}, // to a port where nobody listens
	}
	if backend == "host-gw" {
		return ways
	}
	outer := netip.AddrPortFrom(node, 8472)
	if backend == "udp" {
		outer = netip.AddrPortFrom(node, 8285)
	}
	encapsulated := func(from machine.Namespaces, rule string, at *lab.Node, outerSource, source netip.Addr) forged {
		packet := s.encapsulate(t, backend, source)
		// For udp, flanneld compares address and port of the sender with the peer that has the inner source.
		// With ipip, a pod's packet would get the addresses of the node's own tunnel, and the connection tracking of the
		// kernel, which knows no ports there, drops it.
		return forged{rule: rule, from: from, at: at, closed: backend == "udp" || backend == "ipip" && rule == "pod",
			send: func(c net.Conn) error { _, err := c.Write(packet); return err },
			conn: func() (net.Conn, error) {
				if backend == "ipip" {
					return dialIP(from, node)
				}
				return dialFrom(from, outerSource, outer)
			}}
	}
	pod := s.of(s.a.IP4, s.a.IP6)
	ways = append(ways,
		encapsulated(s.l.Infra.Namespaces, "outsider", node2, netip.Addr{}, pod),
		encapsulated(s.a.Namespaces, "pod", node1, pod, pod))
	// A pod of a third node, for which the first node speaks.
	third := s.of(netip.MustParseAddr("10.5.7.7"), netip.MustParseAddr("fd05:0:0:7::7"))
	ways = append(ways, encapsulated(node1.Namespaces, "impostor", node2, netip.Addr{}, third))
	if backend != "udp" { // where flanneld compares the inner source with the peer
		ways = append(ways, encapsulated(node1.Namespaces, "inner", node2, netip.Addr{}, stolen))
	}
	return ways
}

// attack sends packets, waits until the guard has counted all, and checks how many the
// victim has received: want is none or all.
func (s *guardTest) attack(t *testing.T, w forged, want int64) {
	t.Helper()
	c, err := w.conn()
	must(t, err)
	defer c.Close()
	before, countedBefore := s.received.Load(), s.counted(t, w.at, w.rule)
	for sent := 1; sent <= forgedPackets; sent++ {
		if err := w.send(c); err != nil && !errors.Is(err, unix.ECONNREFUSED) { // an answer to an earlier packet
			t.Fatal(err)
		}
		if sent%100 != 0 { // no queue holds all of them, nor does the victim's socket
			continue
		}
		within(t, fmt.Sprintf("%s: %d packets are counted", w.rule, sent), func() error {
			if n := s.counted(t, w.at, w.rule) - countedBefore; n != uint64(sent) {
				return fmt.Errorf("%d of %d packets are counted", n, sent)
			}
			if n := s.received.Load() - before; want > 0 && n != int64(sent) {
				return fmt.Errorf("the victim has received %d of %d packets", n, sent)
			}
			return nil
		})
	}
	if n := s.received.Load() - before; n != want {
		t.Errorf("%s: the victim has received %d packets, want %d", w.rule, n, want)
	}
}

// counted returns how many packets a rule has found.
func (s *guardTest) counted(t *testing.T, n *lab.Node, rule string) uint64 {
	t.Helper()
	return s.guard(t, n).Packets[rule]
}

func (s *guardTest) guard(t *testing.T, n *lab.Node) status.Guard {
	t.Helper()
	var r status.Report
	must(t, json.Unmarshal([]byte(shell(t, n.Namespaces, "%s status --json || true", s.l.Flanneld())), &r))
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
		_, err := way.from.Ping(t.Context(), way.to)
		must(t, err)
	}
	// A program of a host, bound to the host's own address.
	shell(t, node1.Namespaces, "ping -q -c 1 -W 10 -I %s %s", host1, s.victim())
	for i, n := range s.l.Nodes {
		if after := fmt.Sprint(s.guard(t, n).Packets); after != before[i] {
			t.Errorf("%s counted legitimate packets: %s, before %s", n.Name, after, before[i])
		}
	}
}

// guardTable returns the guard's table of a node without the values of counters.
func guardTable(t *testing.T, n *lab.Node) (string, error) {
	return try(t.Context(), n.Namespaces, "nft -s list table inet flannel-guard")
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
		"nft flush chain inet flannel-guard outer",
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

// noneForged returns a check that no guard has found packets since: all of them are
// legitimate, and would be lost if it enforced.
func noneForged(t *testing.T, l *lab.Lab) (check func()) {
	t.Helper()
	return noneForgedBy(t, slices.DeleteFunc(slices.Clone(l.Nodes), func(n *lab.Node) bool { return n.Windows != nil })...)
}

// noneForgedBy is noneForged for some nodes.
func noneForgedBy(t *testing.T, nodes ...*lab.Node) (check func()) {
	t.Helper()
	counted := func(n *lab.Node) string { // by all guards of a node; "": it has none
		out, err := try(context.Background(), n.Namespaces, "nft list counters | awk '/packets/ { sum += $2 } END { print sum }'")
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
