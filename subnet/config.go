package subnet

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Config is the validated network configuration (ParseConfig), without the part that the backend reads. It is passed as
// a copy, and what its slices contain is never modified.
type Config struct {
	V4, V6   Network // a zero Network: family off
	Backend  string  // Backend.Type, in lower case; "" after ParseConfig: not set, so that its caller sets the default
	NFTables bool    // EnableNFTables: the firewall's rules are written by nftables, not by iptables

	// V4Only: EnableIPv6 is true, but the backend has no IPv6 on this system, so that V6 is off.
	V4Only bool

	Guard Guard
	// GuardTrial is how long a guard that is to drop packets only counts them at first. It begins anew with each packet
	// that would have been dropped and claims to be from a peer's pod.
	GuardTrial   time.Duration
	GuardSources []netip.Prefix // from which peers may send, beside their public IPs; masked

	// The daemon sets these, which ParseConfig leaves empty.

	// Assigned: the cluster assigns the nodes' subnets (Kubernetes), whatever their length; no node can change its own.
	Assigned bool
	// Underlay are this node's own addresses on the underlay, as prefixes of one address, and the networks that it reaches
	// there without a gateway.
	Underlay []netip.Prefix
	// Filed are the subnets in this node's subnet file, which may be those of another network. Only the cfg of
	// Manager.Acquire has them.
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

// Covers returns an element of Underlay that the subnet s contains, if there is one.
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

// MaxSources is how many sources a lease may have: addresses from which the node's tunnel sends, beside its public IP.
// The guard of a peer accepts packets from them.
const MaxSources = 4

// CheckSource returns an error if a cannot be such a source of any node.
func (c Config) CheckSource(a netip.Addr) error {
	if err := CheckNodeAddress(a); err != nil {
		return fmt.Errorf("source %w", err)
	}
	if network := c.NetworkOf(a).Prefix; network.Contains(a) {
		return fmt.Errorf("source %s is inside the pod network %s", a, network)
	}
	return nil
}

// CheckNodeAddress returns an error for an address at which other nodes cannot reach a node, such as loopback or
// link-local. Peers with one are rejected; in an annotation it is ignored; a node that publishes one warns.
func CheckNodeAddress(a netip.Addr) error {
	if !a.IsValid() || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast() || a.Is4In6() || a.Zone() != "" ||
		a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return fmt.Errorf("%s cannot be a node's address on the underlay", a)
	}
	return nil
}

// InsideNetwork returns a warning for each of our underlay addresses inside a pod network. Such a network works for as
// long as no leased subnet contains the address of a node: only leased subnets are routed.
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

// InsideUnderlay returns a warning for each of this node's subnets that lies inside a network of its underlay. Such a
// subnet works, but the routes to it take precedence over that network: hosts of the network with addresses of the
// subnet are cut off.
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

// CanBecome returns an error if a running daemon cannot apply next, because its pods have addresses that would not be
// in the network any more. The error says in one sentence what changed and requires a restart. Until then, the daemon
// keeps c.
func (c Config) CanBecome(next Config) error {
	var changes []string
	for i, before := range []Network{c.V4, c.V6} {
		f, after := families[i], []Network{next.V4, next.V6}[i] // families has the names of the keys, IPv4 first
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
