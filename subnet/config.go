package subnet

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Config is the validated network configuration (ParseConfig), without the part that the backend reads.
type Config struct {
	V4, V6   Network // a zero Network: family off
	Backend  string  // Backend.Type, in lower case; "": not set
	NFTables bool    // EnableNFTables

	// V4Only: EnableIPv6 is true, but the backend has no IPv6 on this system, so that V6 is off.
	V4Only bool

	Guard        Guard
	GuardTrial   time.Duration  // how long the guard must not have counted packets of a peer before it drops any
	GuardSources []netip.Prefix // from which peers may send, beside their public IPs; masked

	// Underlay are this node's own addresses on the underlay, and the networks that it reaches there without a gateway.
	// It is not read from the configuration, but set when the underlay is known.
	Underlay []netip.Prefix

	// Filed are the subnets in this node's subnet file, which may be those of another network; see Manager.Acquire. Like
	// Underlay, they are not read from the configuration.
	Filed []netip.Prefix
}

// Network is the pod network of one family, and its division into subnets.
type Network struct {
	Prefix    netip.Prefix // masked
	SubnetLen int          // prefix length of a node's subnet, in bits
	Min, Max  netip.Addr   // base addresses of the first and the last subnet that may be leased
}

// On reports whether the family is in use.
func (n Network) On() bool { return n.Prefix.IsValid() }

// Holds reports whether s is a proper part of the network, as every node's subnet is.
func (n Network) Holds(s netip.Prefix) bool {
	return n.Prefix.Contains(s.Addr()) && s.Bits() > n.Prefix.Bits()
}

// NetworkOf returns the network of the address family of a.
func (c Config) NetworkOf(a netip.Addr) Network {
	if a.Is6() {
		return c.V6
	}
	return c.V4
}

// Covers returns an element of Underlay that s contains, if there is one.
func (c Config) Covers(s netip.Prefix) (under netip.Prefix, covers bool) {
	for _, under := range c.Underlay {
		if s.Bits() <= under.Bits() && s.Contains(under.Addr()) {
			return under, true
		}
	}
	return netip.Prefix{}, false
}

// CheckUnderlay returns an error if a subnet of this node contains a part of its underlay: packets to other nodes would be
// routed to its own pods.
func (c Config) CheckUnderlay(subnets ...netip.Prefix) error {
	for _, s := range subnets {
		if under, covers := c.Covers(s); covers {
			return fmt.Errorf("subnet %s of this node contains %s of the underlay: assign another subnet, or choose another interface (--iface)",
				s, under)
		}
	}
	return nil
}

// MaxSources is how many sources a lease may have.
const MaxSources = 4

// CheckSource returns an error if packets of no node's tunnel come from a.
func (c Config) CheckSource(a netip.Addr) error {
	switch {
	case !a.IsValid() || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast() || a.Is4In6() || a.Zone() != "" ||
		a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return fmt.Errorf("source %s cannot be a node's address on the underlay", a)
	case c.NetworkOf(a).Prefix.Contains(a):
		return fmt.Errorf("source %s is inside the pod network %s", a, c.NetworkOf(a).Prefix)
	}
	return nil
}

// InsideNetwork returns a warning for each of our underlay addresses inside a pod network. This works, because only leased
// subnets are routed, unless a subnet is leased that contains the address of another node.
func (c Config) InsideNetwork() (warnings []string) {
	for i, n := range []Network{c.V4, c.V6} {
		for _, under := range c.Underlay {
			if n.On() && under.IsSingleIP() && n.Prefix.Contains(under.Addr()) {
				warnings = append(warnings, fmt.Sprintf("%s %s contains this node's address %s; make sure that no leased subnet contains the address of a node",
					families[i].network, n.Prefix, under.Addr()))
			}
		}
	}
	return warnings
}

// InsideUnderlay returns a warning for each of this node's subnets that lies inside a network of its underlay. This works,
// but routes to leased subnets take precedence over that network, so that its hosts with such addresses are cut off.
func (c Config) InsideUnderlay(subnets ...netip.Prefix) (warnings []string) {
	for _, s := range subnets {
		for _, under := range c.Underlay {
			if s.IsValid() && under.Bits() < s.Bits() && under.Contains(s.Addr()) {
				warnings = append(warnings, fmt.Sprintf("subnet %s of this node lies inside the network %s of its underlay; make sure that no host has an address in the subnet of a node, which the nodes could not reach",
					s, under))
			}
		}
	}
	return warnings
}

// CanBecome returns an error if a running daemon cannot apply next, because its pods have addresses that would not be in
// the network any more. The error says in one sentence what changed and requires a restart.
func (c Config) CanBecome(next Config) error {
	var changes []string
	for i, before := range []Network{c.V4, c.V6} {
		f, after := families[i], []Network{next.V4, next.V6}[i]
		switch {
		case before.On() == after.On():
			if before.Prefix != after.Prefix {
				changes = append(changes, fmt.Sprintf("%s changed from %s to %s", f.network, before.Prefix, after.Prefix))
			}
			if before.SubnetLen != after.SubnetLen {
				changes = append(changes, fmt.Sprintf("%s changed from %d to %d", f.length, before.SubnetLen, after.SubnetLen))
			}
		case next.V4Only && before.On():
			changes = append(changes, fmt.Sprintf("%s has no IPv6 on this system, and pods have IPv6 addresses", next.Backend))
		case c.V4Only && after.On():
			changes = append(changes, fmt.Sprintf("%s has IPv6, and this node has no IPv6 subnet because of %s", next.Backend, c.Backend))
		default:
			changes = append(changes, fmt.Sprintf("%s changed from %t to %t", f.enable, before.On(), after.On()))
		}
	}
	if len(changes) == 0 {
		return nil
	}
	return fmt.Errorf("%s: this takes effect only when flanneld is restarted", strings.Join(changes, ", "))
}
