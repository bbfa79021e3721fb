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

// CheckUnderlay refuses a pod network that contains one of the node's own addresses on the underlay: packets to the
// other nodes would be taken for packets to pods. Zero addresses do not count.
func (c Config) CheckUnderlay(addrs ...netip.Addr) error {
	for i, n := range []Network{c.V4, c.V6} {
		for _, a := range addrs {
			if n.On() && n.Prefix.Contains(a.Unmap().WithZone("")) {
				return fmt.Errorf("%s %s contains this node's own address %s: use a network that no node has an address in, or another interface (--iface)",
					families[i].network, n.Prefix, a)
			}
		}
	}
	return nil
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
