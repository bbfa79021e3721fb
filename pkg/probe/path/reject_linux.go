package path

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"flannel/pkg/doctor"
)

// packet is what a sniffer has seen, from the IP or ARP header on.
type packet struct {
	data      []byte // valid until the next packet
	etherType uint16 // etherIPv4, …
	outgoing  bool   // it leaves this node
}

// source returns the source of an IP packet.
func source(p packet) (netip.Addr, bool) {
	switch {
	case p.etherType == etherIPv4 && len(p.data) >= 20:
		return netip.AddrFrom4([4]byte(p.data[12:])), true
	case p.etherType == etherIPv6 && len(p.data) >= 40:
		return netip.AddrFrom16([16]byte(p.data[8:])), true
	}
	return netip.Addr{}, false
}

// outer describes the packets of a tunnel to a peer on the underlay. The test of a path
// sniffs them there: packets that leave or arrive (carries), and ICMP errors that answer
// them (rejection).
type outer struct {
	peer     netip.Addr // its public IP
	protocol byte       // of IP
	port     uint16     // of UDP, destination; 0: the protocol has none
}

// rejection returns how an ICMP error that quotes a packet of the tunnel rejects it; "":
// p is something else.
func (o outer) rejection(p packet) string {
	header, icmp := headerLength(o.peer), icmpHeader
	if p.etherType != etherIPv4 && o.peer.Is4() || p.etherType != etherIPv6 && o.peer.Is6() || len(p.data) < header+icmp+header+4 {
		return ""
	}
	m := p.data[header:]
	quoted := m[icmp:]
	// Offsets of the protocol and the destination in a header of IPv4, and below of IPv6.
	protocol, quotedProtocol, dst := p.data[9], quoted[9], quoted[16:20]
	if o.peer.Is6() {
		protocol, quotedProtocol, dst = p.data[6], quoted[6], quoted[24:40]
	}
	isQuoted := protocol == icmpOf(o.peer) && quotedProtocol == o.protocol && string(dst) == string(o.peer.AsSlice()) &&
		(o.port == 0 || binary.BigEndian.Uint16(quoted[header+2:]) == o.port)
	if !isQuoted {
		return ""
	}
	return rejections[[3]byte{icmpOf(o.peer), m[0], m[1]}]
}

// rejections are what types and codes of ICMP errors mean (RFC 792, RFC 1812, RFC 4443).
var rejections = map[[3]byte]string{
	{unix.IPPROTO_ICMP, 3, 2}:  doctor.RejectedClosed, // protocol
	{unix.IPPROTO_ICMP, 3, 3}:  doctor.RejectedClosed, // port
	{unix.IPPROTO_ICMP, 3, 9}:  doctor.RejectedProhibited,
	{unix.IPPROTO_ICMP, 3, 10}: doctor.RejectedProhibited,
	{unix.IPPROTO_ICMP, 3, 13}: doctor.RejectedProhibited,

	{unix.IPPROTO_ICMPV6, 1, 1}: doctor.RejectedProhibited,
	{unix.IPPROTO_ICMPV6, 1, 4}: doctor.RejectedClosed,     // port
	{unix.IPPROTO_ICMPV6, 1, 5}: doctor.RejectedProhibited, // source address
	{unix.IPPROTO_ICMPV6, 1, 6}: doctor.RejectedProhibited, // route
	{unix.IPPROTO_ICMPV6, 4, 1}: doctor.RejectedClosed,     // next header
}

// carries reports whether a packet is one of the tunnel, from the peer or to it.
func (o outer) carries(p packet) bool {
	header := headerLength(o.peer)
	src, ok := source(p)
	if !ok || src.Is4() != o.peer.Is4() || len(p.data) < header+4 {
		return false
	}
	protocol, length := p.data[9], o.peer.BitLen()/8
	if o.peer.Is6() {
		protocol = p.data[6]
	}
	other := p.data[header-2*length : header-length] // the source; the IP header ends with both addresses
	if p.outgoing {
		other = p.data[header-length : header]
	}
	// A WireGuard peer may be behind NAT, so that the port is ours or its.
	return string(other) == string(o.peer.AsSlice()) && protocol == o.protocol &&
		(o.port == 0 || binary.BigEndian.Uint16(p.data[header+2:]) == o.port || binary.BigEndian.Uint16(p.data[header:]) == o.port)
}
