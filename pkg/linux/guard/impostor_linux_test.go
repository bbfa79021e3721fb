package guard

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
)

// A packet from a peer and what is inside of it. Without a rule, nothing finds it.
type said struct {
	what         string
	from, inside string
	service      bool   // what is inside is for a Service, else for a pod
	tag          uint16 // type of a tag of the frame; 0: none
	etherType    uint16 // 0: that of the packet
	before       int    // bytes of options of IPv6 in front of the header of a fragment
	behind       int    // and behind it
	first        int    // bytes behind the IP header of a first fragment, which others follow; 0: it is whole
	rule         string
}

// Peers 2 and 3 have subnets of the usual length, peer 4 a longer one and another source.
var paths = []*dataplane.Path{
	path("10.5.2.0/24", "192.0.2.2"), path("2001:cafe:42:2::/64", "2001:db8::2"),
	path("10.5.3.0/24", "192.0.2.3"), path("2001:cafe:42:3::/64", "2001:db8::3"),
	path("10.5.4.128/25", "192.0.2.4", "203.0.113.9"), path("2001:cafe:42:4:8000::/65", "2001:db8::4", "2001:db8:1::9"),
}

func path(dst, via string, sources ...string) *dataplane.Path {
	p := &dataplane.Path{Dst: netip.MustParsePrefix(dst), Via: netip.MustParseAddr(via), Encap: dataplane.VTEP{}}
	var all []netip.Addr
	for _, s := range sources {
		all = append(all, netip.MustParseAddr(s))
	}
	p.Sources = dataplane.SourcesOf(all...)
	return p
}

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// A peer speaks for its own pods and for itself, whatever way its packets take.
func TestImpostor(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		l := newLink(t)
		four := []said{
			{what: "its pod", from: "192.0.2.2", inside: "10.5.2.7"},
			{what: "its tunnel", from: "192.0.2.2", inside: "10.5.2.0"},
			{what: "itself", from: "192.0.2.2", inside: "192.0.2.2"},
			{what: "another's pod", from: "192.0.2.2", inside: "10.5.3.7", rule: impostor},
			{what: "another's tunnel", from: "192.0.2.3", inside: "10.5.2.0", rule: impostor},
			{what: "another node", from: "192.0.2.2", inside: "192.0.2.3", rule: impostor},
			{what: "nobody's pod", from: "192.0.2.2", inside: "10.5.77.7", rule: impostor},
			{what: "a pod in half of a subnet", from: "192.0.2.4", inside: "10.5.4.200"},
			{what: "a pod in the other half", from: "192.0.2.4", inside: "10.5.4.100", rule: impostor},
			{what: "a pod, by the other source", from: "203.0.113.9", inside: "10.5.4.200"},
			{what: "the other source itself", from: "203.0.113.9", inside: "203.0.113.9"},
			{what: "the node, by the other source", from: "203.0.113.9", inside: "192.0.2.4"},
			{what: "another's pod, by the other source", from: "203.0.113.9", inside: "10.5.2.7", rule: impostor},
			{what: "the other source, by another", from: "192.0.2.2", inside: "203.0.113.9", rule: impostor},
			{what: "anything, by a listed source", from: "198.51.100.1", inside: "10.5.2.7"},
			{what: "a listed source", from: "192.0.2.2", inside: "198.51.100.1"},
			{what: "a pod of this node, which the rule inner finds", from: "192.0.2.2", inside: "10.5.1.7"},
			{what: "elsewhere, which the rule inner finds", from: "192.0.2.2", inside: "198.18.0.1"},
			{what: "its pod, to a Service", from: "192.0.2.2", inside: "10.5.2.7", service: true},
			{what: "another's pod, to a Service", from: "192.0.2.2", inside: "10.5.3.7", service: true, rule: impostor},
			{what: "another node, to a Service", from: "192.0.2.2", inside: "192.0.2.3", service: true, rule: impostor},
			{what: "no peer", from: "192.0.2.9", inside: "10.5.2.7", rule: outsider},
			{what: "no peer, a pod to a Service", from: "192.0.2.9", inside: "10.5.2.7", service: true, rule: outsider},
			{what: "no peer, a pod of this node to a Service", from: "192.0.2.9", inside: "10.5.1.7", service: true, rule: outsider},
			{what: "no peer, a node to a Service", from: "192.0.2.9", inside: "192.0.2.2", service: true, rule: outsider},
			{what: "no peer, a listed source to a Service", from: "192.0.2.9", inside: "198.51.100.1", service: true, rule: outsider},
			{what: "no peer, without a header", from: "192.0.2.9", inside: "10.5.2.7", first: 8, rule: outsider},
			// The kernel reassembles IPv4 before the rules see it.
			{what: "a fragment without a header", from: "192.0.2.2", inside: "10.5.2.7", first: 8},
			{what: "a fragment with a half", from: "192.0.2.2", inside: "10.5.3.7", first: 16, rule: impostor},
			{what: "a usual fragment", from: "192.0.2.2", inside: "10.5.2.7", first: 560},
			{what: "another's pod, in a usual fragment", from: "192.0.2.2", inside: "10.5.3.7", first: 560, rule: impostor},
		}
		six := []said{
			{what: "its pod", from: "2001:db8::2", inside: "2001:cafe:42:2::7"},
			{what: "itself", from: "2001:db8::2", inside: "2001:db8::2"},
			{what: "another's pod", from: "2001:db8::2", inside: "2001:cafe:42:3::7", rule: impostor},
			{what: "another node", from: "2001:db8::2", inside: "2001:db8::3", rule: impostor},
			{what: "a pod in half of a subnet", from: "2001:db8::4", inside: "2001:cafe:42:4:8000::7"},
			{what: "a pod in the other half", from: "2001:db8::4", inside: "2001:cafe:42:4::7", rule: impostor},
			{what: "a pod, by the other source", from: "2001:db8:1::9", inside: "2001:cafe:42:4:8000::7"},
			{what: "another's pod, by the other source", from: "2001:db8:1::9", inside: "2001:cafe:42:2::7", rule: impostor},
			{what: "no peer", from: "2001:db8::9", inside: "2001:cafe:42:2::7", rule: outsider},
			{what: "no peer, without a header", from: "2001:db8::9", inside: "2001:cafe:42:2::7", first: 8, rule: outsider},
			{what: "a fragment without a header", from: "2001:db8::2", inside: "2001:cafe:42:2::7", first: 8, rule: impostor},
			{what: "a usual fragment", from: "2001:db8::2", inside: "2001:cafe:42:2::7", first: 560},
			{what: "no peer, options in front of a fragment", from: "2001:db8::9", inside: "2001:cafe:42:2::7", first: 8, before: 256, rule: outsider},
			{what: "no peer, options in a fragment", from: "2001:db8::9", inside: "2001:cafe:42:2::7", first: 8, behind: 256, rule: outsider},
			{what: "options in front of a fragment", from: "2001:db8::2", inside: "2001:cafe:42:2::7", first: 8, before: 256, rule: impostor},
			{what: "options in a fragment", from: "2001:db8::2", inside: "2001:cafe:42:2::7", first: 8, behind: 256, rule: impostor},
		}
		frames := []said{
			{what: "an IPv6 pod of its own by IPv4", from: "192.0.2.2", inside: "2001:cafe:42:2::7", rule: impostor},
			{what: "an IPv4 pod of its own by IPv6", from: "2001:db8::2", inside: "10.5.2.7", rule: impostor},
			{what: "a frame with a tag", from: "192.0.2.2", inside: "10.5.2.7", tag: unix.ETH_P_8021Q, rule: impostor},
			{what: "a frame with an outer tag", from: "192.0.2.2", inside: "10.5.2.7", tag: unix.ETH_P_8021AD, rule: impostor},
			{what: "no IP", from: "192.0.2.2", inside: "10.5.3.7", etherType: unix.ETH_P_ARP},
		}
		for name, test := range map[string]struct {
			c     Config
			cases []said
		}{
			"vxlan": {Config{Outer: overVXLAN}, slices.Concat(four, six, frames)},
			"udp":   {Config{Outer: overUDP}, four},
			"ipip":  {Config{Outer: overIPIP}, four},
			"GRE":   {Config{Outer: dataplane.Traits{Protocol: unix.IPPROTO_GRE, Header: 4}}, four}, // as a kind would have it
		} {
			g := l.guard(paths...)
			l.apply(g, test.c)
			for _, s := range test.cases {
				l.check(g, name+": ", test.c, s)
			}
			if err := g.Apply(t.Context(), dataplane.Options{}, nil, nil); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A subnet that moves belongs to both nodes until the former one is removed, also for a
// daemon that was started meanwhile. A peer with a subnet of another length may appear, and
// one may disappear while no daemon runs.
func TestOwnersFollowLeases(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		l := newLink(t)
		c := Config{Outer: overVXLAN}
		former, next := path("10.5.2.0/24", "192.0.2.2"), path("10.5.2.0/24", "192.0.2.3")
		odd := path("10.5.64.0/20", "192.0.2.5")
		by := func(from, inside, rule string) said { return said{what: "now", from: from, inside: inside, rule: rule} }
		six := path("2001:cafe:42:3::/64", "2001:db8::3")
		g := l.guard(former, path("10.5.3.0/24", "192.0.2.3"), six, path("2001:cafe:42:9::/64", "2001:db8::9"))
		l.apply(g, c)
		l.check(g, "at first: ", c, by("192.0.2.2", "10.5.2.7", ""), by("192.0.2.3", "10.5.2.7", impostor))
		g.Put(dataplane.Want, odd)
		l.apply(g, c)
		l.check(g, "another length: ", c, by("192.0.2.5", "10.5.79.7", ""), by("192.0.2.5", "10.5.80.7", impostor))
		g.Put(dataplane.Drop, former)
		g.Put(dataplane.Want, next)
		g.Put(dataplane.Drop, odd)
		l.apply(g, c)
		both := []said{
			by("192.0.2.2", "10.5.2.7", ""), by("192.0.2.3", "10.5.2.7", ""), by("192.0.2.5", "10.5.79.7", ""),
			by("2001:db8::3", "2001:cafe:42:3::7", ""), by("2001:db8::9", "2001:cafe:42:9::7", ""),
		}
		l.check(g, "it has moved: ", c, both...)
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		g = l.guard(next, path("10.5.3.0/24", "192.0.2.3"), six)
		l.apply(g, c)
		l.check(g, "after a restart: ", c, both...)
		if err := g.Prune(t.Context(), dataplane.Options{}); err != nil {
			t.Fatal(err)
		}
		l.check(g, "at last: ", c, by("192.0.2.2", "10.5.2.7", outsider), by("192.0.2.3", "10.5.2.7", ""), by("192.0.2.5", "10.5.79.7", outsider),
			by("2001:db8::3", "2001:cafe:42:3::7", ""), by("2001:db8::9", "2001:cafe:42:9::7", outsider))
		// No path needs sets for the length of odd any more.
		sets, err := g.conn.GetSets(g.table)
		if err != nil {
			t.Fatal(err)
		}
		for _, set := range sets {
			if m, isNetworks := maskOf(set.Name); isNetworks && m.bits == 20 {
				t.Errorf("set %s is left", set.Name)
			}
		}
		g.Relist()
		l.apply(g, c)
		for _, table := range g.tables() {
			if repaired := table.TakeRepairs(); repaired.Entries != 0 {
				t.Errorf("%s: %d entries differ from what the kernel has: %v", table.Name(), repaired.Entries, repaired.First)
			}
		}
	})
}

// outer returns the packets that a peer sends: one, or two fragments.
func (c Config) outer(s said) [][]byte {
	d := c.datagram(s)
	if s.first == 0 {
		return [][]byte{ipPacket(d.from, d.to, d.protocol, d.payload, 0)}
	}
	first := s.first
	if s.behind > 0 {
		d.putOptions(s.behind)
		first += s.behind
	}
	return [][]byte{d.part(0, first), d.part(first, len(d.payload))}
}

// datagram is an outer packet of which fragments can be sent.
type datagram struct {
	from, to netip.Addr
	protocol byte // of what the payload begins with
	payload  []byte
	id       uint16
	before   int // bytes of options of IPv6 in front of the header of a fragment
}

// datagram returns the whole outer packet that a peer sends. Its UDP header has a checksum
// only with IPv6.
func (c Config) datagram(s said) datagram {
	from, inside := netip.MustParseAddr(s.from), netip.MustParseAddr(s.inside)
	pod, to := netip.MustParseAddr("10.5.1.9"), here4
	switch {
	case s.service:
		pod = netip.MustParseAddr("10.96.0.1")
	case inside.Is6():
		pod = netip.MustParseAddr("2001:cafe:42:1::9")
	}
	if from.Is6() {
		to = here6
	}
	o, payload := c.Outer, ipPacket(inside, pod, unix.IPPROTO_UDP, make([]byte, 8+s.first), 0)
	switch {
	case o.VNI != 0:
		payload = append(frame(o.VNI, s, inside.Is6()), payload...)
		fallthrough
	case o.Port != 0:
		payload = append(udpHeader(o.Port, len(payload)), payload...)
	default:
		payload = append(make([]byte, o.Header), payload...)
	}
	if from.Is6() {
		checksum6(from, to, payload)
	}
	return datagram{from, to, o.Protocol, payload, 7, s.before}
}

// Headers of IPv6 (RFC 8200).
const (
	fragmentable = 44
	options      = 60
)

// putOptions puts a header of options of IPv6 in front of the payload.
func (d *datagram) putOptions(bytes int) {
	d.payload, d.protocol = append(padding(d.protocol, bytes), d.payload...), options
}

// part returns the fragment with some bytes of the payload.
func (d datagram) part(start, end int) []byte {
	part, more := d.payload[start:end], end < len(d.payload)
	if !d.from.Is6() {
		bits := uint16(start / 8)
		if more {
			bits |= 0x2000
		}
		p := ipPacket(d.from, d.to, d.protocol, part, bits)
		binary.BigEndian.PutUint16(p[4:], d.id)
		binary.BigEndian.PutUint16(p[10:], 0)
		binary.BigEndian.PutUint16(p[10:], dataplane.Checksum(p[:20]))
		return p
	}
	bits := uint16(start)
	if more {
		bits |= 1
	}
	p := binary.BigEndian.AppendUint16([]byte{d.protocol, 0}, bits)
	p = append(binary.BigEndian.AppendUint16(append(p, 0, 0), d.id), part...)
	if d.before == 0 {
		return ipPacket(d.from, d.to, fragmentable, p, 0)
	}
	return ipPacket(d.from, d.to, options, append(padding(fragmentable, d.before), p...), 0)
}

// padding is a header of options of IPv6 that every receiver skips: they are of an
// experimental type (RFC 4727).
func padding(next byte, bytes int) []byte {
	header := []byte{next, byte(bytes/8 - 1)}
	for len(header) < bytes {
		const most = 255
		length := min(bytes-len(header)-2, most)
		header = append(append(header, 0x1e, byte(length)), make([]byte, length)...)
	}
	return header
}

// frame returns the headers of VXLAN and Ethernet.
func frame(vni uint32, s said, v6 bool) []byte {
	p := binary.BigEndian.AppendUint32([]byte{8, 0, 0, 0}, vni<<8)
	p = append(p, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9)
	etherType := uint16(unix.ETH_P_IP)
	if v6 {
		etherType = unix.ETH_P_IPV6
	}
	if s.etherType != 0 {
		etherType = s.etherType
	}
	if s.tag != 0 {
		p = append(binary.BigEndian.AppendUint16(p, s.tag), 0, 0)
	}
	return binary.BigEndian.AppendUint16(p, etherType)
}

func (s said) String() string { return fmt.Sprintf("%s (%s from %s)", s.what, s.inside, s.from) }
