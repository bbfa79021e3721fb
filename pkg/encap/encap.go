// Package encap has the number of bytes that encapsulations add to a packet.
package encap

// Lengths of headers, in bytes.
const (
	ethernet = 14
	ipv4     = 20
	ipv6     = 40 // without extensions
	udp      = 8
	vxlan    = 8
)

// UDP is what the udp backend adds to an IPv4 packet: the headers of UDP and IPv4.
const UDP = udp + ipv4

// VXLAN returns the bytes that VXLAN adds to an IP packet: the inner Ethernet header,
// the headers of VXLAN and UDP, and the outer IP header, which is IPv6 if v6 is true.
func VXLAN(v6 bool) int {
	if v6 {
		return ethernet + vxlan + udp + ipv6
	}
	return ethernet + vxlan + udp + ipv4
}
