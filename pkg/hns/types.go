package hns

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// Errors of HNS, told apart by code, for its texts are in the user's language.
var (
	ErrNotFound    = errors.New("not found")
	ErrExists      = errors.New("exists already")
	ErrUnavailable = errors.New("the Host Networking Service does not answer")
	ErrUnsupported = errors.New("not supported by this Windows")
	ErrTimeout     = errors.New("no answer in time")
)

// Version of HNS.
type Version struct{ Major, Minor int }

func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// MAC is a hardware address of 48 bits; HNS writes it with dashes.
type MAC [6]byte

func (m MAC) String() string {
	return strings.ToUpper(strings.ReplaceAll(net.HardwareAddr(m[:]).String(), ":", "-"))
}

// Types of networks.
const (
	Overlay  = "Overlay"
	L2Bridge = "L2Bridge"
)

// Network is an HNS network, as far as we know of such.
type Network struct {
	ID            string // HNS gives it
	Name          string
	Type          string
	Adapter       string // the physical adapter's name
	Subnets       []Subnet
	DNS           []string
	MACs          [2]MAC // first and last of the pool for endpoints; zero: HNS chooses
	VxlanPort     uint16 // 0: HNS's own, 4789
	HostRoute     bool   // pods and host reach each other
	NonPersistent bool   // gone when the service restarts

	// What HNS adds.
	ManagementIP netip.Addr // zero: not there yet
	DRMAC        MAC        // of the distributed router, the VTEP; zero: not there yet
	Policies     []Policy   // all, as HNS has them
}

// Subnet is one of a network.
type Subnet struct {
	Prefix  netip.Prefix
	Gateway netip.Addr
	VSID    uint32 // 0: none
}

// Policy is a policy of a network, its settings as HNS wrote them: it removes only what is given back to it letter by
// letter.
type Policy struct {
	Type     string
	Settings json.RawMessage
}

// RemoteSubnet is the way to a peer's subnet on an overlay (policy RemoteSubnetRoute).
type RemoteSubnet struct {
	Prefix   netip.Prefix
	VSID     uint32
	Provider netip.Addr // the peer's address on the underlay
	MAC      MAC        // of the peer's VTEP
}

// Endpoint is an HNS endpoint, as far as we make such: that of the host on a bridge, or one that stands for a peer
// where HNS has no RemoteSubnetRoute.
type Endpoint struct {
	ID       string
	Name     string
	Network  string // its ID
	IP       netip.Prefix
	Gateway  netip.Addr
	MAC      MAC
	Remote   bool
	Provider netip.Addr // of a remote one: the peer's address on the underlay
}
