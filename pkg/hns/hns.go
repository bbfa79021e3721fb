// Package hns is what a Windows machine offers to a network daemon, in our own types: the Host Networking Service
// (HNS, reached through hcsshim) and the IP stack (reached through the IP Helper API). Files for Windows bring both
// into it; all else is pure, and runs against the simulated machine of package hnstest on any system.
package hns

import (
	"encoding/json"
	"net/netip"

	"flannel/pkg/mac"
)

// Calls are the calls of HNS, one method each. Documents are JSON of the HCN schema, version 2.0
// (https://learn.microsoft.com/windows-server/networking/technologies/hcn/hcn-json-document-schemas).
// A call may hang: whoever calls must not wait for it without end; Client does not. Every handle that a call opens is
// closed before it returns, but for what Documentation/adr/0003 says of HNS in trouble. Errors are told apart by
// errors.Is (ErrNotFound …).
type Calls interface {
	Version() (Version, error)
	// Networks returns all networks.
	Networks() ([]json.RawMessage, error)
	// CreateNetwork returns the network as HNS made it.
	CreateNetwork(document json.RawMessage) (json.RawMessage, error)
	DeleteNetwork(id string) error
	// ModifyNetwork takes a ModifyNetworkSettingRequest: policies to add or remove.
	ModifyNetwork(id string, request json.RawMessage) error
	// ManagementIP is the host's address on a network, by the older API (v1): documents of v2 do not tell that of an
	// L2Bridge. It is not there at once after the network was made: the zero Addr.
	ManagementIP(network string) (netip.Addr, error)

	// Endpoints returns those of one network.
	Endpoints(network string) ([]json.RawMessage, error)
	CreateEndpoint(network string, document json.RawMessage) (json.RawMessage, error)
	DeleteEndpoint(id string) error
	// AttachHost gives an endpoint to the host itself (compartment 1), by the older API: v2 cannot.
	// One that is attached already is no error.
	AttachHost(endpoint string) error

	// Notify calls changed (from any goroutine, without blocking it) when HNS says that networks changed or that the
	// service itself came or went. stop ends that. ErrUnsupported: this HNS tells nothing, so poll.
	Notify(changed func()) (stop func(), err error)
}

// Stack is the machine's IP stack, as the IP Helper API shows it. Writing goes to the active store alone: what we set is
// gone after a reboot.
type Stack interface {
	// Adapters returns all of the default compartment, hidden and disconnected ones too.
	Adapters() ([]Adapter, error)
	Routes() ([]Route, error)
	// BestRoute is the way to dst and the source address of packets that go there.
	BestRoute(dst netip.Addr) (Route, netip.Addr, error)
	// AddRoute makes a route, or changes the metric of one that is there.
	AddRoute(Route) error
	// DeleteRoute removes one; one that is gone already is no error.
	DeleteRoute(Route) error
	// Forwarding tells whether packets of a family that arrive on the adapter are forwarded.
	Forwarding(index int, v6 bool) (bool, error)
	SetForwarding(index int, v6, on bool) error
	AddAddress(index int, address netip.Prefix) error
	SetDNS(index int, servers []netip.Addr) error
	// Watch calls changed (from any goroutine) after a change of adapters, addresses or routes. stop ends that.
	Watch(changed func()) (stop func(), err error)
}

// Adapter is a network adapter.
type Adapter struct {
	Name        string // as the user knows it: "Ethernet", "vEthernet (Ethernet)"
	Description string // of the driver: "Hyper-V Virtual Ethernet Adapter"
	GUID        string // lower case, without braces; survives renaming
	Index       int
	MTU         int // bytes
	MAC         mac.Addr
	Up          bool // for IP: switched on, and the cable is plugged in
	Loopback    bool
	V4Metric    int // what Windows adds to the metric of its routes
	V6Metric    int
	Addrs       []Address
	DNS         []netip.Addr
	DHCP        bool // IPv4 addresses come by DHCP
}

// Address is one of an adapter.
type Address struct {
	Prefix    netip.Prefix // the address, with the length of its on-link prefix
	Manual    bool         // set by a person or a program, not by DHCP, router advertisement or chance
	Preferred bool         // for new connections
	Tentative bool         // not yet, or not successfully, checked for duplicates
	Temporary bool         // IPv6: random, soon to be replaced
}

// Route is a row of the routing table.
type Route struct {
	Dst     netip.Prefix
	NextHop netip.Addr // unspecified: on-link
	Index   int        // of the adapter
	Metric  int        // of the route alone; Windows adds the interface's
	Ours    bool       // made by a program like ours (MIB_IPPROTO_NETMGMT), not by the stack itself
}
