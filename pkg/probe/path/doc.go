// Package path sends a few packets to one peer, each of which tests another part of the
// way, and returns what came of them as a doctor.Path. It changes nothing on the node:
// entries of the kernel are only read, and packets that the kernel would not send are
// made by hand. A sniffer sees where they leave and where answers arrive, before any
// firewall.
//
// It also has ICMP echo: Echo asks one address, and a Socket carries the probes of the daemon,
// for all peers.
package path

import (
	"net/netip"
	"time"
)

// Target is a peer whose pods should be reached, in one of its subnets.
type Target struct {
	Peer     string       // its name in the status report
	Subnet   netip.Prefix // its tunnel device, if any, has the first address
	PublicIP netip.Addr   // to which this node sends packets for Subnet
	Expected bool         // it has to answer: the daemon found that it does not, or the operator asked for it
	Blocked  bool         // the daemon found that it answers, and does not forward packets from or to its pods
	Own      netip.Prefix // this node's subnet of the same family
	Addrs    []netip.Addr // this node's, on the underlay
	Since    time.Time    // when the daemon found that it does not answer; zero: it did not
	Devices  []string     // that flanneld routes through
	Underlay string       // the one of Devices that is no tunnel of flanneld's, whatever its type and name

	// Of a WireGuard peer, whose port is not that of a device of this node.
	Endpoint  netip.AddrPort // zero: not known
	Port      uint16         // of the peer, or else this node's, which most peers have; 0: not known
	Handshake time.Time      // the last one; zero: none
}
