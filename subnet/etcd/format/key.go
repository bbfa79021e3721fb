// Package format reads and writes flannel's keys and values in etcd: how a node's subnets are spelt in the key of its
// lease, and what the value says of how to reach the node. It is pure.
package format

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// noV4 stands in a key for the IPv4 subnet of a node that has none.
const noV4 = "0.0.0.0-0"

// ParseKey reads the last part of a lease's key: `10.5.34.0-24`, `10.5.34.0-24&2001:cafe:42:1::-64` or, without IPv4,
// `0.0.0.0-0&fd05:0:0:8::-64`. A family that is off is the zero Prefix. Errors quote a bounded part of name.
func ParseKey(name string) (v4, v6 netip.Prefix, err error) {
	first, second, dual := strings.Cut(name, "&")
	if first != noV4 || !dual {
		if v4, err = parseSubnet(first); err != nil {
			return netip.Prefix{}, netip.Prefix{}, err
		}
		if !v4.Addr().Is4() {
			return netip.Prefix{}, netip.Prefix{}, fmt.Errorf("%v stands where the IPv4 subnet belongs", v4)
		}
	}
	if dual {
		if v6, err = parseSubnet(second); err != nil {
			return netip.Prefix{}, netip.Prefix{}, err
		}
		if !v6.Addr().Is6() {
			return netip.Prefix{}, netip.Prefix{}, fmt.Errorf("%v stands where the IPv6 subnet belongs", v6)
		}
	}
	return v4, v6, nil
}

// FormatKey is the inverse of ParseKey. At least one of the prefixes must be valid.
func FormatKey(v4, v6 netip.Prefix) string {
	key := noV4
	if v4.IsValid() {
		key = formatSubnet(v4)
	}
	if v6.IsValid() {
		key += "&" + formatSubnet(v6)
	}
	return key
}

func formatSubnet(p netip.Prefix) string { return p.Addr().String() + "-" + strconv.Itoa(p.Bits()) }

func parseSubnet(s string) (netip.Prefix, error) {
	addr, bits, ok := strings.Cut(s, "-")
	if !ok {
		return netip.Prefix{}, fmt.Errorf("%s is not ADDRESS-LENGTH", Clip(s))
	}
	a, err := netip.ParseAddr(addr)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%s is not an address", Clip(addr))
	}
	if err := plain(a); err != nil {
		return netip.Prefix{}, err
	}
	// Length 0 would be the whole Internet; as part of an IPv6-only key it was dealt with above.
	n, err := strconv.ParseUint(bits, 10, 8)
	if err != nil || n < 1 || int(n) > a.BitLen() {
		return netip.Prefix{}, fmt.Errorf("%s is not a prefix length of 1 to %d", Clip(bits), a.BitLen())
	}
	p := netip.PrefixFrom(a, int(n))
	if p != p.Masked() { // two keys must not name one subnet
		return netip.Prefix{}, fmt.Errorf("%v has host bits set", p)
	}
	return p, nil
}

// plain refuses the forms of an address that mean something only elsewhere.
func plain(a netip.Addr) error {
	switch {
	case a.Zone() != "":
		return errors.New("an address with a zone")
	case a.Is4In6():
		return fmt.Errorf("%v is an IPv4 address in IPv6 form", a)
	}
	return nil
}

// Clip quotes foreign text, shortened to what a log line bears.
func Clip(s string) string {
	const most = 60
	if len(s) > most {
		return strconv.QuoteToASCII(s[:most]) + "…"
	}
	return strconv.QuoteToASCII(s)
}
