package guard

import (
	"encoding/binary"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"flannel/internal/test/eventually"
	"flannel/pkg/dataplane"
)

// The addresses of this node.
var here4, here6 = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")

// link is a pair of interfaces: what is sent from one of them, this node receives at the
// other one.
type link struct {
	t  *testing.T
	fd int
	to unix.SockaddrLinklayer

	bridge string // of pods; "": there is none
}

func newLink(t *testing.T) *link {
	t.Helper()
	setup := `ip link set lo up; ip link add eth0 type veth peer name far; ip link set eth0 up; ip link set far up
		ip addr add 192.0.2.1/24 dev eth0; ip addr add 2001:db8::1/64 dev eth0 nodad
		sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth0.rp_filter=0
		until ip -6 route show table local | grep -q '^local 2001:db8::1 '; do sleep 0.01; done # the kernel adds it later`
	if out, err := exec.CommandContext(t.Context(), "sh", "-ec", setup).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	far, err := net.InterfaceByName("far")
	if err != nil {
		t.Fatal(err)
	}
	near, err := net.InterfaceByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	l := &link{t: t, to: unix.SockaddrLinklayer{Ifindex: far.Index, Halen: 6, Addr: [8]byte(append(near.HardwareAddr, 0, 0))}}
	if l.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(l.fd) })
	return l
}

func (l *link) send(packet []byte) {
	l.t.Helper()
	to := l.to
	etherType := uint16(unix.ETH_P_IP)
	if packet[0]>>4 == 6 {
		etherType = unix.ETH_P_IPV6
	}
	to.Protocol = binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, etherType))
	if err := unix.Sendto(l.fd, packet, 0, &to); err != nil {
		l.t.Fatal(err)
	}
}

// guard returns a guard that knows some peers.
func (l *link) guard(paths ...*dataplane.Path) *Guard {
	l.t.Helper()
	g, err := New(slog.New(slog.DiscardHandler), "", func() {})
	if err != nil {
		l.t.Fatal(err)
	}
	for _, p := range paths {
		g.Put(dataplane.Want, p)
	}
	return g
}

// completed returns the configuration with what the tests have in common.
func completed(c Config) *Config {
	c.Networks, c.Subnets = prefixes("10.5.0.0/16", "2001:cafe:42::/48"), prefixes("10.5.1.0/24", "2001:cafe:42:1::/64")
	c.Sources, c.Routed = prefixes("198.51.100.0/24"), true
	return &c
}

// apply completes the configuration, and writes the rules. It deletes no peer.
func (l *link) apply(g *Guard, c Config) {
	l.t.Helper()
	if err := g.Apply(l.t.Context(), dataplane.Options{}, completed(c), func() ([]string, error) {
		if l.bridge == "" {
			return nil, nil
		}
		return []string{l.bridge}, nil
	}); err != nil {
		l.t.Fatal(err)
	}
}

// check sends packets, and compares what the guard counts. One of an outsider follows
// each, and is counted after it.
func (l *link) check(g *Guard, when string, c Config, packets ...said) {
	l.t.Helper()
	for _, s := range packets {
		before, _, _ := g.Counts()
		for _, p := range append(c.outer(s), c.outer(said{from: "192.0.2.99", inside: "10.5.2.7"})...) {
			l.send(p)
		}
		want := maps.Clone(before)
		want[outsider]++
		if s.rule != "" {
			want[s.rule]++
		}
		var after map[string]uint64
		eventually.True(l.t, when+s.String()+" is counted", func() bool {
			after, _, _ = g.Counts()
			return after[outsider] >= want[outsider]
		})
		if !maps.Equal(after, want) {
			l.t.Fatalf("%s%s: counted %v, before %v; want rule %q", when, s, after, before, s.rule)
		}
	}
}

// ipPacket returns an IP packet; fragment is the field of IPv4 with that name.
func ipPacket(from, to netip.Addr, protocol byte, payload []byte, fragment uint16) []byte {
	if from.Is6() {
		p := binary.BigEndian.AppendUint16([]byte{0x60, 0, 0, 0}, uint16(len(payload)))
		p = append(append(p, protocol, 64), append(from.AsSlice(), to.AsSlice()...)...)
		return append(p, payload...)
	}
	p := binary.BigEndian.AppendUint16([]byte{0x45, 0}, uint16(20+len(payload)))
	p = binary.BigEndian.AppendUint16(append(p, 0, 7), fragment)
	p = append(append(p, 64, protocol, 0, 0), append(from.AsSlice(), to.AsSlice()...)...)
	binary.BigEndian.PutUint16(p[10:], dataplane.Checksum(p))
	return append(p, payload...)
}

// udpHeader has no checksum.
func udpHeader(port uint16, payload int) []byte {
	p := binary.BigEndian.AppendUint16([]byte{0x12, 0x34}, port)
	return append(binary.BigEndian.AppendUint16(p, uint16(8+payload)), 0, 0)
}
