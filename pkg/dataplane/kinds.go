package dataplane

import (
	"cmp"
	"net/netip"
	"regexp"
	"time"

	"flannel/pkg/conf"
)

// The kinds of devices and of encapsulations. Backends make them, drivers carry them
// out. Both sets are closed: a driver returns an error for a kind that it does not
// support. See Documentation/adr/0006.

// Kind is the kind of a Device: Existing, VXLAN, WireGuard, IPIP, TUN, IPsec,
// Overlay, L2Bridge or Commands.
type Kind interface {
	// traits returns the kind's row of the table that Traits describes.
	traits() Traits
}

// KindName returns a name for messages.
func KindName(k Kind) string { return k.traits().Kind }

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
	Learning bool   // the device learns FDB entries from packets
	GBP      bool   // group policy: the extension of the header for security marks
}

// WireGuard is a WireGuard device. The system has its private key, and creates one if
// there is none; Device.Readdress replaces it once. Tunnel.Local is not used, since the
// kernel chooses the source of each packet. What no other route takes is routed to it, so
// that it does not leave unencrypted: the State's subnets, and its networks unless they
// contain the address of a node.
type WireGuard struct {
	Tunnel
	Port      uint16        // UDP
	PSK       conf.Secret   // the 32 bytes of the preshared key of all peers; zero: none
	Keepalive time.Duration // interval of packets to all peers, in whole seconds; 0: none
}

// IPIP is an IPv4-in-IPv4 tunnel device without a remote address: it sends to the
// gateway of a route.
type IPIP struct{ Tunnel }

// TUN is a TUN device. What the kernel sends to it, the driver sends to the peers in
// UDP datagrams, from Local and to their addresses with the same port. The networks of
// the State are routed to it.
type TUN struct {
	Tunnel
	Port uint16
}

// IPsec is a device of the host (the underlay) whose packets between the pods of two
// nodes are encrypted. Like Existing, it is never created or changed.
type IPsec struct {
	Local    netip.Addr   // outer source address
	ID       netip.Addr   // the address by which peers know this node
	Subnet   netip.Prefix // of this node's pods
	Secret   conf.Secret  // by which the nodes authenticate each other
	Proposal string       // algorithms for ESP, in strongSwan's notation
	UDPEncap bool         // ESP in UDP, even without NAT
}

// Commands is no device: it stands for what the operator's commands make (see
// package dataplane/extension). Each is a program with arguments, separated by
// white space; "" runs nothing.
type Commands struct {
	PreStartup, PostStartup string
	SubnetAdd, SubnetRemove string
	V4, V6                  Family // of this node; zero: the family is off
}

// Family is one address family of a node as commands see it.
type Family struct {
	Subnet   netip.Prefix
	PublicIP netip.Addr
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

// NetworkOf returns the properties that all kinds of HNS networks have, and whether k is
// such a kind.
func NetworkOf(k Kind) (n Network, isHNS bool) {
	switch k := k.(type) {
	case Overlay:
		return k.Network, true
	case L2Bridge:
		return k.Network, true
	}
	return n, false
}

// Overlay is an HNS network that is a VXLAN tunnel.
type Overlay struct {
	Network
	VNI  uint32
	Port uint16 // UDP; 0 is Windows' default, 4789
	MACs [2]MAC // first and last of the pods' MAC addresses; zero: HNS chooses
}

// L2Bridge is an HNS network that bridges pods to the underlay.
type L2Bridge struct {
	Network
	DNS string // servers for pods, separated by commas; empty: HNS chooses
}

// The rows of the kinds follow; Traits has the columns.

// tunnels are the kinds whose rows TraitsOfLink and TraitsOfBackend search. The first that fits is the result.
var tunnels = []Kind{VXLAN{}, IPIP{}, WireGuard{}, IPsec{}, TUN{}}

// Names of tunnel devices. flanneld deletes devices with these names that it does not want.
var (
	vxlanName     = regexp.MustCompile(`^flannel(?:-v6)?\.\d+$`)
	wireGuardName = regexp.MustCompile(`^flannel-wg(?:-v6)?$`)
	ipipName      = regexp.MustCompile(`^flannel\.ipip$`)
	tunName       = regexp.MustCompile(`^flannel(\d+)$`)
)

func (Existing) traits() Traits { return Traits{Kind: "existing"} }

func (k VXLAN) traits() Traits {
	return Traits{Kind: "vxlan", Backend: "vxlan", Links: []string{"vxlan"}, Name: vxlanName, MTUKey: true,
		Protocol: protocolUDP, Port: cmp.Or(k.Port, 8472), VNI: k.VNI, Header: udp + vxlan + ethernet, Frame: true}
}

// In the place of a WireGuard device, wireguard-go makes a TUN device.
func (k WireGuard) traits() Traits {
	return Traits{Kind: "wireguard", Backend: "wireguard", Links: []string{"wireguard", "tuntap"}, Name: wireGuardName, MTUKey: true,
		Protocol: protocolUDP, Port: k.Port, Header: udp + wireGuardHeader, Trailer: wireGuardTag, Keys: true, AnyFamily: true}
}

func (IPIP) traits() Traits {
	return Traits{Kind: "ipip", Backend: "ipip", Links: []string{"ipip"}, Name: ipipName, Protocol: protocolIPIP}
}

func (k TUN) traits() Traits {
	return Traits{Kind: "tun", Backend: "udp", Links: []string{"tuntap"}, Name: tunName,
		Protocol: protocolUDP, Port: cmp.Or(k.Port, 8285), Header: udp}
}

// With UDPEncap, ESP is in UDP to the second port of IKE (RFC 3948).
func (k IPsec) traits() Traits {
	t := Traits{Kind: "ipsec", Backend: "ipsec", Protocol: protocolESP, Header: espHeader, Trailer: espTrailer, Keys: true}
	if k.UDPEncap {
		t.Protocol, t.Port, t.Header = protocolUDP, 4500, udp+espHeader
	}
	return t
}

func (Commands) traits() Traits { return Traits{Kind: "commands"} }
func (Overlay) traits() Traits  { return Traits{Kind: "overlay"} }
func (L2Bridge) traits() Traits { return Traits{Kind: "l2bridge"} }

// Encap is the encapsulation of packets on a Path: Direct, VTEP, WireGuardPeer, IPInIP,
// Datagram, ESP or ByCommands.
type Encap interface {
	// end returns what identifies the tunnel end on its device, if there is one.
	end() (e End, has bool)
}

// End identifies a tunnel end among those of a device, each of which belongs to one
// node. One field is set.
type End struct {
	MAC MAC       // of a VTEP
	Key PublicKey // of a WireGuard peer
}

// String has the name that the field has in a lease.
func (e End) String() string {
	if e.Key != (PublicKey{}) {
		return "PublicKey=" + e.Key.Base64()
	}
	return "VtepMAC " + e.MAC.String()
}

// Direct is no encapsulation: the peer is the gateway to its subnet.
type Direct struct{}

// VTEP is VXLAN. MAC is the destination of the inner packet: the MAC address of the
// peer's VTEP.
type VTEP struct{ MAC MAC }

// WireGuardPeer is WireGuard. All paths to a peer through one device have the same
// WireGuardPeer.
type WireGuardPeer struct {
	Key      PublicKey
	Endpoint netip.AddrPort  // where the peer listens
	Allowed  [2]netip.Prefix // its subnets, from which packets are accepted; the second may be zero
}

// IPInIP is IPv4 in IPv4. The destination of the outer packet is Path.Via.
type IPInIP struct{}

// Datagram is UDP: the IP packet is the payload of a datagram.
type Datagram struct{}

// ESP is the IPsec protocol ESP in tunnel mode. The destination of the outer packet is
// Path.Via.
type ESP struct{}

// ByCommands is whatever the commands for this peer make. The paths of both
// families of a peer have the same one.
type ByCommands struct {
	V4, V6 Family // of the peer; zero: the family is off
	Data   string // what the peer's PreStartup printed; may be anything
}

func (Direct) end() (e End, has bool)          { return e, false }
func (v VTEP) end() (e End, has bool)          { return End{MAC: v.MAC}, true }
func (w WireGuardPeer) end() (e End, has bool) { return End{Key: w.Key}, true }
func (IPInIP) end() (e End, has bool)          { return e, false }
func (Datagram) end() (e End, has bool)        { return e, false }
func (ESP) end() (e End, has bool)             { return e, false }
func (ByCommands) end() (e End, has bool)      { return e, false }
