package path

import (
	"encoding/binary"
	"net/netip"

	"flannel/pkg/mac"
)

// IP protocol numbers.
const (
	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoICMPv6 = 58
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

const tokenLength = 16

// token is random data in an echo request, by which it and its reply are recognized.
type token [tokenLength]byte

// checksum returns the Internet checksum (RFC 1071) of parts with even lengths.
func checksum(parts ...[]byte) uint16 {
	var sum uint32
	for _, b := range parts {
		for ; len(b) > 1; b = b[2:] {
			sum += uint32(binary.BigEndian.Uint16(b))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// pseudo returns the pseudo header of RFC 8200 that checksums of TCP and ICMPv6
// include. Its sum is that of RFC 9293 with IPv4 addresses.
func pseudo(src, dst netip.Addr, protocol byte, length int) []byte {
	b := append(src.AsSlice(), dst.AsSlice()...)
	b = binary.BigEndian.AppendUint32(b, uint32(length))
	return append(b, 0, 0, 0, protocol)
}

func headerLength(a netip.Addr) int {
	if a.Is6() {
		return 40
	}
	return 20
}

func icmpOf(a netip.Addr) byte {
	if a.Is6() {
		return protoICMPv6
	}
	return protoICMP
}

// echoRequest returns an ICMP message that makes a packet of size bytes, which must be
// even or it is one byte less. A source is needed for the checksum over IPv6; with a
// socket, the kernel computes that.
func echoRequest(src, dst netip.Addr, sequence uint16, t token, size int) []byte {
	length := max(size-headerLength(dst), icmpHeader+tokenLength)
	m := make([]byte, length)
	if m[0] = 8; dst.Is6() {
		m[0] = 128
	}
	binary.BigEndian.PutUint16(m[6:], sequence)
	copy(m[icmpHeader:], t[:])
	even := m[:length&^1] // the rest is zero
	if dst.Is4() {
		binary.BigEndian.PutUint16(m[2:], checksum(even))
	} else if src.IsValid() {
		binary.BigEndian.PutUint16(m[2:], checksum(pseudo(src, dst, protoICMPv6, length), even))
	}
	return m
}

// isReply and isRequest report whether an ICMP message is an echo.
func isReply(m []byte) bool   { return m[0] == 0 || m[0] == 129 }
func isRequest(m []byte) bool { return m[0] == 8 || m[0] == 128 }

// syn returns the header of TCP's first packet, with its checksum.
func syn(src, dst netip.AddrPort, sequence uint32) []byte {
	var b []byte
	b = binary.BigEndian.AppendUint16(b, src.Port())
	b = binary.BigEndian.AppendUint16(b, dst.Port())
	b = binary.BigEndian.AppendUint32(b, sequence)
	b = append(b, 0, 0, 0, 0, 5<<4, 2, 0xff, 0xff, 0, 0, 0, 0) // acknowledgement, 5 words, SYN, window, checksum, urgent
	binary.BigEndian.PutUint16(b[16:], checksum(pseudo(src.Addr(), dst.Addr(), protoTCP, len(b)), b))
	return b
}

// tcpPattern returns what a packet of TCP contains: addresses and ports, which are next
// to each other if the IP header has no options.
func tcpPattern(src, dst netip.AddrPort) []byte {
	b := append(src.Addr().AsSlice(), dst.Addr().AsSlice()...)
	b = binary.BigEndian.AppendUint16(b, src.Port())
	return binary.BigEndian.AppendUint16(b, dst.Port())
}

// ipPacket returns an IP packet.
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
		binary.BigEndian.PutUint16(b[10:], checksum(b))
	}
	return append(b, payload...)
}

// arpRequest returns an ARP request without a sender's address (RFC 5227), which hosts
// answer without looking at their routes.
func arpRequest(from mac.Addr, target netip.Addr) []byte {
	b := []byte{0, 1, 8, 0, 6, 4, 0, 1}
	b = append(append(b, from[:]...), 0, 0, 0, 0)
	b = append(b, 0, 0, 0, 0, 0, 0)
	return append(b, target.AsSlice()...)
}

// arpReplyPattern returns the end of the answer: the sender's address, and who asked.
func arpReplyPattern(from mac.Addr, target netip.Addr) []byte {
	return append(append(target.AsSlice(), from[:]...), 0, 0, 0, 0)
}

// vxlanFrame returns the payload of a datagram with a frame (RFC 7348).
func vxlanFrame(vni uint32, dst, src mac.Addr, etherType uint16, payload []byte) []byte {
	b := []byte{8, 0, 0, 0}
	b = binary.BigEndian.AppendUint32(b, vni<<8)
	b = append(append(b, dst[:]...), src[:]...)
	return append(binary.BigEndian.AppendUint16(b, etherType), payload...)
}
