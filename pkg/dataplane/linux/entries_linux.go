// Package linux is the dataplane of the Linux kernel: devices, routes, nexthop objects, neighbours and FDB entries.
package linux

import (
	"fmt"
	"net/netip"

	"flannel/pkg/mac"
)

// The Linux kernel's tables, as far as we fill them.

// routeKey is what makes a route of the main table unique.
type routeKey struct {
	Dst    netip.Prefix
	Metric uint32
}

func (k routeKey) String() string {
	if k.Metric == defaultMetric(k.Dst.Addr()) {
		return k.Dst.String()
	}
	return fmt.Sprintf("%s metric %d", k.Dst, k.Metric)
}

// hop is where a route leads. Whether the kernel holds it in the route or as a nexthop object makes no difference.
type hop struct {
	Via       netip.Addr
	Index     int // of the device
	Blackhole bool
	Onlink    bool
	Odd       bool // something about it that we never set, e.g. several gateways, or another route before it
}

func (h hop) String() string {
	switch {
	case h.Odd:
		return "odd"
	case h.Blackhole:
		return "blackhole"
	case h.Onlink:
		return fmt.Sprintf("via %s on link %d onlink", h.Via, h.Index)
	}
	return fmt.Sprintf("via %s on link %d", h.Via, h.Index)
}

// neighKey is an address on a link; its value is the MAC address.
type neighKey struct {
	Index int
	IP    netip.Addr
}

func (k neighKey) String() string { return fmt.Sprintf("%s on link %d", k.IP, k.Index) }

// fdbKey is a MAC address behind a tunnel device; its value is the address of the other tunnel end.
type fdbKey struct {
	Index int
	MAC   mac.Addr
}

func (k fdbKey) String() string { return fmt.Sprintf("%s on link %d", k.MAC, k.Index) }

// defaultMetric is what the kernel gives a route when none is asked for.
func defaultMetric(a netip.Addr) uint32 {
	if a.Is6() {
		return 1024
	}
	return 0
}
