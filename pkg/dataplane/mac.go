package dataplane

import (
	"fmt"
	"net"
)

// MAC is a MAC address of 48 bits. Unlike net.HardwareAddr, it is comparable.
type MAC [6]byte

// String formats the address as flannel does: lower case, with colons.
func (a MAC) String() string { return net.HardwareAddr(a[:]).String() }

// Unicast reports whether a can be a device's address: neither zero nor a group
// address.
func (a MAC) Unicast() bool { return a != MAC{} && a[0]&1 == 0 }

// MarshalText implements encoding.TextMarshaler.
func (a MAC) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (a *MAC) UnmarshalText(text []byte) (err error) {
	*a, err = ParseMAC(string(text))
	return err
}

// ParseMAC parses a 48-bit address in any notation of net.ParseMAC; Windows uses dashes.
func ParseMAC(s string) (MAC, error) {
	hw, err := net.ParseMAC(s)
	if err != nil || len(hw) != len(MAC{}) {
		return MAC{}, fmt.Errorf("%.40q is not a MAC address of six bytes", s)
	}
	return MAC(hw), nil
}
