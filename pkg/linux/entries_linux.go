// Package linux is the dataplane of the Linux kernel: devices, routes, nexthop objects,
// neighbours and FDB entries. Driver (driver_linux.go) is where to begin; the daemon's
// loop calls it, and in it the kinds of devices (kind_linux.go).
//
// Words of this package:
//
//	kind       what drives one kind of device, and the paths through it: vxlan, ipip, …
//	table      a reconcile.Table, which wants entries and writes the difference to its store
//	store      the kernel's side of a table: its List, Set and Delete are those of reconcile.Store
//	scope      which devices, routes and networks are ours (ours_linux.go)
//	dirty      something may have changed: the next pass reads devices or sysctls again
//	foreign    made by another program
//	unknown    an error after which the actual state is not known (reconcile.Unknown)
package linux

import (
	"fmt"
	"net/netip"

	"flannel/pkg/dataplane"
)

// The keys and values of the tables.

// routeKey identifies a route of the main table.
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

// hop is the next hop of a route, whether the kernel holds it in the route or in a
// nexthop object.
type hop struct {
	Via       netip.Addr // zero: no gateway, as through a WireGuard device
	Index     int        // of the device; 0 with Blackhole
	Blackhole bool       // the kernel drops the packets
	Onlink    bool       // Via is on the link, whatever the kernel's routes say
	Unmanaged bool       // it has properties that we never set, such as several gateways; no desired hop has
	// OtherObject: the route uses another nexthop object than ours for this hop (nexthopStore.usesOther), so it must be
	// written again. No desired hop has this, nor a packed one.
	OtherObject bool
}

func (h hop) String() string {
	switch {
	case h.Unmanaged:
		return "unmanaged"
	case h.OtherObject:
		h.OtherObject = false
		return h.String() + " through another nexthop object"
	case h.Blackhole:
		return "blackhole"
	case h.Onlink:
		return fmt.Sprintf("via %s on link %d onlink", h.Via, h.Index)
	}
	if !h.Via.IsValid() {
		return fmt.Sprintf("on link %d", h.Index)
	}
	return fmt.Sprintf("via %s on link %d", h.Via, h.Index)
}

// packedHop is a hop in 24 bytes, instead of 40, and without pointers, which the garbage
// collector would follow, for maps that have one of each peer.
type packedHop struct {
	via   [16]byte
	index int32
	bits  uint8 // of via; 0: there is none
	flags uint8
}

const (
	packedBlackhole = 1 << iota
	packedOnlink
	packedUnmanaged
)

// pack returns the hop in the form in which tables keep it.
func (h hop) pack() packedHop {
	p := packedHop{via: h.Via.As16(), index: int32(h.Index), bits: uint8(h.Via.BitLen())}
	if h.Blackhole {
		p.flags |= packedBlackhole
	}
	if h.Onlink {
		p.flags |= packedOnlink
	}
	if h.Unmanaged {
		p.flags |= packedUnmanaged
	}
	return p
}

// unpack is the inverse of pack.
func (p packedHop) unpack() hop {
	h := hop{Index: int(p.index), Blackhole: p.flags&packedBlackhole != 0, Onlink: p.flags&packedOnlink != 0, Unmanaged: p.flags&packedUnmanaged != 0}
	switch p.bits {
	case 32:
		h.Via = netip.AddrFrom16(p.via).Unmap()
	case 128:
		h.Via = netip.AddrFrom16(p.via)
	}
	return h
}

func (p packedHop) String() string { return p.unpack().String() }

// neighKey identifies a neighbour: an address on a link. Its value is the MAC
// address.
type neighKey struct {
	Index int
	IP    netip.Addr
}

func (k neighKey) String() string { return fmt.Sprintf("%s on link %d", k.IP, k.Index) }

// fdbKey identifies an FDB entry: a MAC address behind a tunnel device. Its value
// is the underlay address of the tunnel end with that MAC address.
type fdbKey struct {
	Index int
	MAC   dataplane.MAC
}

func (k fdbKey) String() string { return fmt.Sprintf("%s on link %d", k.MAC, k.Index) }

// defaultMetric returns the metric that the kernel gives a route by default.
func defaultMetric(a netip.Addr) uint32 {
	if a.Is6() {
		return 1024
	}
	return 0
}
