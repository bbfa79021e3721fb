package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"flannel/cmd/flannel-lab/lab"
)

// tunDevice describes what flanneld has made for the udp backend.
func tunDevice(ctx context.Context, n *lab.Node) (string, error) {
	out, err := try(ctx, n.Namespaces, `for d in $(ls /sys/class/net | grep "^flannel"); do ip -br -4 addr show $d | sed "s/UNKNOWN//"; cat /sys/class/net/$d/mtu; done
		ip route show root 10.5.0.0/16 proto 70; grep MTU /run/flannel/subnet.env`)
	return words(out), err
}

func wantTUN(t *testing.T, l *lab.Lab, n *lab.Node) string {
	t.Helper()
	key, _ := leaseOf(t, l, n)
	return words(fmt.Sprintf("flannel0 %s/32\n1472\n10.5.0.0/16 dev flannel0 scope link\nFLANNEL_MTU=1472", address(t, key)))
}

// Pods of three nodes with guards that drop packets, with a configuration that names
// no backend, as some clusters of flannel have.
func TestUDP(t *testing.T) {
	t.Parallel()
	l := bare(t, lab.Options{Nodes: 3})
	must(t, l.SetConfig(t.Context(), `{"Network":"10.5.0.0/16","Guard":"enforce","GuardTrial":0}`))
	must(t, l.StartAll(t.Context()))
	a, b := pair(t, l)
	c := pod(t, l.Nodes[2], "c")
	talk(t, a, b, a.IP4, b.IP4, lab.Outside4)
	talk(t, c, a, c.IP4, a.IP4, lab.Outside4)
	inFullSize(t, a, b, "1472")
	n := l.Nodes[0]
	loggedNaming(t, n, 0, "config-warning", "msg", "Backend.Type", "udp")
	if _, value := leaseOf(t, l, n); value != fmt.Sprintf(`{"PublicIP":"%s","PublicIPv6":null}`, n.IP4) {
		t.Errorf("the lease is not like flannel's: %s", value)
	}
	eventually(t, "device, address, route and MTU", wantTUN(t, l, n), func(ctx context.Context) (string, error) { return tunDevice(ctx, n) })

	t.Run("hops", func(t *testing.T) {
		for _, n := range l.Nodes {
			within(t, n.Name+" drops forged packets", func() error { return (&guardTest{l: l}).enforces(t, n) })
		}
		check := noneForged(t, l)
		for ttl, hop := range map[int]string{2: tunAddress(t, l, n), 3: tunAddress(t, l, l.Nodes[1])} {
			out, err := try(t.Context(), a.Namespaces, "ping -c 1 -W 60 -t %d %s || true", ttl, b.IP4)
			if err != nil || !strings.Contains(out, "From "+hop) {
				t.Errorf("TTL %d: %v %s; want an answer from %s", ttl, err, out, hop)
			}
		}
		// The first subnet of the network is never leased.
		out, err := try(t.Context(), a.Namespaces, "ping -c 1 -W 60 10.5.0.1 || true")
		if err != nil || !strings.Contains(out, "Net Unreachable") {
			t.Errorf("a subnet that nobody has: %v %s", err, out)
		}
		check()
	})
	t.Run("drift", func(t *testing.T) { udpDrift(t, l, n, a, b) })
	t.Run("restart", func(t *testing.T) { udpRestart(t, l, n, a, b) })
	t.Run("switch", func(t *testing.T) { udpSwitch(t, l, a, b) })
}

// tunAddress is the address of a node's TUN device.
func tunAddress(t *testing.T, l *lab.Lab, n *lab.Node) string {
	t.Helper()
	key, _ := leaseOf(t, l, n)
	return address(t, key).String()
}

func udpDrift(t *testing.T, l *lab.Lab, n *lab.Node, a, b *lab.Pod) {
	want := wantTUN(t, l, n)
	for _, drift := range []string{
		"ip link del flannel0", "ip link set flannel0 down", "ip addr flush dev flannel0", "ip addr add 10.5.250.1/32 dev flannel0",
		"ip link set flannel0 mtu 1300", "ip route del 10.5.0.0/16", "ip route replace 10.5.0.0/16 dev eth0",
	} {
		shell(t, n.Namespaces, "%s", drift)
		took := eventually(t, drift, want, func(ctx context.Context) (string, error) { return tunDevice(ctx, n) })
		must(t, reach(t.Context(), a, b))
		t.Logf("%-40s repaired after %v", drift, took.Round(time.Millisecond))
	}
}

// However the daemon ends, its device stays, and pods are reached again as soon
// as it has started.
func udpRestart(t *testing.T, l *lab.Lab, n *lab.Node, a, b *lab.Pod) {
	const identity = "cat /sys/class/net/flannel0/ifindex; ip -4 -br addr show flannel0 | cut -c30-; ip route show 10.5.0.0/16 | sed 's/ linkdown//'"
	before := shell(t, n.Namespaces, identity)
	for _, way := range []struct {
		name string
		end  func() error
	}{{"kill -9", n.Kill}, {"stop", func() error { _, err := n.Stop(t.Context()); return err }}} {
		name, end := way.name, way.end
		flood, err := a.Flood(b.IP4, 200)
		must(t, err)
		must(t, end())
		if after := shell(t, n.Namespaces, identity); after != before {
			t.Errorf("%s: without flanneld, the device is\n%s, was\n%s", name, after, before)
		}
		began := time.Now()
		must(t, n.Start())
		reaches(t, name, a, b.IP4)
		back := time.Since(began)
		result, err := flood.Stop()
		must(t, err)
		t.Logf("%s: reached %v after the start, longest outage %v", name, back.Round(time.Millisecond), result.Outage)
		must(t, n.Ready(t.Context()))
		if after := shell(t, n.Namespaces, identity); after != before {
			t.Errorf("%s: after the restart, the device is\n%s, was\n%s", name, after, before)
		}
	}
}

// The other backends follow live, and nothing is left of udp, nor of them.
func udpSwitch(t *testing.T, l *lab.Lab, a, b *lab.Pod) {
	for _, n := range l.Nodes {
		_, err := n.Stop(t.Context())
		must(t, err)
		must(t, n.Start(atOnce))
	}
	n := l.Nodes[0]
	for _, c := range []struct{ backend, devices string }{
		{`{"Type":"vxlan"}`, "flannel.1"}, {`{"Type":"udp"}`, "flannel0"}, {`{"Type":"host-gw"}`, ""}, {`{"Type":"udp","Port":9000}`, "flannel9000"}, {`{"Type":"udp"}`, "flannel0"},
	} {
		must(t, l.SetConfig(t.Context(), l.Config(c.backend)))
		counts := "0 0 2" // of TUN devices, routes of the network, nexthop objects
		if strings.Contains(c.backend, "udp") {
			counts = "1 1 0"
		}
		eventually(t, c.backend, strings.TrimSpace(c.devices+" "+counts), func(ctx context.Context) (string, error) {
			out, err := try(ctx, n.Namespaces, `ls /sys/class/net | grep ^flannel || true; ip -o link show type tun | wc -l
				ip route show 10.5.0.0/16 proto 70 | wc -l; ip nexthop show proto 70 | wc -l`)
			return strings.Join(strings.Fields(out), " "), err
		})
		must(t, reach(t.Context(), a, b))
	}
	_, err := n.Stop(t.Context())
	must(t, err)
	out, err := n.Run(t.Context(), l.Flanneld(), "cleanup")
	if left := shell(t, n.Namespaces, "ls /sys/class/net | grep ^flannel || true; ip route show root 10.5.0.0/16 proto 70"); err != nil || left != "" || !strings.Contains(out, "flannel0") {
		t.Errorf("cleanup: %v %s; left are\n%s", err, out, left)
	}
}

// TestUDPForeignPeer stands for a node with flannel: a UDP socket that sends and
// receives IP packets, and a lease that has an address and nothing else. Beside
// it are leases and datagrams that must not be accepted.
func TestUDPForeignPeer(t *testing.T) {
	t.Parallel()
	l := prepare(t, lab.Options{Nodes: 2}, `{"Type":"udp"}`+apart)
	n, foreign := l.Nodes[0], l.Nodes[1]
	must(t, n.Start())
	must(t, n.Ready(t.Context()))
	a := pod(t, n, "a")
	const subnet, base = "10.5.200.0-24", "10.5.200."
	client := etcdClient(t, l)
	put := func(key, value string) {
		t.Helper()
		_, err := client.Put(t.Context(), subnetKeys+key, value)
		must(t, err)
	}
	put(subnet, fmt.Sprintf(`{"PublicIP":"%s","PublicIPv6":null}`, foreign.IP4))
	put("10.5.201.0-24", `{"PublicIP":"192.168.100.251","PublicIPv6":null}`)
	put("10.5.202.0-24", `{"PublicIP":"192.168.100.252","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:07"}}`)
	loggedNaming(t, n, 0, "peer-rejected", "reason", "vxlan", "udp")

	var peer, stranger *net.UDPConn
	must(t, foreign.Do(func() (err error) {
		if peer, err = net.ListenUDP("udp4", &net.UDPAddr{IP: foreign.IP4.AsSlice(), Port: 8285}); err == nil {
			stranger, err = net.ListenUDP("udp4", &net.UDPAddr{IP: foreign.IP4.AsSlice(), Port: 8286})
		}
		return err
	}))
	defer peer.Close()
	defer stranger.Close()
	answered := make(chan error, 1)
	go func() { answered <- answerPings(peer) }()
	reaches(t, "the foreign peer answers", a, netip.MustParseAddr(base+"9"))
	must(t, peer.SetReadDeadline(time.Now()))
	<-answered

	to := &net.UDPAddr{IP: n.IP4.AsSlice(), Port: 8285}
	good := echoRequest(netip.MustParseAddr(base+"9"), a.IP4)
	for _, c := range []struct {
		reason   string
		from     *net.UDPConn
		datagram []byte
	}{
		{"foreign", stranger, good},
		{"foreign", peer, echoRequest(netip.MustParseAddr("10.5.201.9"), a.IP4)},
		{"foreign", peer, echoRequest(netip.MustParseAddr("8.8.8.8"), a.IP4)},
		{"malformed", peer, []byte("garbage")},
		{"malformed", peer, nil},
		{"malformed", peer, good[:30]},
		{"expired", peer, sealed(append(append([]byte{}, good[:8]...), append([]byte{1}, good[9:]...)...))},
	} {
		before := droppedPackets(t, n, c.reason)
		_, err := c.from.WriteToUDP(c.datagram, to)
		must(t, err)
		within(t, "a datagram is dropped as "+c.reason, func() error {
			if now := droppedPackets(t, n, c.reason); now != before+1 {
				return fmt.Errorf("%v are counted, before %v", now, before)
			}
			return nil
		})
	}
	_, err := peer.WriteToUDP(good, to)
	must(t, err)
	must(t, peer.SetReadDeadline(time.Now().Add(timeout)))
	reply := make([]byte, 2000)
	for { // an answer to the expired packet may come first
		size, from, err := peer.ReadFromUDPAddrPort(reply)
		must(t, err)
		if size > 20 && reply[20] == 0 && from == netip.AddrPortFrom(n.IP4, 8285) {
			break
		}
	}
}
