package guard

import (
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flannel/internal/test/eventually"
	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
)

// division is a way to divide a datagram.
type division struct {
	what    string
	parts   [][2]int // first byte of each, and the one behind its last, in the order of sending; 0: the end of the datagram
	before  int      // bytes of options of IPv6 in front of the header of a fragment
	options []int    // sizes of headers of options of IPv6 behind it
	// disguised: the first of the parts has zeros, which another part replaces.
	disguised bool
	// odd: no node divides a datagram like this, so that a rule may find it whoever has sent it.
	odd bool
	// lost: this kernel, or some, may not put the parts together again.
	lost bool
}

var divisions = []division{
	{what: "two parts", parts: [][2]int{{0, 560}, {560, 0}}},
	{what: "the last part first", parts: [][2]int{{560, 0}, {0, 560}}},
	{what: "three parts, the first one last", parts: [][2]int{{560, 800}, {800, 0}, {0, 560}}},
	{what: "a part with the ports only", parts: [][2]int{{0, 8}, {8, 0}}, odd: true},
	{what: "a part without the destination inside", parts: [][2]int{{0, 40}, {40, 0}}, odd: true},
	{what: "parts that overlap", parts: [][2]int{{0, 560}, {8, 0}}, disguised: true, odd: true, lost: true},
	{what: "parts that overlap at the start", parts: [][2]int{{0, 560}, {0, 568}, {568, 0}}, disguised: true, odd: true, lost: true},
}

// divisions6 exist only with IPv6.
var divisions6 = []division{
	{what: "one part", parts: [][2]int{{0, 0}}},
	{what: "options in front", parts: [][2]int{{0, 560}, {560, 0}}, before: 16, odd: true, lost: true},
	{what: "options", parts: [][2]int{{0, 560}, {560, 0}}, options: []int{16}, odd: true},
	{what: "a part with options only", parts: [][2]int{{0, 16}, {16, 0}}, options: []int{16}, odd: true, lost: true},
	{what: "a part with half of the options", parts: [][2]int{{0, 8}, {8, 0}}, options: []int{16}, odd: true, lost: true},
	{what: "a part with the first options only", parts: [][2]int{{0, 16}, {16, 0}}, options: []int{16, 16}, odd: true},
	{what: "a long part with the first options only", parts: [][2]int{{0, 512}, {512, 0}}, options: []int{16, 512}, odd: true},
	{what: "a part with half of the first options, others before it", parts: [][2]int{{0, 8}, {8, 0}}, before: 16, options: []int{16, 16}, odd: true},
}

// send sends the parts of a datagram.
func (d division) send(l *link, whole datagram) {
	for _, bytes := range d.options {
		whole.putOptions(bytes)
	}
	whole.before = d.before
	for i, part := range d.parts {
		sent := whole
		if d.disguised && i == 0 {
			sent.payload = make([]byte, len(whole.payload))
		}
		end := part[1]
		if end == 0 {
			end = len(whole.payload)
		}
		l.send(sent.part(part[0], end))
	}
}

// tunnel is the receiving end of a kind of tunnel on this node.
type tunnel struct {
	c                     Config
	peer, other, stranger string // those that send: two peers, and a host that is none
	ofPeer, ofOther       string // a pod of each
	arrived               func() traffic
	divisions             []division
	sent                  *uint16           // number of datagrams, of all tunnels
	unseen                bool              // the rules see fragments, because the kernel puts them together behind the rules
	counted               map[string]uint64 // until the last check
	received              traffic           // likewise
}

// What is forged gets into the tunnel by no division of a datagram, and peers whose datagrams
// are divided as nodes do it are not found: whether the kernel tracks connections,
// and so puts the fragments together in front of the rules, or not.
func TestFragments(t *testing.T) {
	for _, tracked := range []bool{false, true} {
		t.Run(fmt.Sprintf("tracked %t", tracked), func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				l := newLink(t)
				stayOnProcessor(t)
				if tracked {
					nft(t, "table inet tracker { chain packets { type filter hook prerouting priority 0; ct state invalid counter; }; }")
				}
				for name, tun := range l.tunnels() {
					tun.unseen = tun.c.Outer.Protocol == unix.IPPROTO_UDP && netip.MustParseAddr(tun.peer).Is6() && !tracked
					for _, enforce := range []bool{false, true} {
						tun.c.Enforce = enforce
						g := l.guard(paths...)
						l.apply(g, tun.c)
						tun.counted, _, _ = g.Counts()
						for _, d := range tun.divisions {
							tun.check(l, g, fmt.Sprintf("%s, enforce %t: %s", name, enforce, d.what), d)
						}
						if err := g.Apply(t.Context(), dataplane.Options{}, nil, nil); err != nil {
							t.Fatal(err)
						}
						if err := g.Close(); err != nil {
							t.Fatal(err)
						}
					}
				}
			})
		})
	}
}

// traffic is what has come out of a tunnel.
type traffic struct{ packets, bytes uint64 }

// check sends a datagram of each sender, and compares what the guard counts and what arrives.
func (n *tunnel) check(l *link, g *Guard, what string, d division) {
	l.t.Helper()
	for _, s := range []said{
		{what: "a peer", from: n.peer, inside: n.ofPeer},
		{what: "a peer that forges", from: n.peer, inside: n.ofOther, rule: impostor},
		{what: "a stranger", from: n.stranger, inside: n.ofPeer, rule: outsider},
		{what: "a pod", from: n.ofPeer, inside: n.ofPeer, rule: rulePod},
	} {
		const size = 1000
		s.first = size
		*n.sent++
		whole := n.c.datagram(s)
		whole.id = *n.sent
		d.send(l, whole)
		l.send(n.c.outer(said{from: n.other, inside: n.ofOther})[0]) // a short one, which arrives last
		before, arrived := n.received, uint64(0)
		eventually.True(l.t, what+", "+s.what, func() bool {
			n.received = n.arrived()
			arrived = (n.received.bytes - before.bytes) / size
			return n.received.packets-before.packets > arrived
		})
		if d.lost && arrived == 0 { // nothing got in, so that it does not matter what is counted
			n.counted, _, _ = g.Counts()
			continue
		}
		if s.rule == "" && d.odd && n.unseen {
			s.rule = impostor
		}
		want, wantArrived := maps.Clone(n.counted), uint64(1)
		if s.rule != "" {
			want[s.rule]++
			if n.c.Enforce {
				wantArrived = 0
			}
		}
		if n.counted, _, _ = g.Counts(); arrived != wantArrived || !maps.Equal(n.counted, want) {
			l.t.Errorf("%s, from %s: %d arrived, want %d; counted %v, want %v", what, s.what, arrived, wantArrived, n.counted, want)
		}
	}
}

// tunnels returns the tunnels of each kind, whose devices it makes.
func (l *link) tunnels() map[string]*tunnel {
	l.t.Helper()
	sent := new(uint16)
	four := tunnel{sent: sent, peer: "192.0.2.2", other: "192.0.2.3", stranger: "192.0.2.9", ofPeer: "10.5.2.7", ofOther: "10.5.3.7", divisions: divisions}
	six := tunnel{sent: sent, peer: "2001:db8::2", other: "2001:db8::3", stranger: "2001:db8::9", ofPeer: "2001:cafe:42:2::7", ofOther: "2001:cafe:42:3::7",
		divisions: append(divisions[:len(divisions):len(divisions)], divisions6...)}
	vxlan, vxlan6, udp, ipip := four, six, four, four
	vxlan.c = Config{Outer: overVXLAN, Tunnels: []string{"flannel.1"}}
	vxlan6.c = Config{Outer: overVXLAN, Tunnels: []string{"flannel-v6.1"}}
	udp.c, ipip.c = Config{Outer: overUDP}, Config{Outer: overIPIP}
	vxlan.arrived = l.device(&netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "flannel.1"}, VxlanId: 1, SrcAddr: here4.AsSlice(), Port: int(overVXLAN.Port)})
	vxlan6.arrived = l.device(&netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "flannel-v6.1"}, VxlanId: 1, SrcAddr: here6.AsSlice(), Port: int(overVXLAN.Port)})
	udp.arrived = l.datagrams(unix.SOCK_DGRAM, udp.c)
	ipip.arrived = l.datagrams(unix.SOCK_RAW, ipip.c) // few kernels have the device
	return map[string]*tunnel{"vxlan": &vxlan, "vxlan by IPv6": &vxlan6, "udp": &udp, "ipip": &ipip}
}

// device makes a tunnel device, and returns a function for what has come out of it.
func (l *link) device(dev netlink.Link) (arrived func() traffic) {
	l.t.Helper()
	if err := netlink.LinkAdd(dev); err != nil {
		l.t.Fatal(err)
	}
	if err := netlink.LinkSetUp(dev); err != nil {
		l.t.Fatal(err)
	}
	return func() traffic {
		made, err := netlink.LinkByName(dev.Attrs().Name)
		if err != nil {
			l.t.Fatal(err)
		}
		return traffic{made.Attrs().Statistics.RxPackets, made.Attrs().Statistics.RxBytes}
	}
}

// datagrams receives from a socket, of a kind such as unix.SOCK_DGRAM. It returns what tells
// what has arrived there.
func (l *link) datagrams(kind int, c Config) (arrived func() traffic) {
	l.t.Helper()
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(c.Outer.Protocol))
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: int(c.Outer.Port), Addr: here4.As4()}); err != nil {
		l.t.Fatal(err)
	}
	var all traffic
	return func() traffic {
		for buf := make([]byte, 1<<16); ; all.packets++ {
			size, err := unix.Read(fd, buf)
			if err != nil { // usually that nothing more is there
				return all
			}
			all.bytes += uint64(size)
		}
	}
}

// stayOnProcessor makes the calling goroutine stay on one processor, so that the packets
// which it sends arrive in the order of sending.
func stayOnProcessor(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	var may, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		t.Fatal(err)
	}
	for cpu := 0; one.Count() == 0; cpu++ {
		if may.IsSet(cpu) {
			one.Set(cpu)
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
}
