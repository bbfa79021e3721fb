package underlay

import (
	"net/netip"
	"regexp"

	"flannel/pkg/mac"
)

// Options are what the user said about the underlay.
type Options struct {
	Iface              []string         // names or addresses, tried in order
	IfaceRegex         []*regexp.Regexp // tried after every Iface; matched against addresses first, then names
	CanReach           netip.Addr       // take what leads there; zero: not asked for
	PublicV4, PublicV6 netip.Addr       // told to the others instead of the interface's; zero: not asked for
}

// Snapshot is what the operating system says about its interfaces at one moment.
type Snapshot struct {
	Interfaces []Interface // by index
	Defaults   []Default   // default routes of the main table, both families
	Reach      Reach       // the way to Options.CanReach, where that was asked for
}

// Interface is a network interface.
type Interface struct {
	Name     string
	AltNames []string // other names that it answers to
	Alias    string   // one of them that a regex may match, too; may be empty
	Index    int
	MTU      int      // bytes
	MAC      mac.Addr // zero where it has none of 48 bits
	Up       bool     // switched on; whether the cable is plugged in makes no difference to the choice
	Loopback bool
	Addrs    []Addr         // oldest first within a family
	OnLink   []netip.Prefix // networks with a route to the interface and no gateway
}

// Addr is an address of an interface.
type Addr struct {
	IP         netip.Addr
	Net        netip.Prefix // what it makes reachable without a gateway; zero: nothing
	Global     bool         // of global scope, as the system has it
	Secondary  bool         // IPv4: there is an older one in the same network
	Temporary  bool         // IPv6: a privacy address, soon to be replaced
	Deprecated bool         // IPv6: no longer for new connections
	Tentative  bool         // not yet, or not successfully, checked for duplicates
	MadeUp     bool         // IPv4: chosen by chance because nobody gave another (APIPA)
}

// Default is a default route.
type Default struct {
	Index   int // of the interface
	V6      bool
	Gateway netip.Addr // zero: none needed
	Source  netip.Addr // the preferred source address; zero: none given
	Metric  int        // the lowest wins
}

// Reach is the answer to the question by what interface and with what source address another address is reached.
type Reach struct {
	Index   int
	Source  netip.Addr
	Problem string // why there is no answer
}
