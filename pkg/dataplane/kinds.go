package dataplane

import (
	"net/netip"

	"flannel/pkg/mac"
)

// The kinds of device, and of encapsulation of a path. Both are closed sets: a driver that meets one that it does not
// know refuses it. See Documentation/adr/0005.

// Kind is what a Device is: Existing, VXLAN, Overlay or L2Bridge.
type Kind interface{ kind() string }

// KindName is for people.
func KindName(k Kind) string { return k.kind() }

// Existing is a device of the host (the underlay) that we route through: it must be there, and is never changed.
type Existing struct{}

// Tunnel is what tunnel devices of ours have, of whatever kind.
type Tunnel struct {
	MTU    int            // bytes; 0 leaves it as it is
	Addr   []netip.Prefix // exactly these, but for link-local ones
	Parent string         // name of the underlay device
	Local  netip.Addr     // outer source address
}

// VXLAN is a VXLAN tunnel device of ours.
type VXLAN struct {
	Tunnel
	VNI      uint32
	Port     uint16 // UDP; 0 is Linux' default, 8472
	Learning bool
	GBP      bool
}

// Network is what HNS networks have, of whatever kind: router and the pods' switch in one.
type Network struct {
	Parent  string         // name of the underlay device
	Local   netip.Addr     // the host's address
	Subnets []netip.Prefix // the node's own, one for each family in use
	// Switch is for a network that is there for the sake of its switch alone: without pods, and so persistent. It stays
	// until Cleanup.
	Switch bool
}

// HNS is a Kind that is an HNS network.
type HNS interface {
	Kind
	Common() Network
	with(Network) Kind
}

// Common is the network itself.
func (n Network) Common() Network { return n }

// Overlay is an HNS network that is the tunnel, too.
type Overlay struct {
	Network
	VNI  uint32
	Port uint16      // UDP; 0 is Windows' default, 4789
	MACs [2]mac.Addr // first and last for pods that bring none; zero: HNS chooses
}

// L2Bridge is an HNS network that bridges pods to the underlay.
type L2Bridge struct {
	Network
	DNS string // servers for pods, with commas between them; empty: HNS chooses
}

func (Existing) kind() string { return "existing" }
func (VXLAN) kind() string    { return "vxlan" }
func (Overlay) kind() string  { return "overlay" }
func (L2Bridge) kind() string { return "l2bridge" }

func (o Overlay) with(n Network) Kind  { o.Network = n; return o }
func (b L2Bridge) with(n Network) Kind { b.Network = n; return b }

// Encap is what packets are wrapped in on a Path: Direct or VTEP.
type Encap interface{ encap() }

// Direct sends packets as they are: the peer is the gateway to its subnet.
type Direct struct{}

// VTEP wraps them in VXLAN. MAC is the inner destination, the address of the peer's tunnel end.
type VTEP struct{ MAC mac.Addr }

func (Direct) encap() {}
func (VTEP) encap()   {}
