package guard

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"flannel/internal/test/eventually"
	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
)

// A Service may have endpoints that somebody wrote by hand: the port of the tunnel on a
// node. What kube-proxy's rules do then is done here by those of the node.
const services = `sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
	ip link add cni0 type veth peer name pod; ip link set cni0 up; ip link set pod up; sysctl -qw net.ipv4.conf.cni0.rp_filter=0
	ip addr add 10.5.1.1/24 dev cni0; ip addr add 2001:cafe:42:1::1/64 dev cni0 nodad
	mac=02:00:00:00:00:99
	for a in 192.0.2.2 192.0.2.3 192.0.2.200; do ip neigh add $a lladdr $mac dev eth0; done
	for a in 2001:db8::2 2001:db8::200; do ip neigh add $a lladdr $mac dev eth0; done
	ip route add 10.5.0.0/16 via 192.0.2.2; ip -6 route add 2001:cafe:42::/48 via 2001:db8::2
	nft -f - <<'R'
	table inet services {
		chain in {
			type nat hook prerouting priority dstnat
			ip daddr 10.96.0.1 udp dport != 0 dnat ip to 192.0.2.2:8472
			ip daddr 10.96.0.2 udp dport != 0 dnat ip to 192.0.2.1:8472
			ip daddr 10.96.0.3 udp dport != 0 dnat ip to 192.0.2.200:8472
			ip daddr 192.0.2.1 udp dport 30001 dnat ip to 192.0.2.2:8472
			ip daddr 192.0.2.1 udp dport 30002 dnat ip to 192.0.2.1:8472
			ip6 daddr fd96::1 udp dport != 0 dnat ip6 to [2001:db8::2]:8472
		}
		chain out { type nat hook postrouting priority srcnat; oifname "eth0" masquerade; }
	}
	table inet witness {
		counter passed { }
		chain arrives { type filter hook input priority 250; udp dport 8472 counter name passed; }
		chain leaves { type filter hook postrouting priority 250; udp dport 8472 counter name passed; }
	}
R
`

// way is a datagram of vxlan.
type way struct {
	what     string
	pod      bool // from the pod's interface
	from, to string
	port     uint16
	vni      uint32
	inside   string // source of the packet inside
	rule     string // that finds it; "": none
}

var ways = []way{
	{"to a node", true, "10.5.1.7", "192.0.2.2", 8472, 1, "10.5.1.8", rulePod},
	{"to another address of a node", true, "10.5.1.7", "192.0.2.200", 8472, 1, "10.5.1.8", rulePod},
	{"to another address of a node by IPv6", true, "2001:cafe:42:1::7", "2001:db8::200", 8472, 1, "2001:cafe:42:1::8", rulePod},
	{"to this node", true, "10.5.1.7", "192.0.2.1", 8472, 1, "10.5.2.8", rulePod},
	{"to the bridge", true, "10.5.1.7", "10.5.1.1", 8472, 1, "10.5.2.8", rulePod},
	{"by a Service of another port", true, "10.5.1.7", "10.96.0.1", 53, 1, "10.5.1.8", rulePod},
	{"by a Service of the same port", true, "10.5.1.7", "10.96.0.1", 8472, 1, "10.5.1.8", rulePod},
	{"by a Service that leads to this node", true, "10.5.1.7", "10.96.0.2", 53, 1, "10.5.2.8", rulePod},
	{"by a Service that leads to another address of a node", true, "10.5.1.7", "10.96.0.3", 53, 1, "10.5.1.8", rulePod},
	{"by a Service of IPv6", true, "2001:cafe:42:1::7", "fd96::1", 53, 1, "2001:cafe:42:1::8", rulePod},
	{"an overlay of pods", true, "10.5.1.7", "10.5.2.7", 8472, 1, "172.16.0.1", ""},
	{"an overlay with another VNI", true, "10.5.1.7", "192.0.2.2", 8472, 2, "172.16.0.1", ""},

	{"a node's port that leads to a node, a pod of this one", false, "192.0.2.3", "192.0.2.1", 30001, 1, "10.5.1.8", impostor},
	{"a node's port that leads to a node, this one itself", false, "192.0.2.3", "192.0.2.1", 30001, 1, "192.0.2.1", impostor},
	{"a node's port that leads to a node, a pod of its own", false, "192.0.2.3", "192.0.2.1", 30001, 1, "10.5.3.8", ""},
	{"a node's port that leads to this one, from an outsider", false, "192.0.2.9", "192.0.2.1", 30002, 1, "10.5.2.8", outsider},
	{"a node's port that leads to this one, another's pod", false, "192.0.2.3", "192.0.2.1", 30002, 1, "10.5.2.8", impostor},
	{"from a peer", false, "192.0.2.3", "192.0.2.1", 8472, 1, "10.5.3.8", ""},
	{"a router of two nodes", false, "192.0.2.3", "192.0.2.2", 8472, 1, "10.5.3.8", ""},
}

// A packet of the tunnel is judged by the destination that it gets in the end, and by the
// source that it had at first. Audit counts each once, and drops none.
func TestTranslated(t *testing.T) {
	for mode, enforce := range map[string]bool{"audit": false, "enforce": true} {
		t.Run(mode, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				l := newLink(t)
				if out, err := exec.CommandContext(t.Context(), "sh", "-ec", services).CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				pod := &link{t: t, fd: l.fd, to: unix.SockaddrLinklayer{Ifindex: index(t, "pod").Index, Halen: 6, Addr: [8]byte(append(index(t, "cni0").HardwareAddr, 0, 0))}}
				g := l.guard(paths...)
				l.bridge = "cni0"
				l.apply(g, Config{Outer: overVXLAN, Enforce: enforce})
				for _, w := range ways {
					l.checkWay(g, pod, w, w.rule == "" || !enforce)
				}
			})
		})
	}
}

// checkWay sends a datagram, and compares what the guard counts and whether it passes.
func (l *link) checkWay(g *Guard, pod *link, w way, passes bool) {
	l.t.Helper()
	from, to, inside := netip.MustParseAddr(w.from), netip.MustParseAddr(w.to), netip.MustParseAddr(w.inside)
	s := said{inside: w.inside}
	packet := append(frame(w.vni, s, inside.Is6()), ipPacket(inside, inside, unix.IPPROTO_UDP, make([]byte, 8), 0)...)
	datagram := append(udpHeader(w.port, len(packet)), packet...)
	if from.Is6() {
		checksum6(from, to, datagram)
	}
	want, _, _ := g.Counts()
	passed := l.passed()
	if w.rule != "" {
		want[w.rule]++
	}
	if passes {
		passed++
	}
	out := l
	if w.pod {
		out = pod
	}
	out.send(ipPacket(from, to, unix.IPPROTO_UDP, datagram, 0))
	eventually.Nil(l.t, w.what, func() error {
		have, _, _ := g.Counts()
		if got := l.passed(); !maps.Equal(have, want) || got != passed {
			return fmt.Errorf("counted %v, passed %d; want %v, %d", have, got, want, passed)
		}
		return nil
	})
}

// passed returns how many datagrams to the port have passed all rules.
func (l *link) passed() (n int) {
	l.t.Helper()
	out, err := exec.CommandContext(l.t.Context(), "nft", "list", "counter", "inet", "witness", "passed").CombinedOutput()
	if err != nil {
		l.t.Fatalf("%v: %s", err, out)
	}
	fields := strings.Fields(string(out))
	for i, f := range fields {
		if f == "packets" {
			for _, digit := range fields[i+1] {
				n = 10*n + int(digit-'0')
			}
		}
	}
	return n
}

func index(t *testing.T, name string) *net.Interface {
	t.Helper()
	i, err := net.InterfaceByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// checksum6 completes a datagram of IPv6.
func checksum6(from, to netip.Addr, datagram []byte) {
	pseudo := append(append(from.AsSlice(), to.AsSlice()...), 0, 0, byte(len(datagram)>>8), byte(len(datagram)), 0, 0, 0, unix.IPPROTO_UDP)
	binary.BigEndian.PutUint16(datagram[6:], dataplane.Checksum(append(pseudo, datagram...)))
}
