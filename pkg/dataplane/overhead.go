package dataplane

// This file has the number of bytes that encapsulations add to a packet, how many an IP
// packet must be able to have, and the checksum of its headers.

// Lengths of headers, in bytes.
const (
	ethernet = 14
	ipv4     = 20
	ipv6     = 40 // without extensions
	udp      = 8
	vxlan    = 8
	// Of WireGuard's data packets: type and reserved bytes, receiver, counter; tag.
	wireGuardHeader = 4 + 4 + 8
	wireGuardTag    = 16
	// Of ESP (RFC 4303). The trailer is up to 15 bytes of padding, and 2.
	espHeader   = 8
	espVector   = 16
	espTrailer  = 15 + 2
	espChecksum = 16
)

// UDPOverhead is what the udp backend adds to an IPv4 packet: the headers of UDP and IPv4.
const UDPOverhead = udp + ipv4

// VXLANOverhead returns the bytes that VXLAN adds to an IP packet: the inner Ethernet header,
// the headers of VXLAN and UDP, and the outer IP header, which is IPv6 if v6 is true.
func VXLANOverhead(v6 bool) int {
	if v6 {
		return ethernet + vxlan + udp + ipv6
	}
	return ethernet + vxlan + udp + ipv4
}

// IPIPOverhead returns the bytes that IPIP adds to an IPv4 packet: the outer header.
func IPIPOverhead() int { return ipv4 }

// IPsecOverhead returns the bytes that ESP in tunnel mode adds to an IPv4 packet in the worst
// case of the usual algorithms, AES-CBC with SHA-256. inUDP is for ESP in UDP.
func IPsecOverhead(inUDP bool) int {
	n := ipv4 + espHeader + espVector + espTrailer + espChecksum
	if inUDP {
		n += udp
	}
	return n
}

// WireGuardOverhead returns the bytes that WireGuard adds to an IP packet. The outer IP header
// is IPv6 in the worst case, and the device does not know which peer has which, so this
// is the overhead for all.
func WireGuardOverhead() int { return ipv6 + udp + wireGuardHeader + wireGuardTag }

// MinMTU returns the smallest MTU in bytes for an address family: 576 for IPv4 (RFC
// 791: every host must accept such a datagram), 1280 for IPv6 (RFC 8200).
func MinMTU(v6 bool) int {
	if v6 {
		return 1280
	}
	return 576
}
