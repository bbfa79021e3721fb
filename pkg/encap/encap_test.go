package encap

import "testing"

// The figures of RFC 7348 and of every VXLAN network's MTU: 1450 or 1430 bytes on an underlay of 1500.
func TestVXLAN(t *testing.T) {
	if v4, v6 := VXLAN(false), VXLAN(true); v4 != 50 || v6 != 70 {
		t.Errorf("%d bytes over IPv4, %d over IPv6", v4, v6)
	}
}
