package dataplane

import (
	"net/netip"

	"flannel/pkg/mac"
)

// The kinds of devices and of encapsulations. Both sets are closed: a driver
// returns an error for a kind that it does not support. See
// Documentation/adr/0006.

// Kind is the kind of a Device: Existing, VXLAN, TUN, Overlay or L2Bridge.
type Kind interface{ kind() string }

// KindName returns a name for messages.
func KindName(k Kind) string { return k.kind() }

// Existing is a device of the host (the underlay). It is routed through, and never
// created or changed.
type Existing struct{}

// Tunnel holds the properties of all kinds of tunnel devices.
type Tunnel struct {
	MTU    int            // bytes; 0: do not change it
	Addr   []netip.Prefix // exactly these, apart from link-local ones
	Parent string         // name of the underlay device
	Local  netip.Addr     // outer source address
}

// VXLAN is a VXLAN tunnel device.
type VXLAN struct {
	Tunnel
	VNI      uint32
	Port     uint16 // UDP; 0 is Linux' default, 8472
	Learning bool
	GBP      bool
}

// TUN is a TUN device. What the kernel sends to it, the driver sends to the peers in
// UDP datagrams, from Local and to their addresses with the same port. The networks of
// the State are routed to it.
type TUN struct {
	Tunnel
	Port uint16
}

// Network holds the properties of all kinds of HNS networks, each of which is the
// router and the switch of the pods.
type Network struct {
	Parent  string         // name of the underlay device
	Local   netip.Addr     // the host's address
	Subnets []netip.Prefix // of the node, one for each address family in use
	// Switch is set for a network that only binds a switch to the adapter, and has no
	// pods. It is persistent, and stays until Cleanup.
	Switch bool
}

// HNS is implemented by the kinds of HNS networks.
type HNS interface {
	Kind
	Common() Network
	with(Network) Kind
}

// Common returns the properties of all kinds.
func (n Network) Common() Network { return n }

// Overlay is an HNS network that is a VXLAN tunnel.
type Overlay struct {
	Network
	VNI  uint32
	Port uint16      // UDP; 0 is Windows' default, 4789
	MACs [2]mac.Addr // first and last of the pods' MAC addresses; zero: HNS chooses
}

// L2Bridge is an HNS network that bridges pods to the underlay.
type L2Bridge struct {
	Network
	DNS string // servers for pods, separated by commas; empty: HNS chooses
}

func (Existing) kind() string { return "existing" }
func (VXLAN) kind() string    { return "vxlan" }
func (TUN) kind() string      { return "tun" }
func (Overlay) kind() string  { return "overlay" }
func (L2Bridge) kind() string { return "l2bridge" }

func (o Overlay) with(n Network) Kind  { o.Network = n; return o }
func (b L2Bridge) with(n Network) Kind { b.Network = n; return b }

// Encap is the encapsulation of packets on a Path: Direct, VTEP or Datagram.
type Encap interface{ encap() }

// Direct is no encapsulation: the peer is the gateway to its subnet.
type Direct struct{}

// VTEP is VXLAN. MAC is the destination of the inner packet: the MAC address of the
// peer's VTEP.
type VTEP struct{ MAC mac.Addr }

// Datagram is UDP: the IP packet is the payload of a datagram.
type Datagram struct{}

func (Direct) encap()   {}
func (VTEP) encap()     {}
func (Datagram) encap() {}
