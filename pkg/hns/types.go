package hns

import (
	"encoding/json"
	"net/netip"
	"strings"

	"flannel/pkg/mac"
)

// dashed is how HNS writes a MAC address. It keeps what others wrote, and some write colons.
func dashed(a mac.Addr) string { return strings.ToUpper(strings.ReplaceAll(a.String(), ":", "-")) }

// Types of networks.
const (
	Overlay  = "Overlay"
	L2Bridge = "L2Bridge"
)

// DefaultVxlanPort is what an overlay uses that was not told another.
const DefaultVxlanPort = 4789

// Network is an HNS network, as far as we know of such.
type Network struct {
	ID            string // HNS gives it
	Name          string
	Type          string
	Adapter       string // the physical adapter's name
	Subnets       []Subnet
	DNS           []string
	MACs          [2]mac.Addr // first and last of the pool for endpoints; zero: HNS chooses
	VxlanPort     uint16      // 0: HNS's own, 4789
	NonPersistent bool        // gone when the service restarts

	// What HNS has besides; CreateNetwork does not ask for it.
	ManagementIP netip.Addr // the host's address on it; zero: not there yet
	DRMAC        mac.Addr   // of the distributed router, the VTEP; zero: not there yet
	HostRoute    bool       // pods and host reach each other; see HostRoutePolicy
	Policies     []Policy   // all of the network itself, not of its subnets

	Unread error // why of others' networks, of kinds that we do not know, only ID and Name are here
}

// Subnet is one of a network.
type Subnet struct {
	Prefix  netip.Prefix
	Gateway netip.Addr
	VSID    uint32 // 24 bits; 0: none
}

// Policy is a policy of a network, its settings byte for byte as HNS has them: it removes only what it is given back as
// it was.
type Policy struct {
	Type     string
	Settings json.RawMessage `json:",omitempty"`
}

// RemoteSubnet is the way to a peer's subnet on an overlay (policy RemoteSubnetRoute).
type RemoteSubnet struct {
	Prefix   netip.Prefix
	VSID     uint32     // 24 bits
	Provider netip.Addr // the peer's address on the underlay
	MAC      mac.Addr   // of the peer's VTEP
}

// Endpoint is an HNS endpoint, as far as we make such: that of the host on a bridge, or one that stands for a peer
// where HNS has no RemoteSubnetRoute.
type Endpoint struct {
	ID       string // HNS gives it
	Name     string
	Network  string // its ID
	IPs      []netip.Prefix
	Gateways []netip.Addr
	MAC      mac.Addr // zero: HNS chooses
	Remote   bool
	Provider netip.Addr // of a remote one: the peer's address on the underlay
}

// Virtual tells the host's adapters on virtual switches from all others; those of Hyper-V's guests are "Microsoft Hyper-V
// Network Adapter". A name may have been changed, and a description be in the user's language.
func (a Adapter) Virtual() bool {
	return strings.HasPrefix(a.Name, "vEthernet") || strings.HasPrefix(a.Description, "Hyper-V") && strings.Contains(a.Description, "Ethernet")
}
