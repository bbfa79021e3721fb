package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
)

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
	if backend == "vxlan" {
		ways = append(ways, s.otherAddress(t, pod), s.service(t, pod))
	}
	// A pod of a third node, for which the first node speaks.
	third := s.of(netip.MustParseAddr("10.5.7.7"), netip.MustParseAddr("fd05:0:0:7::7"))
	ways = append(ways, encapsulated(node1.Namespaces, "impostor", node2, netip.Addr{}, third))
	if backend != "udp" { // where flanneld compares the inner source with the peer
		ways = append(ways, encapsulated(node1.Namespaces, "inner", node2, netip.Addr{}, stolen))
	}
	return ways
}

// otherAddress is the way to an address of the second node that is not in its lease. The
// pod's node puts its own address into the packets.
func (s *guardTest) otherAddress(t *testing.T, pod netip.Addr) forged {
	node1, node2 := s.l.Nodes[0], s.l.Nodes[1]
	virtual, ip := s.of(netip.MustParseAddr("192.168.100.222"), netip.MustParseAddr("fd00:100::222")), "ip"
	if s.v6 {
		ip = "ip -6"
	}
	shell(t, node2.Namespaces, "ip addr add %s dev lo nodad", virtual)
	shell(t, node1.Namespaces, "%s route add %s via %s", ip, virtual, s.of(node2.IP4, node2.IP6))
	return s.byPod(t, pod, netip.AddrPortFrom(virtual, 8472))
}

// service is the way by a Service whose endpoint, written by hand, is the port of the
// tunnel on the second node.
func (s *guardTest) service(t *testing.T, pod netip.Addr) forged {
	node1, node2 := s.l.Nodes[0], s.l.Nodes[1]
	cluster, family, brackets := netip.MustParseAddr("10.96.5.5"), "ip", "%s"
	if s.v6 {
		cluster, family, brackets = netip.MustParseAddr("fd96::5"), "ip6", "[%s]"
	}
	to := fmt.Sprintf(brackets+":8472", s.of(node2.IP4, node2.IP6))
	shell(t, node1.Namespaces, `nft add table %[1]s service
		nft add chain %[1]s service in '{ type nat hook prerouting priority dstnat; }'
		nft add rule %[1]s service in %[1]s daddr %[2]s udp dport 53 dnat to %[3]s`, family, cluster, to)
	return s.byPod(t, pod, netip.AddrPortFrom(cluster, 53))
}

// byPod is a way of the first node's pod, which forges a packet of another pod of that
// node.
func (s *guardTest) byPod(t *testing.T, pod netip.Addr, to netip.AddrPort) forged {
	packet := s.encapsulate(t, "vxlan", pod.Next())
	return forged{rule: "pod", from: s.a.Namespaces, at: s.l.Nodes[0],
		send: func(c net.Conn) error { _, err := c.Write(packet); return err },
		conn: func() (net.Conn, error) { return dialFrom(s.a.Namespaces, pod, to) }}
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
		_, err := machine.Until(t.Context(), timeout, func(context.Context) error {
			if n := s.counted(t, w.at, w.rule) - countedBefore; n != uint64(sent) {
				return fmt.Errorf("%s: %d of %d packets are counted", w.rule, n, sent)
			}
			if n := s.received.Load() - before; want > 0 && n != int64(sent) {
				return fmt.Errorf("%s: the victim has received %d of %d packets", w.rule, n, sent)
			}
			return nil
		})
		must(t, err)
	}
	t.Logf("%s: %d packets are counted", w.rule, forgedPackets)
	if n := s.received.Load() - before; n != want {
		t.Errorf("%s: the victim has received %d packets, want %d", w.rule, n, want)
	}
}
