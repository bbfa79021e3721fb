package etcd

// This file parses and formats flannel's keys and values in etcd. The key of a
// lease has the node's subnets, and the value how to reach the node:
//
//	/coreos.com/network/subnets/10.5.34.0-24&fd05:0:0:8::-64
//	{"PublicIP":"192.168.64.3","PublicIPv6":"fc00::3","BackendType":"vxlan","BackendData":{…},"BackendV6Data":{…}}

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// noV4 is in the key of a node without IPv4 in the place of the IPv4 subnet, as with flannel.
const noV4 = "0.0.0.0-0"

// parseKey parses the last part of a lease's key: `10.5.34.0-24`,
// `10.5.34.0-24&2001:cafe:42:1::-64` or, without IPv4, `0.0.0.0-0&fd05:0:0:8::-64`.
// A family without a subnet is the zero Prefix; at least one has a subnet. An error quotes
// at most the beginning of name.
func parseKey(name string) (v4, v6 netip.Prefix, err error) {
	first, second, dual := strings.Cut(name, "&")
	if first != noV4 || !dual { // noV4 alone is invalid: parseSubnet refuses length 0
		if v4, err = parseSubnet(first); err != nil {
			return netip.Prefix{}, netip.Prefix{}, err
		}
		if !v4.Addr().Is4() {
			return netip.Prefix{}, netip.Prefix{}, fmt.Errorf("%v is not an IPv4 subnet", v4)
		}
	}
	if dual {
		if v6, err = parseSubnet(second); err != nil {
			return netip.Prefix{}, netip.Prefix{}, err
		}
		if !v6.Addr().Is6() {
			return netip.Prefix{}, netip.Prefix{}, fmt.Errorf("%v is not an IPv6 subnet", v6)
		}
	}
	return v4, v6, nil
}

// formatKey is the inverse of parseKey. The zero Prefix: no subnet of the family. At
// least one of the prefixes must be valid.
func formatKey(v4, v6 netip.Prefix) string {
	key := noV4
	if v4.IsValid() {
		key = formatSubnet(v4)
	}
	if v6.IsValid() {
		key += "&" + formatSubnet(v6)
	}
	return key
}

// formatSubnet and parseSubnet convert a subnet to and from its form in a key:
// 10.5.1.0-24.
func formatSubnet(p netip.Prefix) string { return p.Addr().String() + "-" + strconv.Itoa(p.Bits()) }

func parseSubnet(s string) (netip.Prefix, error) {
	addr, bits, ok := strings.Cut(s, "-")
	if !ok {
		return netip.Prefix{}, fmt.Errorf("%s does not have the form ADDRESS-LENGTH", clipText(s))
	}
	a, err := netip.ParseAddr(addr)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%s is not an address", clipText(addr))
	}
	if err := validateAddr(a); err != nil {
		return netip.Prefix{}, err
	}
	// Length 0 is invalid: it would be the whole Internet. parseKey handles noV4.
	n, err := strconv.ParseUint(bits, 10, 8)
	if err != nil || n < 1 || int(n) > a.BitLen() {
		return netip.Prefix{}, fmt.Errorf("%s is not a prefix length of 1 to %d", clipText(bits), a.BitLen())
	}
	p := netip.PrefixFrom(a, int(n))
	if p != p.Masked() { // else, several keys would be the same subnet
		return netip.Prefix{}, fmt.Errorf("%v has host bits set", p)
	}
	return p, nil
}

// validateAddr rejects addresses with a zone, which mean something only on one host,
// and IPv4 addresses in IPv6 form.
func validateAddr(a netip.Addr) error {
	switch {
	case a.Zone() != "":
		return errors.New("the address has a zone")
	case a.Is4In6():
		return fmt.Errorf("%v is an IPv4 address in IPv6 form", a)
	}
	return nil
}

// clipText quotes a text that others wrote, or its beginning, for a log line or an error.
func clipText(s string) string {
	const limit = 60 // bytes
	if len(s) > limit {
		return strconv.QuoteToASCII(s[:limit]) + "…"
	}
	return strconv.QuoteToASCII(s)
}
