package firewall

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flannel/internal/test/nstest"
	"flannel/pkg/firewall"
)

// The test's own namespace is a node with the subnet 10.5.34.0/24. A pod of it, a peer with a pod of its own and a
// machine outside of the cluster are namespaces beside it. Marks are set by another program, as kube-proxy does.
const topology = `
	sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0
	for n in pod:10.5.34:2001:cafe:42:1 peer:172.16.0:fd00:16 outside:192.168.7:fd00:7; do
		name=${n%%:*}; rest=${n#*:}; four=${rest%%:*}; six=${rest#*:}
		ip netns add $name
		ip link add $name type veth peer name eth0 netns $name
		ip addr add $four.1/24 dev $name; ip addr add $six::1/64 dev $name nodad; ip link set $name up
		ip -n $name addr add $four.2/24 dev eth0; ip -n $name addr add $six::2/64 dev eth0 nodad
		ip -n $name link set lo up; ip -n $name link set eth0 up
		ip -n $name route add default via $four.1; ip -n $name route add default via $six::1
		until ip -6 route show table local | grep -q "^local $six::1 "; do sleep 0.01; done # the kernel adds it later
		until ip -n $name -6 route show table local | grep -q "^local $six::2 "; do sleep 0.01; done
	done
	ip -n peer addr add 10.5.99.2/32 dev lo; ip -n peer addr add 2001:cafe:42:99::2/128 dev lo nodad
	ip route add 10.5.99.0/24 via 172.16.0.2; ip route add 2001:cafe:42:99::/64 via fd00:16::2
	nft -f - <<-E
	table inet marks {
		chain prerouting {
			type filter hook prerouting priority mangle;
			udp dport 4000 meta mark set 0x4000
			udp dport 4001 meta mark set 0xc001
			udp dport 4002 meta mark set 0x8000
		}
	}
	E`

// in runs f on a thread in the named network namespace; a socket opened there stays there.
func in[T any](t *testing.T, name string, f func() (T, error)) T {
	t.Helper()
	type result struct {
		value T
		err   error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		var r result
		if name != "node" {
			var file *os.File
			if file, r.err = os.Open("/run/netns/" + name); r.err == nil {
				r.err = unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
				file.Close()
			}
		}
		if r.err == nil {
			r.value, r.err = f()
		}
		done <- r
	}()
	r := <-done
	if r.err != nil {
		t.Fatalf("in %s: %v", name, r.err)
	}
	return r.value
}

type flow struct {
	name           string
	from, to       string // namespaces
	source, target string
	port           int
	seen           string // source that the target sees
}

var flows = []flow{
	{"pod to outside", "pod", "outside", "10.5.34.2", "192.168.7.2", 1000, "192.168.7.1"},
	{"pod to remote pod", "pod", "peer", "10.5.34.2", "10.5.99.2", 1000, "10.5.34.2"},
	{"remote pod to pod", "peer", "pod", "10.5.99.2", "10.5.34.2", 1000, "10.5.99.2"},
	{"host to remote pod", "node", "peer", "192.168.7.1", "10.5.99.2", 1000, "172.16.0.1"},
	{"outside to local pod", "outside", "pod", "192.168.7.2", "10.5.34.2", 1000, "192.168.7.2"},
	{"outside to remote pod through this node", "outside", "peer", "192.168.7.2", "10.5.99.2", 1000, "172.16.0.1"},
	{"kube-proxy's mark", "pod", "outside", "10.5.34.2", "192.168.7.2", 4000, "10.5.34.2"},
	{"kube-proxy's mark among others", "pod", "outside", "10.5.34.2", "192.168.7.2", 4001, "10.5.34.2"},
	{"another mark", "pod", "outside", "10.5.34.2", "192.168.7.2", 4002, "192.168.7.1"},
	{"IPv6, pod to outside", "pod", "outside", "2001:cafe:42:1::2", "fd00:7::2", 1000, "fd00:7::1"},
	{"IPv6, pod to remote pod", "pod", "peer", "2001:cafe:42:1::2", "2001:cafe:42:99::2", 1000, "2001:cafe:42:1::2"},
	{"IPv6, host to remote pod", "node", "peer", "fd00:7::1", "2001:cafe:42:99::2", 1000, "fd00:16::1"},
	{"IPv6, outside to local pod", "outside", "pod", "fd00:7::2", "2001:cafe:42:1::2", 1000, "fd00:7::2"},
	{"IPv6, outside to remote pod", "outside", "peer", "fd00:7::2", "2001:cafe:42:99::2", 1000, "fd00:16::1"},
	{"IPv6, kube-proxy's mark", "pod", "outside", "2001:cafe:42:1::2", "fd00:7::2", 4001, "2001:cafe:42:1::2"},
}

// send sends one datagram of a new connection and returns the source address that arrives.
func (f flow) send(t *testing.T, receiver *net.UDPConn) (netip.Addr, error) {
	t.Helper()
	local := net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(f.source), 0))
	remote := net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(f.target), uint16(f.port)))
	sender := in(t, f.from, func() (*net.UDPConn, error) { return net.DialUDP("udp", local, remote) })
	defer sender.Close()
	if _, err := sender.Write([]byte("x")); err != nil {
		return netip.Addr{}, err
	}
	receiver.SetReadDeadline(time.Now().Add(patience))
	_, from, err := receiver.ReadFromUDPAddrPort(make([]byte, 10))
	return from.Addr().Unmap(), err
}

func (f flow) listen(t *testing.T) *net.UDPConn {
	t.Helper()
	addr := net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(f.target), uint16(f.port)))
	return in(t, f.to, func() (*net.UDPConn, error) { return net.ListenUDP("udp", addr) })
}

func TestSameTrafficSameSource(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		sh(t, topology)
		for _, s := range []seen{seenTables, seenNFT, seenLegacy} {
			sh(t, s.setup)
			if s.writer == firewall.IPTables { // an accept of nftables overrules no other table
				sh(t, s.name+" -P FORWARD DROP; ip6tables"+s.name[len("iptables"):]+" -P FORWARD DROP")
			}
			f := open(t, 0)
			apply(t, f, both(s.writer))
			for _, flow := range flows {
				receiver := flow.listen(t)
				got, err := flow.send(t, receiver)
				if err != nil {
					t.Fatalf("%s: %s: %v\n%s", s.name, flow.name, err, everything(t))
				} else if got.String() != flow.seen {
					t.Errorf("%s: %s: comes from %v, want %s", s.name, flow.name, got, flow.seen)
				}
				receiver.Close()
			}
			f.Close()
			if s.writer == firewall.IPTables {
				sh(t, s.name+" -P FORWARD ACCEPT; ip6tables"+s.name[len("iptables"):]+" -P FORWARD ACCEPT")
			}
		}
	})
}

// New connections are made as fast as possible while the daemon restarts, mends and switches writers: each of them is
// masqueraded, none is dropped.
func TestNoConnectionEscapesMasquerade(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		sh(t, topology)
		f := open(t, 0)
		apply(t, f, both(firewall.IPTables))
		f.Close()
		done := make(chan error, 1)
		go func() { done <- restarts() }()
		flow := flows[0]
		receiver := flow.listen(t)
		defer receiver.Close()
		for sent := 1; ; sent++ {
			got, err := flow.send(t, receiver)
			if err != nil {
				t.Fatalf("datagram %d: %v", sent, err)
			}
			if got.String() != flow.seen {
				t.Fatalf("datagram %d comes from %v: not masqueraded", sent, got)
			}
			select {
			case err := <-done:
				if err != nil {
					t.Error(err)
				}
				t.Logf("%d connections during 60 restarts, all masqueraded", sent)
				return
			default:
			}
		}
	})
}

// restarts applies, each time with a new Firewall, configurations that write other rules or by the other writer.
func restarts() error {
	for i := range 60 {
		writer := []firewall.Writer{firewall.IPTables, firewall.IPTables, firewall.NFTables, firewall.NFTables}[i%4]
		c := both(writer)
		c.RandomFully = i%2 == 0
		f, err := New(firewall.Options{Log: quiet})
		if err != nil {
			return err
		}
		_, err = f.Apply(context.Background(), c)
		f.Close()
		if err != nil {
			return fmt.Errorf("restart %d: %w", i, err)
		}
	}
	return nil
}
