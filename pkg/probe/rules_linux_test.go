package probe

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"flannel/internal/test/nstest"
	"flannel/pkg/doctor/ruleset"
)

// hosts creates a node, which is the test's own namespace, a peer and a pod. The pod
// network is routed through the node.
const hosts = `
	sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
	link() { # namespace, device, own and other address of both families
		ip netns add $1; ip link add $2 address 02:00:00:00:00:01 type veth peer name eth0 address 02:00:00:00:00:02 netns $1
		ip address add $3/24 dev $2; ip address add $5/64 dev $2 nodad; ip link set $2 up
		ip -n $1 address add $4/24 dev eth0; ip -n $1 address add $6/64 dev eth0 nodad
		ip -n $1 link set lo up; ip -n $1 link set eth0 up
		ip -n $1 route add default via $3; ip -n $1 route add default via $5
		# Rules also drop the messages of neighbour discovery, which would look for a neighbour again after some seconds.
		for a in $4 $6; do ip neigh replace $a lladdr 02:00:00:00:00:02 dev $2 nud permanent; done
		for a in $3 $5; do ip -n $1 neigh replace $a lladdr 02:00:00:00:00:01 dev eth0 nud permanent; done
	}
	link peer eth0 192.168.0.3 192.168.0.4 fd00::3 fd00::4; link pod cni0 10.5.3.1 10.5.3.2 fd05:3::1 fd05:3::2
	ip -n peer address add 10.5.4.2/32 dev lo; ip -n peer address add fd05:4::2/128 dev lo nodad
	ip route add 10.5.4.0/24 via 192.168.0.4; ip route add fd05:4::/64 via fd00::4
	ping -q -c 1 -w 20 192.168.0.4; ping -q -c 1 -w 20 fd00::4; ping -q -c 1 -w 20 10.5.3.2; ping -q -c 1 -w 20 fd05:3::2`

// in opens a socket in a namespace; "": the test's own.
func in(t *testing.T, namespace string, open func() (int, error)) int {
	t.Helper()
	fds, errs := make(chan int, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := error(nil)
		if namespace != "" {
			var file *os.File
			if file, err = os.Open("/run/netns/" + namespace); err == nil {
				err = unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
				_ = file.Close()
			}
		}
		fd := -1
		if err == nil {
			fd, err = open()
		}
		fds <- fd
		errs <- err
	}()
	fd, err := <-fds, <-errs
	if err != nil {
		t.Fatalf("open a socket in %q: %v", namespace, err)
	}
	return fd
}

// way is how a packet goes: from one namespace over the node to another.
type way struct {
	packet   ruleset.Packet
	from, to string // namespaces
	source   netip.Addr
	target   netip.Addr
	hops     []hop
}

// hop is a link: the sender's namespace and device, and the receiver's.
type hop struct{ from, sender, to, receiver string }

var (
	peerToNode = hop{"peer", "eth0", "", "eth0"}
	nodeToPeer = hop{"", "eth0", "peer", "eth0"}
	nodeToPod  = hop{"", "cni0", "pod", "eth0"}
	podToNode  = hop{"pod", "eth0", "", "cni0"}
)

func host(a string) netip.Prefix {
	address := netip.MustParseAddr(a)
	return netip.PrefixFrom(address, address.BitLen())
}

// ways returns the ways of tunnel packets and of pods' packets in a family.
func ways(ipv6 bool) map[string]way {
	node, peer, pod, remote := "192.168.0.3", "192.168.0.4", "10.5.3.2", "10.5.4.2"
	if ipv6 {
		node, peer, pod, remote = "fd00::3", "fd00::4", "fd05:3::2", "fd05:4::2"
	}
	all := map[string]way{
		"in": {ruleset.Packet{Path: ruleset.Incoming, Src: host(peer), Dst: host(node), In: "eth0"},
			"peer", "", netip.MustParseAddr(peer), netip.MustParseAddr(node), []hop{peerToNode}},
		"out": {ruleset.Packet{Path: ruleset.Outgoing, Src: host(node), Dst: host(peer), Out: "eth0"},
			"", "peer", netip.MustParseAddr(node), netip.MustParseAddr(peer), []hop{nodeToPeer}},
		"topod": {ruleset.Packet{Path: ruleset.Forwarded, Src: host(remote), Dst: host(pod), In: "eth0", Out: "cni0"},
			"peer", "pod", netip.MustParseAddr(remote), netip.MustParseAddr(pod), []hop{peerToNode, nodeToPod}},
		"frompod": {ruleset.Packet{Path: ruleset.Forwarded, Src: host(pod), Dst: host(remote), In: "cni0", Out: "eth0"},
			"pod", "peer", netip.MustParseAddr(pod), netip.MustParseAddr(remote), []hop{podToNode, nodeToPeer}},
	}
	for name, w := range all {
		w.packet.Protocol, w.packet.DstPort = unix.IPPROTO_UDP, tunnelPort
		all[name] = w
	}
	return all
}

const tunnelPort = 8472

// delivered sends a datagram from a new port and reports whether it arrives. It does
// not wait for it: the kernel handles packets of one processor in order, so that
// each hop is done when a frame arrives that was sent over it afterwards.
func (w way) delivered(t *testing.T) bool {
	t.Helper()
	receiver := in(t, w.to, func() (int, error) { return bound(w.target, tunnelPort) })
	defer unix.Close(receiver) //nolint:errcheck // a test's socket
	sender := in(t, w.from, func() (int, error) { return bound(w.source, 0) })
	defer unix.Close(sender) //nolint:errcheck // a test's socket
	switch err := unix.Sendto(sender, []byte("x"), 0, sockaddr(w.target, tunnelPort)); {
	case errors.Is(err, unix.EPERM): // dropped on the way out
		return false
	case err != nil:
		t.Fatal(err)
	}
	for _, h := range w.hops {
		h.pass(t)
	}
	_, _, err := unix.Recvfrom(receiver, make([]byte, 8), unix.MSG_DONTWAIT)
	if err != nil && !errors.Is(err, unix.EAGAIN) {
		t.Fatal(err)
	}
	return err == nil
}

func bound(a netip.Addr, port int) (int, error) {
	domain := unix.AF_INET
	if a.Is6() {
		domain = unix.AF_INET6
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	return fd, unix.Bind(fd, sockaddr(a, port))
}

func sockaddr(a netip.Addr, port int) unix.Sockaddr {
	if a.Is6() {
		return &unix.SockaddrInet6{Port: port, Addr: a.As16()}
	}
	return &unix.SockaddrInet4{Port: port, Addr: a.As4()}
}

// experimental is the ether type of a frame that no rule matches (IEEE 802, local
// experimental).
const experimental = 0x88b5

// pass sends a frame over the link and waits until it arrives.
func (h hop) pass(t *testing.T) {
	t.Helper()
	open := func(device string) func() (int, error) {
		return func() (int, error) {
			link, err := net.InterfaceByName(device)
			if err != nil {
				return -1, err
			}
			fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return -1, err
			}
			wait := unix.Timeval{Sec: 60}
			if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
				return -1, err
			}
			return fd, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: bigEndian(experimental), Ifindex: link.Index})
		}
	}
	receiver, sender := in(t, h.to, open(h.receiver)), in(t, h.from, open(h.sender))
	defer unix.Close(receiver) //nolint:errcheck // a test's socket
	defer unix.Close(sender)   //nolint:errcheck // a test's socket
	address, err := unix.Getsockname(sender)
	if err != nil {
		t.Fatal(err)
	}
	link := address.(*unix.SockaddrLinklayer)
	to := &unix.SockaddrLinklayer{Protocol: bigEndian(experimental), Ifindex: link.Ifindex, Halen: 6, Addr: [8]byte{255, 255, 255, 255, 255, 255}}
	if err := unix.Sendto(sender, []byte("fence"), 0, to); err != nil {
		t.Fatal(err)
	}
	if _, _, err := unix.Recvfrom(receiver, make([]byte, 64), 0); err != nil {
		t.Fatalf("a frame does not arrive: %v", err)
	}
}

func bigEndian(v uint16) uint16 { return v>>8 | v<<8 }

// read reads the rules of the host as the doctor gets them.
func read(t *testing.T) *ruleset.Ruleset {
	t.Helper()
	rules := &ruleset.Ruleset{}
	for ipv6, family := range map[bool]string{false: "iptables", true: "ip6tables"} {
		listings, err := iptables(t.Context(), family)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range listings {
			rules.AddIPTables(ipv6, l.Variant, l.Lines)
		}
	}
	text, err := nftables(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := rules.AddNFT([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return rules
}

// clearLegacy returns commands that remove all rules of a program.
func clearLegacy(program string) string {
	return `for table in filter nat mangle raw; do ` + program + ` -t $table -F; ` + program + ` -t $table -X; done; for c in INPUT FORWARD OUTPUT; do ` + program + ` -P $c ACCEPT; done`
}

// TestRulesAgainstKernel compares the evaluation of rules with what the kernel does
// with a packet.
func TestRulesAgainstKernel(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var set unix.CPUSet
		if err := unix.SchedGetaffinity(0, &set); err != nil {
			t.Fatal(err)
		}
		for cpu, first := 0, true; cpu < 1024; cpu++ { // see delivered
			if set.IsSet(cpu) && !first {
				set.Clear(cpu)
			} else if set.IsSet(cpu) {
				first = false
			}
		}
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			t.Fatal(err)
		}
		sh(t, hosts)
		for _, c := range ruleCases() {
			for _, ipv6 := range []bool{false, true} {
				if c.program != "" && ipv6 != strings.HasPrefix(c.program, "ip6") {
					continue
				}
				sh(t, "nft flush ruleset\n"+c.script(ipv6))
				c.compare(t, ipv6)
				if strings.HasSuffix(c.program, "legacy") {
					sh(t, clearLegacy(c.program))
				}
			}
		}
	})
}

func (c ruleCase) compare(t *testing.T, ipv6 bool) {
	t.Helper()
	w := ways(ipv6)[c.way]
	got := read(t).Evaluate(w.packet)
	delivered := w.delivered(t)
	if got.Verdict != c.want || (got.Verdict == ruleset.Dropped) == delivered && c.want != ruleset.Undecided && c.want != ruleset.Mostly {
		t.Errorf("%s %s, %s, IPv6 %t: evaluated to %v, want %v; delivered: %t; %s %s", c.program, strings.Join(strings.Fields(strings.TrimPrefix(c.rules, "table inet mine {\n"+sets)), " "), c.way, ipv6, got.Verdict, c.want, delivered, got.Rule, got.Reason)
	}
}
