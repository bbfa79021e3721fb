// Package hns gives access to the networking of a Windows machine in our own types: to the Host Networking Service
// (HNS, called through hcsshim), to the IP stack (called through the IP Helper API), and to the Windows Firewall. It also
// finds running pods that have no endpoint. Only the _windows.go files call Windows. All else is pure Go, and runs on any
// system against the simulated machine of package hnstest.
//
// Words of HNS: a network is a virtual switch with subnets; an endpoint is the port of a pod, of the host or, if it is
// remote, of an address on another host; a namespace holds the endpoints of one pod, or of the host; a policy is a
// property of a network or an endpoint. Its API has a version 1 ("older API"), and a version 2, whose documents we use.
package hns

import (
	"encoding/json"
	"net/netip"

	"flannel/pkg/dataplane"
)

// Calls are the calls of HNS, one method each. Documents are JSON of the HCN schema, version 2.0
// (https://learn.microsoft.com/windows-server/networking/technologies/hcn/hcn-json-document-schemas). Client calls them
// on several goroutines.
//
// A call may hang forever. Therefore use Client, which has a timeout for each call. A call closes every handle that it
// opened before it returns, with the exceptions of Documentation/adr/0003. Compare errors with errors.Is (ErrNotFound …).
//
// The implementations are service (calls_windows.go) and the simulated HNS of package hnstest.
type Calls interface {
	Version() (Version, error)
	// Networks returns all networks.
	Networks() ([]json.RawMessage, error)
	// NetworksV1 returns the networks that the older API (v1) lists, with ID, Name and Type. Networks may
	// lack some of them.
	NetworksV1() ([]Network, error)
	// DeleteNetworkV1 deletes a network by the older API.
	DeleteNetworkV1(id string) error
	// CreateNetwork returns the network as HNS made it.
	CreateNetwork(document json.RawMessage) (json.RawMessage, error)
	DeleteNetwork(id string) error
	// ModifyNetwork takes a ModifyNetworkSettingRequest: policies to add or remove.
	ModifyNetwork(id string, request json.RawMessage) error
	// ManagementIP returns the host's address on a network, the zero Addr while HNS has not assigned it after the
	// creation. It uses the older API (v1), because documents of v2 do not contain the address of an L2Bridge.
	ManagementIP(network string) (netip.Addr, error)

	// EndpointIDs returns the IDs of the endpoints with a name, on all networks, or if name is "", of the endpoints on a
	// network. HNS may ignore the condition.
	EndpointIDs(network, name string) ([]string, error)
	Endpoint(id string) (json.RawMessage, error)
	CreateEndpoint(network string, document json.RawMessage) (json.RawMessage, error)
	DeleteEndpoint(id string) error
	// CreateEndpointV1 creates an endpoint by the older API, with at most one address of each family, and returns its ID.
	CreateEndpointV1(network, name string, ips []netip.Prefix) (id string, err error)
	// AttachHost attaches an endpoint to the host itself (compartment 1). It uses the older API, because v2 cannot do
	// it. If the endpoint is already attached, that is no error.
	AttachHost(endpoint string) error
	// EndpointUse returns who uses an endpoint, as the older API says: documents of v2 do not contain it.
	EndpointUse(id string) (Use, error)

	// NamespaceIDs returns the IDs of all namespaces, which are the network compartments of pods and of the host.
	NamespaceIDs() ([]string, error)
	Namespace(id string) (json.RawMessage, error)

	// Notify calls changed when networks changed, or when the service stopped or started, until stop is called.
	// changed may be called from any goroutine and must not block. ErrUnsupported means that this HNS has no
	// notifications, so that the caller must poll.
	Notify(changed func()) (stop func(), err error)
}

// Stack is the machine's IP stack, accessed through the IP Helper API. Routes, addresses and interface settings are
// written to the active store only, therefore they are gone after a reboot, unless SetPersistent stores them.
//
// The implementations are ipHelper (stack_windows.go) and the simulated machine of package hnstest. Only the calls for
// categories may hang.
type Stack interface {
	// Adapters returns all adapters of the default compartment, including hidden and disconnected ones.
	Adapters() ([]Adapter, error)
	Routes() ([]Route, error)
	// BestRoute returns the route to dst, and the source address of packets that are sent there.
	BestRoute(dst netip.Addr) (Route, netip.Addr, error)
	// AddRoute creates a route, or changes the metric of an existing one.
	AddRoute(Route) error
	// DeleteRoute deletes a route. If it does not exist, that is no error.
	DeleteRoute(Route) error
	// Interface returns the settings of a family on an adapter, ErrNotFound if the adapter does not have the family.
	Interface(index int, v6 bool) (Interface, error)
	// SetInterface sets all of the settings.
	SetInterface(index int, v6 bool, settings Interface) error
	// AddAddress adds a static address. If the adapter has it, that is no error, or ErrExists.
	AddAddress(index int, address netip.Prefix) error
	// DeleteAddress deletes an address. If it does not exist, that is no error.
	DeleteAddress(index int, address netip.Addr) error
	// SetDNS replaces the DNS servers of each family that has one in the list, for later boots, too.
	SetDNS(index int, servers []netip.Addr) error
	// ManualDNS returns the DNS servers that a person or a program has set on the adapter, without those from DHCP.
	ManualDNS(index int) ([]netip.Addr, error)
	// SetDNSRegistration makes Windows register the adapter's addresses in DNS, or not.
	SetDNSRegistration(index int, on bool) error
	// Persistent returns what the adapter gets at the next boot. ErrNotFound means that it is not stored whether DHCP
	// configures the adapter; the other values are then those that are stored, such as an MTU.
	Persistent(index int) (Persistent, error)
	// SetPersistent stores what the adapter gets at the next boot. If that turns DHCP on or off, it takes effect at
	// once. Windows may, or may not, also apply the addresses and gateways to the active store.
	SetPersistent(index int, p Persistent) error
	// BootID returns a text that is another one after each reboot.
	BootID() (string, error)
	// VLAN returns the VLAN whose tag the driver of an adapter adds to packets; 0: none, or it is not known.
	VLAN(guid string) int
	// Watch calls changed, from any goroutine, after a change of adapters, addresses or routes, until stop is called.
	Watch(changed func()) (stop func(), err error)

	// Category returns the category of the network to which an adapter is connected, ErrNotFound if it is not connected, or
	// if Windows has not identified the network yet. Use a CategoryClient.
	Category(adapterGUID string) (Category, error)
	// SetCategory sets Public or Private, at once and for later boots. AccessDenied means that a group policy forbids it.
	SetCategory(adapterGUID string, c Category) error
}

// Adapter is a network adapter.
type Adapter struct {
	Name        string // the friendly name: "Ethernet", "vEthernet (Ethernet)"
	Description string // of the driver: "Hyper-V Virtual Ethernet Adapter"
	GUID        string // lower case, without braces; does not change when the adapter is renamed
	Index       int
	MTU         int // bytes
	MAC         dataplane.MAC
	Up          bool // enabled, and the cable is plugged in
	Loopback    bool
	Kind        Kind
	V4Metric    int // Windows adds it to the metric of the adapter's routes
	V6Metric    int
	Addrs       []Address
	DNS         []netip.Addr
	DHCP        bool // for IPv4
	Registers   bool // Windows registers its addresses in DNS
}

// Kind says what an adapter is, as far as a virtual switch depends on it.
type Kind int

// Kinds of adapters.
const (
	Ethernet Kind = iota // or any other
	WiFi
	Tunnel // packets without Ethernet frames: a VPN
	Team   // several adapters, teamed by Windows (LBFO)
)

// Interface holds the settings of a family on an adapter.
type Interface struct {
	Forwarding bool // packets that arrive on the adapter are forwarded
	Metric     int  // 0: Windows derives it from the adapter's speed
	MTU        int  // bytes
}

// Persistent is the IPv4 configuration that an adapter gets at boot. The DNS servers are not part of it, because SetDNS
// is persistent by itself.
type Persistent struct {
	DHCP     bool           // the rest, except for Metric and MTU, is ignored then
	Addrs    []netip.Prefix // with the lengths of their on-link prefixes
	Gateways []Gateway
	Metric   int // of the interface; 0: Windows derives it from the adapter's speed
	MTU      int // bytes; 0: that of the driver
}

// Gateway is the next hop of a default route.
type Gateway struct {
	Addr   netip.Addr
	Metric int // of the route, without the interface's; 0: Windows chooses it
}

// Address is an address of an adapter.
type Address struct {
	Prefix    netip.Prefix // the address, with the length of its on-link prefix
	Manual    bool         // set by a person or a program, not by DHCP, router advertisement or APIPA
	Preferred bool         // may be used for new connections
	Tentative bool         // duplicate address detection is running or has failed
	Temporary bool         // IPv6: a privacy address, replaced after hours or days
}

// Route is a row of the routing table.
type Route struct {
	Dst     netip.Prefix
	NextHop netip.Addr // unspecified: on-link
	Index   int        // of the adapter
	Metric  int        // of the route, without the interface's, which Windows adds
	Ours    bool       // created by a program (MIB_IPPROTO_NETMGMT), which may be us, not by the stack itself
}
