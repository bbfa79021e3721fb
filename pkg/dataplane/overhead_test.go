package dataplane

import "testing"

// With an MTU of 1500 on the underlay, an IPIP device has 1480.
func TestIPIP(t *testing.T) {
	if n := IPIPOverhead(); n != 20 {
		t.Errorf("%d bytes", n)
	}
}

// As in RFC 7348: with an MTU of 1500 on the underlay, a VXLAN device has 1450 or 1430.
func TestVXLAN(t *testing.T) {
	if v4, v6 := VXLANOverhead(false), VXLANOverhead(true); v4 != 50 || v6 != 70 {
		t.Errorf("%d bytes over IPv4, %d over IPv6", v4, v6)
	}
}

// As wg-quick: with an MTU of 1500 on the underlay, the device has 1420.
func TestWireGuard(t *testing.T) {
	if n := WireGuardOverhead(); n != 80 {
		t.Errorf("%d bytes", n)
	}
}

// As flannel: with an MTU of 1500 on the underlay, pods have 1423 or, with UDP, 1415.
func TestIPsec(t *testing.T) {
	if plain, inUDP := IPsecOverhead(false), IPsecOverhead(true); plain != 77 || inUDP != 85 {
		t.Errorf("%d bytes, %d with UDP", plain, inUDP)
	}
}
