package underlay

import (
	"net/netip"
	"regexp"

	"flannel/pkg/dataplane"
)

// Options are the user's flags for the underlay. See candidates for their order.
type Options struct {
	Iface              []string         // --iface: names or addresses, tried in order
	IfaceRegex         []*regexp.Regexp // --iface-regex: tried after every Iface, against addresses first, then names
	CanReach           netip.Addr       // --iface-can-reach: use the interface of the route to it; zero: not set
	PublicV4, PublicV6 netip.Addr       // published instead of the interface's address; zero: not set
}

// Snapshot is the state of the operating system's interfaces and routes at one
// moment.
type Snapshot struct {
	Interfaces []Interface // sorted by index
	Defaults   []Default   // default routes of the main table, both families
	Reach      Reach       // the route to Options.CanReach; zero if that is not set
}

// Interface is a network interface.
type Interface struct {
	Name     string
	AltNames []string // other names by which --iface finds it
	Alias    string   // one of AltNames that a regex may also match; "": none
	Index    int
	MTU      int           // bytes
	MAC      dataplane.MAC // zero if it has no 48-bit address
	Up       bool          // Linux: set up, with or without a cable; Windows: see hns.Adapter
	Loopback bool
	Veth     bool           // Linux: a device of a veth pair, as those of most pods are
	Addrs    []Addr         // oldest first within a family
	OnLink   []netip.Prefix // networks with a route to the interface and no gateway
}

// Addr is an address of an interface.
type Addr struct {
	IP           netip.Addr
	Net          netip.Prefix // the network that is on-link because of this address; zero: none
	Host         bool         // permanent, and its prefix has no other address (/32, /128), so that it may float; see floats
	Global       bool         // has global scope in the operating system
	Secondary    bool         // IPv4: the interface has an older address in the same network
	Temporary    bool         // IPv6: a privacy address, replaced after hours or days
	Deprecated   bool         // not to be used for new connections
	Tentative    bool         // duplicate address detection is running or has failed
	SelfAssigned bool         // IPv4: Windows chose it because there is no DHCP server (APIPA)
	DHCP         bool         // IPv4, Windows: a DHCP server gave it, and may give another one instead
}

// Default is a default route.
type Default struct {
	Index   int // of the interface
	V6      bool
	Gateway netip.Addr // zero: no gateway, or one of the other family
	OnLink  bool       // the route says that the gateway is on the link, whatever the addresses
	Source  netip.Addr // the preferred source address; zero: not set
	Metric  int        // the lowest wins
}

// Reach is the result of a route lookup.
type Reach struct {
	Index   int        // of the interface; 0: no route was found
	Source  netip.Addr // address that packets on this route have
	Problem string     // the system's reason why no route was found; may be empty
}
