// This file makes the packets with which the doctor tests the ways to a peer, and the
// patterns by which the sniffer recognizes the answers. Sockets and kernel do not make
// these packets, so their headers are written here byte by byte.

package path

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"flannel/pkg/dataplane"
)

// Ethernet types.
const (
	etherIPv4 = 0x0800
	etherARP  = 0x0806
	etherIPv6 = 0x86dd
)

// Lengths of headers, in bytes.
const (
	ethernetHeader = 14
	vxlanHeader    = 8
	udpHeader      = 8
	icmpHeader     = 8
)

// tokenLength is the length of a token in bytes.
const tokenLength = 16

// token is random data in an echo request, by which the request and its reply are
// recognized.
type token [tokenLength]byte

// pseudo returns the pseudo header of RFC 8200 that the checksum of TCP includes. Its sum
// is that of RFC 9293 with IPv4 addresses.
func pseudo(src, dst netip.Addr, length int) []byte {
	b := append(src.AsSlice(), dst.AsSlice()...)
	b = binary.BigEndian.AppendUint32(b, uint32(length))
	return append(b, 0, 0, 0, unix.IPPROTO_TCP)
}

// headerLength returns the length of an IP header without options, in bytes.
func headerLength(a netip.Addr) int {
	if a.Is6() {
		return 40
	}
	return 20
}

// icmpOf returns the protocol number of ICMP for an address's family.
func icmpOf(a netip.Addr) byte {
	if a.Is6() {
		return unix.IPPROTO_ICMPV6
	}
	return unix.IPPROTO_ICMP
}

// echoRequest returns an ICMP message that makes a packet of size bytes. A source is needed
// for the checksum over IPv6; with a socket, the kernel computes that.
func echoRequest(src, dst netip.Addr, sequence int, t token, size int) []byte {
	data := make([]byte, max(size-headerLength(dst)-icmpHeader, tokenLength))
	copy(data, t[:])
	m := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{Seq: sequence, Data: data}}
	var addrs []byte // the pseudo header with them
	if dst.Is6() {
		m.Type = ipv6.ICMPTypeEchoRequest
		if src.IsValid() {
			addrs = icmp.IPv6PseudoHeader(src.AsSlice(), dst.AsSlice())
		}
	}
	b, _ := m.Marshal(addrs) // it only fails with other types and bodies
	return b
}

// isReply and isRequest report whether an ICMP message is an echo, by its type in ICMP or
// ICMPv6. m must not be empty.
func isReply(m []byte) bool   { return m[0] == 0 || m[0] == 129 }
func isRequest(m []byte) bool { return m[0] == 8 || m[0] == 128 }

// syn returns the header of TCP's first packet, with its checksum.
func syn(src, dst netip.AddrPort, sequence uint32) []byte {
	var b []byte
	b = binary.BigEndian.AppendUint16(b, src.Port())
	b = binary.BigEndian.AppendUint16(b, dst.Port())
	b = binary.BigEndian.AppendUint32(b, sequence)
	b = append(b, 0, 0, 0, 0, 5<<4, 2, 0xff, 0xff, 0, 0, 0, 0) // acknowledgement, 5 words, SYN, window, checksum, urgent
	binary.BigEndian.PutUint16(b[16:], dataplane.Checksum(append(pseudo(src.Addr(), dst.Addr(), len(b)), b...)))
	return b
}

// tcpPattern returns what a packet of TCP contains: addresses and ports, which are next
// to each other if the IP header has no options.
func tcpPattern(src, dst netip.AddrPort) []byte {
	b := append(src.Addr().AsSlice(), dst.Addr().AsSlice()...)
	b = binary.BigEndian.AppendUint16(b, src.Port())
	return binary.BigEndian.AppendUint16(b, dst.Port())
}

// ipPacket returns an IP packet: the header without options, and the payload.
func ipPacket(src, dst netip.Addr, protocol, hopLimit byte, payload []byte) []byte {
	var b []byte
	if dst.Is6() {
		b = append(b, 0x60, 0, 0, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(len(payload)))
		b = append(b, protocol, hopLimit)
		b = append(append(b, src.AsSlice()...), dst.AsSlice()...)
	} else {
		b = append(b, 0x45, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(20+len(payload)))
		b = append(b, 0, 0, 0x40, 0, hopLimit, protocol, 0, 0) // do not fragment
		b = append(append(b, src.AsSlice()...), dst.AsSlice()...)
		binary.BigEndian.PutUint16(b[10:], dataplane.Checksum(b))
	}
	return append(b, payload...)
}

// arpRequest returns an ARP request without a sender's address (RFC 5227), which hosts
// answer without looking at their routes.
func arpRequest(from dataplane.MAC, target netip.Addr) []byte {
	b := []byte{0, 1, 8, 0, 6, 4, 0, 1} // Ethernet, IPv4, lengths of their addresses, request
	b = append(append(b, from[:]...), 0, 0, 0, 0)
	b = append(b, 0, 0, 0, 0, 0, 0)
	return append(b, target.AsSlice()...)
}

// arpReplyPattern returns the end of the answer: the sender's address, and who asked, from
// the IP address 0.0.0.0.
func arpReplyPattern(from dataplane.MAC, target netip.Addr) []byte {
	return append(append(target.AsSlice(), from[:]...), 0, 0, 0, 0)
}

// vxlanFrame returns the payload of a datagram with a frame (RFC 7348).
func vxlanFrame(vni uint32, dst, src dataplane.MAC, etherType uint16, payload []byte) []byte {
	b := []byte{8, 0, 0, 0} // the flag "the VNI is valid"
	b = binary.BigEndian.AppendUint32(b, vni<<8)
	b = append(append(b, dst[:]...), src[:]...)
	return append(binary.BigEndian.AppendUint16(b, etherType), payload...)
}
