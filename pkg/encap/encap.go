// Package encap knows what encapsulations add to a packet.
package encap

// Lengths of headers, in bytes.
const (
	ethernet = 14
	ipv4     = 20
	ipv6     = 40 // without extensions
	udp      = 8
	vxlan    = 8
)

// VXLAN is what it adds to a packet, in bytes: the inner Ethernet header, VXLAN's, UDP's, and the outer IP header, of IPv6 if
// v6 is set.
func VXLAN(v6 bool) int {
	if v6 {
		return ethernet + vxlan + udp + ipv6
	}
	return ethernet + vxlan + udp + ipv4
}
