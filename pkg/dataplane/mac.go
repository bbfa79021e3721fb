package dataplane

import (
	"fmt"
	"net"
)

// MAC is a hardware address of 48 bits; unlike net.HardwareAddr it can be compared.
type MAC [6]byte

// String writes the address as flannel does: lower case, with colons.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// Unicast tells whether m can be a device's address: neither zero nor a group address.
func (m MAC) Unicast() bool { return m != MAC{} && m[0]&1 == 0 }

// ParseMAC reads a 48-bit address in any notation that net.ParseMAC knows (Windows writes dashes).
func ParseMAC(s string) (MAC, error) {
	hw, err := net.ParseMAC(s)
	if err != nil || len(hw) != 6 {
		return MAC{}, fmt.Errorf("%.40q is not a MAC address of six bytes", s)
	}
	return MAC(hw), nil
}
