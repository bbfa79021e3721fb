// Package mac holds the MAC addresses of network devices.
package mac

import (
	"fmt"
	"net"
)

// Addr is a MAC address of 48 bits. Unlike net.HardwareAddr, it is comparable.
type Addr [6]byte

// String formats the address as flannel does: lower case, with colons.
func (a Addr) String() string { return net.HardwareAddr(a[:]).String() }

// Unicast reports whether a can be a device's address: neither zero nor a group
// address.
func (a Addr) Unicast() bool { return a != Addr{} && a[0]&1 == 0 }

// MarshalText implements encoding.TextMarshaler.
func (a Addr) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (a *Addr) UnmarshalText(text []byte) (err error) {
	*a, err = Parse(string(text))
	return err
}

// Parse parses a 48-bit address in any notation of net.ParseMAC; Windows uses dashes.
func Parse(s string) (Addr, error) {
	hw, err := net.ParseMAC(s)
	if err != nil || len(hw) != len(Addr{}) {
		return Addr{}, fmt.Errorf("%.40q is not a MAC address of six bytes", s)
	}
	return Addr(hw), nil
}
