package doctor

import (
	"fmt"
	"net/netip"
	"slices"
)

// PathDirect is the kind of a path without a tunnel: the peer's own address is the gateway, with
// host-gw or DirectRouting. Other paths have the backend of their tunnel as their kind. A path
// without a kind has no route through a device of flanneld.
const PathDirect = "direct"

// Path is the way to the pods of one peer, and what came of the packets that package
// probe/path, on Linux, sent along it: the input of diagnose. The tests, from the outside
// in, ask the peer's machine (Host), the tunnel with packets made by hand (Frame,
// Broadcast, ARP), and what the kernel sends to the pods (Inner, OfPod, Full, TCP). A test
// without a result was not made.
type Path struct {
	Peer     string       `json:"peer"`
	Subnet   netip.Prefix `json:"subnet"`
	PublicIP netip.Addr   `json:"publicIP"`
	// Expected means that the peer has to answer: the daemon found that it does not, or
	// the operator asked for this peer.
	Expected bool `json:"expected"`
	// NotForwarding means that the daemon found that the peer answers, but does not forward
	// packets from or to its pods.
	NotForwarding bool `json:"notForwarding,omitempty"`

	Kind     string `json:"kind"`
	Device   string `json:"device"`         // that the route to the subnet leads to
	Underlay string `json:"underlay"`       // through which packets for PublicIP leave; "": there is no route
	MTU      int    `json:"mtu"`            // of Device, bytes
	Port     int    `json:"port,omitempty"` // of the tunnel, UDP; 0: it has none, or it is not known
	Overhead int    `json:"overhead"`       // bytes that the tunnel adds
	Problem  string `json:"problem,omitempty"`
	// Astray are packets to Subnet that take another way because of their source.
	Astray []Astray `json:"astray,omitempty"`

	Host      PathTest `json:"host"`                // PublicIP: an echo, a TCP connection, a datagram to a closed port
	Neighbour string   `json:"neighbour,omitempty"` // what the kernel knows of the next hop to PublicIP: NeighbourUp, NeighbourDown or ""
	// Inner is a small packet: through a tunnel an echo to the peer's device; else one with
	// a hop limit of 1 to a pod's address, which the peer answers whether it has that
	// address or not.
	Inner PathTest `json:"inner"`
	// OfPod is like Inner with a source in this node's subnet, if Kind is PathDirect.
	OfPod   PathTest `json:"ofPod"`
	Full    PathTest `json:"full"`              // like Inner with MTU bytes; if Kind is PathDirect, an echo to PublicIP
	Largest int      `json:"largest,omitempty"` // bytes of the largest packet that was answered if Full was not

	// Rejected is how PublicIP, or somebody before it, answered packets of the tunnel:
	// RejectedClosed, RejectedProhibited or "".
	Rejected string `json:"rejected,omitempty"`
	// Refused means that messages of WireGuard arrived, and it did not accept their keys.
	Refused bool `json:"refused,omitempty"`
	// Handshake means that WireGuard and the peer have agreed on keys since the daemon
	// found that pings are not answered.
	Handshake bool `json:"handshake,omitempty"`

	// The following are made by hand, if the tunnel is VXLAN.

	PublishedMAC string   `json:"publishedMAC,omitempty"` // of the peer's VTEP
	AnswerMAC    string   `json:"answerMAC,omitempty"`    // of who answered Broadcast or ARP
	Frame        PathTest `json:"frame"`                  // an echo to PublishedMAC
	Broadcast    PathTest `json:"broadcast"`              // an echo to all MAC addresses
	ARP          PathTest `json:"arp"`                    // a request to all MAC addresses, which passes no firewall
	// TCP connections to the same port of the peer's device, opened by the kernel, whose
	// checksums the network card completes, and by hand with the whole checksum.
	TCP      PathTest `json:"tcp"`
	FrameTCP PathTest `json:"frameTCP"`

	// ReversePath is how many packets the kernel dropped meanwhile because it would not
	// answer through the interface on which they arrived. Filters are the values of
	// rp_filter in force on the devices on which answers arrived. Both are of IPv4 only.
	ReversePath int            `json:"reversePathFiltered"`
	Filters     map[string]int `json:"rpFilter,omitempty"`
}

// Astray is a route to a peer's subnet that differs from that without a source.
type Astray struct {
	Source netip.Addr `json:"source"`          // of this node, or in its subnet
	Device string     `json:"device"`          // that the route leads to; "": there is none, see Error
	Table  int        `json:"table,omitempty"` // of routes; 0: none
	Error  string     `json:"error,omitempty"`
}

func (a Astray) String() string {
	if a.Device == "" {
		return fmt.Sprintf("packets from %s have no route: %s", a.Source, a.Error)
	}
	return fmt.Sprintf("packets from %s take that of table %d, through %s", a.Source, a.Table, a.Device)
}

// How the tunnel's packets were rejected.
const (
	RejectedClosed     = "closed"     // nothing listens, or a firewall answers as if
	RejectedProhibited = "prohibited" // by a firewall
)

// What the kernel knows of a next hop.
const (
	NeighbourUp   = "up"
	NeighbourDown = "down" // it did not answer ARP or neighbour discovery
)

// PathResult is the result of a PathTest.
type PathResult string

// Results of tests.
const (
	Answered PathResult = "answered"
	Silent   PathResult = "silent" // no answer reached the program
)

// PathTest is one packet, repeated, and what came of it.
type PathTest struct {
	Result  PathResult `json:"result,omitempty"`
	Left    []string   `json:"left,omitempty"`    // devices through which it was seen leaving
	Arrived []string   `json:"arrived,omitempty"` // devices on which an answer was seen, before any firewall
	Error   string     `json:"error,omitempty"`   // of the kernel
}

// left reports whether the packet left through a device.
func (t PathTest) left(device string) bool { return slices.Contains(t.Left, device) }

// arrived reports whether an answer arrived on any device.
func (t PathTest) arrived() bool { return len(t.Arrived) > 0 }

// lastArrived returns the last device on which an answer arrived, that closest to the
// program; "": none arrived.
func (t PathTest) lastArrived() string {
	if !t.arrived() {
		return ""
	}
	return t.Arrived[len(t.Arrived)-1]
}
