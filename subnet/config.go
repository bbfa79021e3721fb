package subnet

import (
	"fmt"
	"net/netip"
	"strings"
)

// Config is the validated network configuration, but for what only the backend knows to read.
type Config struct {
	V4, V6   Network // a zero Network: family off
	Backend  string  // Backend.Type, in lower case; "" when the configuration names none
	NFTables bool    // EnableNFTables

	// Underlay are this node's own addresses on the underlay, and the networks that it reaches there without a gateway.
	// It is no part of what is written down, and is filled in when the underlay is known.
	Underlay []netip.Prefix
}

// Network is the pod network of one family and how it is divided.
type Network struct {
	Prefix    netip.Prefix // masked
	SubnetLen int          // prefix length of a node's subnet, in bits
	Min, Max  netip.Addr   // base addresses of the first and the last subnet that may be handed out
}

// On tells whether the family is in use.
func (n Network) On() bool { return n.Prefix.IsValid() }

// Holds tells whether s is a part of the network, as every node's subnet is.
func (n Network) Holds(s netip.Prefix) bool {
	return n.On() && s.IsValid() && n.Prefix.Contains(s.Addr()) && s.Bits() > n.Prefix.Bits()
}

// Covers returns a part of the underlay that lies inside s, if there is one.
func (c Config) Covers(s netip.Prefix) (under netip.Prefix, covers bool) {
	for _, under := range c.Underlay {
		if s.Bits() <= under.Bits() && s.Contains(under.Addr()) {
			return under, true
		}
	}
	return netip.Prefix{}, false
}

// CheckUnderlay refuses subnets for this node that cover a part of its underlay: packets to the other nodes would be
// taken for packets to its own pods.
func (c Config) CheckUnderlay(subnets ...netip.Prefix) error {
	for _, s := range subnets {
		if under, covers := c.Covers(s); s.IsValid() && covers {
			return fmt.Errorf("this node's subnet %s covers %s, which is a part of the underlay: give the node another subnet, or choose another interface (--iface)",
				s, under)
		}
	}
	return nil
}

// InsideNetwork names the addresses of the underlay that lie inside a pod network. That works, because only leased
// subnets are routed, but a subnet may be leased in which another node has its address.
func (c Config) InsideNetwork() (warnings []string) {
	for i, n := range []Network{c.V4, c.V6} {
		for _, under := range c.Underlay {
			if n.On() && under.IsSingleIP() && n.Prefix.Contains(under.Addr()) {
				warnings = append(warnings, fmt.Sprintf("%s %s contains this node's own address %s; see that no subnet is leased in which a node has an address",
					families[i].network, n.Prefix, under.Addr()))
			}
		}
	}
	return warnings
}

// CanBecome tells whether a running node may go over to next. The error says in one sentence what changed that only
// a restart can follow: the node's pods have addresses that would no longer fit.
func (c Config) CanBecome(next Config) error {
	var changes []string
	for i, was := range []Network{c.V4, c.V6} {
		f, will := families[i], []Network{next.V4, next.V6}[i]
		if was.On() != will.On() {
			changes = append(changes, fmt.Sprintf("%s changed from %t to %t", f.enable, was.On(), will.On()))
			continue
		}
		if was.Prefix != will.Prefix {
			changes = append(changes, fmt.Sprintf("%s changed from %s to %s", f.network, was.Prefix, will.Prefix))
		}
		if was.SubnetLen != will.SubnetLen {
			changes = append(changes, fmt.Sprintf("%s changed from %d to %d", f.length, was.SubnetLen, will.SubnetLen))
		}
	}
	if len(changes) == 0 {
		return nil
	}
	return fmt.Errorf("%s: this takes effect only when flanneld is restarted", strings.Join(changes, ", "))
}
