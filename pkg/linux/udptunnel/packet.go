package udptunnel

import (
	"encoding/binary"

	"flannel/pkg/dataplane"
)

// Lengths and offsets in bytes, and values, of IPv4 (RFC 791) and ICMP (RFC 792).
const (
	ipHeader   = 20 // without options
	icmpHeader = 8

	lengthAt   = 2
	fragmentAt = 6
	ttlAt      = 8
	protocolAt = 9
	checksumAt = 10
	sourceAt   = 12
	destAt     = 16

	fragmentOffset = 0x1fff // of the field at fragmentAt
	protocolICMP   = 1

	defaultTTL = 64
)

// packet is an IPv4 packet of a pod whose header was checked (parse): the content of a
// datagram, or what the device has read.
type packet []byte

// parse checks the header of a packet and its length. It returns nil for what is not
// an IPv4 packet. The result is b itself; the methods of packet rely on what parse has checked.
func parse(b []byte) packet {
	if len(b) < ipHeader || b[0]>>4 != 4 {
		return nil
	}
	header := int(b[0]&0xf) * 4
	if header < ipHeader || header > len(b) || int(binary.BigEndian.Uint16(b[lengthAt:])) != len(b) || dataplane.Checksum(b[:header]) != 0 {
		return nil
	}
	return b
}

func (p packet) header() int    { return int(p[0]&0xf) * 4 } // its length
func (p packet) source() uint32 { return binary.BigEndian.Uint32(p[sourceAt:]) }
func (p packet) dest() uint32   { return binary.BigEndian.Uint32(p[destAt:]) }

// decrementTTL decrements the TTL and updates the checksum (RFC 1624). It reports
// false, and changes nothing, if the packet must not be forwarded any more.
func (p packet) decrementTTL() bool {
	if p[ttlAt] <= 1 {
		return false
	}
	p[ttlAt]--
	sum := uint32(binary.BigEndian.Uint16(p[checksumAt:])) + 0x100 // the TTL is the upper byte of its word
	// 0xffff and 0 are the same number in one's complement, and a header never has the
	// checksum 0xffff, since its first word is not 0.
	if sum >= 0xffff {
		sum++
	}
	binary.BigEndian.PutUint16(p[checksumAt:], uint16(sum))
	return true
}

// answer is the type and code of an ICMP message.
type answer struct{ kind, code byte }

var (
	networkUnreachable = answer{3, 0}
	timeExceeded       = answer{11, 0} // in transit
)

// maxAnswer is the longest ICMP error, in bytes with its IP header, that every host accepts
// (RFC 1812, 4.3.2.3).
const maxAnswer = 576

// answerTo appends an ICMP error about p to b, from an address of this node, to the source of p. It
// returns nil if no error may be sent about p (RFC 1122, 3.2.2): it is an ICMP error
// itself, a fragment other than the first, or not between two hosts. The error has maxAnswer bytes at most.
func answerTo(b []byte, p packet, a answer, from uint32) []byte {
	if binary.BigEndian.Uint16(p[fragmentAt:])&fragmentOffset != 0 || isICMPError(p) || !isHost(p.source()) || !isHost(p.dest()) {
		return nil
	}
	quote := p[:min(len(p), maxAnswer-ipHeader-icmpHeader)]
	start := len(b)
	b = append(b, make([]byte, ipHeader+icmpHeader)...)
	b = append(b, quote...)
	ip, icmp := b[start:start+ipHeader], b[start+ipHeader:]
	icmp[0], icmp[1] = a.kind, a.code
	binary.BigEndian.PutUint16(icmp[2:], dataplane.Checksum(icmp))
	ip[0], ip[1] = 0x45, 0xc0 // precedence: internetwork control (RFC 1812, 4.3.2.5)
	binary.BigEndian.PutUint16(ip[lengthAt:], uint16(len(b)-start))
	ip[ttlAt], ip[protocolAt] = defaultTTL, protocolICMP
	binary.BigEndian.PutUint32(ip[sourceAt:], from)
	binary.BigEndian.PutUint32(ip[destAt:], p.source())
	binary.BigEndian.PutUint16(ip[checksumAt:], dataplane.Checksum(ip))
	return b
}

// isICMPError reports whether p is an ICMP error, or may be one: a message of ICMP that is not
// known as a query or a reply, or that lacks its type.
func isICMPError(p packet) bool {
	if p[protocolAt] != protocolICMP {
		return false
	}
	if len(p) <= p.header() {
		return true
	}
	switch p[p.header()] { // the type of the message
	case 0, 8, 9, 10, 13, 14, 15, 16, 17, 18: // echo, router discovery, timestamp, information, mask
		return false
	}
	return true
}

// isHost reports whether an address can be one of a host: it is not in the networks 0 and 127,
// and below the multicast addresses.
func isHost(a uint32) bool {
	first := a >> 24
	return first != 0 && first != 127 && first < 224
}
