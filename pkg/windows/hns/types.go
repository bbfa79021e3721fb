// This file has our types for what HNS has. Those of the IP stack are in hns.go. network.go, endpoint.go and
// namespace.go convert them to and from HNS's documents.

package hns

import (
	"encoding/json"
	"net/netip"
	"strings"

	"flannel/pkg/dataplane"
)

// dashedMAC is a MAC address of a document. HNS writes 00-15-5D-01-02-03. Documents of other programs may have colons,
// which HNS does not change; both are read. The text of the zero address, which HNS has not assigned yet, is "".
type dashedMAC dataplane.MAC

// MarshalText implements encoding.TextMarshaler.
func (a dashedMAC) MarshalText() ([]byte, error) {
	return []byte(strings.ToUpper(strings.ReplaceAll(dataplane.MAC(a).String(), ":", "-"))), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (a *dashedMAC) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		return nil
	}
	return (*dataplane.MAC)(a).UnmarshalText(text)
}

// Types of networks: an overlay encapsulates packets (VXLAN), an L2Bridge connects pods to the underlay directly
// (host-gw).
const (
	Overlay  = "Overlay"
	L2Bridge = "L2Bridge"
)

// DefaultVxlanPort is the UDP port of an overlay without policy VxlanPort.
const DefaultVxlanPort = 4789

// Network is an HNS network, reduced to the properties that we use.
type Network struct {
	ID            string // chosen by HNS
	Name          string
	Type          string
	Adapter       string // the physical adapter's name; "": HNS chooses
	Subnets       []Subnet
	DNS           []string
	MACs          [2]dataplane.MAC // first and last of the pool from which endpoints get theirs; zero: HNS chooses
	VxlanPort     uint16           // 0: DefaultVxlanPort
	NonPersistent bool             // HNS deletes the network when it restarts
	HostIP        netip.Addr       // selects the adapter by its address, instead of Adapter, in an HNS that can; only to create it

	// The following fields are set by HNS, and ignored by CreateNetwork.
	ManagementIP netip.Addr    // the host's address on it; zero: not assigned yet
	DRMAC        dataplane.MAC // of the distributed router, which is the VTEP; zero: not assigned yet
	HostRoute    bool          // it has HostRoutePolicy
	Policies     []Policy      // all policies of the network itself, not of its subnets

	Unread error // not nil: the document could not be decoded, and only ID and Name are set
}

// Subnet is a subnet of a network.
type Subnet struct {
	Prefix  netip.Prefix
	Gateway netip.Addr
	VSID    uint32 // the VNI of an overlay, 24 bits; 0: none
}

// Policy is a policy of a network. Settings are byte for byte those that HNS returned, because HNS only removes a policy
// whose settings are equal to the request's.
type Policy struct {
	Type     string
	Settings json.RawMessage `json:",omitempty"`
}

// RemoteSubnet is the route to a peer's subnet on an overlay (policy RemoteSubnetRoute). A VSID is what HNS calls a VNI.
type RemoteSubnet struct {
	Prefix   netip.Prefix
	VSID     uint32        // 24 bits
	Provider netip.Addr    // the peer's address on the underlay
	MAC      dataplane.MAC // of the peer's VTEP
}

// Endpoint is an HNS endpoint of one of the kinds that we create: that of the host on an L2Bridge, or a remote one that
// represents a peer if HNS does not support RemoteSubnetRoute.
type Endpoint struct {
	ID       string // chosen by HNS
	Name     string
	Network  string // ID of the network
	IPs      []netip.Prefix
	Gateways []netip.Addr
	MAC      dataplane.MAC // zero: HNS chooses
	Remote   bool
	Provider netip.Addr // only if Remote: the peer's address on the underlay
	// Namespace is the ID of its namespace, which HNS sets; "": it is in none, or HNS does not say so.
	Namespace string
	Policies  []Policy // beside those that the fields above become; only to create it
}

// Use says who uses an endpoint. Without Containers and Attached, nobody does.
type Use struct {
	Containers []string // IDs
	Attached   bool     // to a container or to the host
}

// Namespace is a network compartment: that of a pod, or the host's.
type Namespace struct {
	ID        string
	Endpoints []string // IDs
}

// Virtual reports whether this is the host's adapter on a virtual switch. It accepts the name or the description, since
// the name may have been changed, and the description may be in the user's language. The adapter of a Hyper-V guest,
// "Microsoft Hyper-V Network Adapter", is not virtual in this sense.
func (a Adapter) Virtual() bool {
	return strings.HasPrefix(a.Name, "vEthernet") || strings.HasPrefix(a.Description, "Hyper-V") && strings.Contains(a.Description, "Ethernet")
}
