// Package backend has the backends, each in a file of its name: the knowledge of how the
// subnets of a cluster are connected. A backend has no state, makes no system calls and
// has no build tags; Kind.Parse gets the name of the operating system and checks what that
// supports. shared.go has what several backends use, and config.go parses the network
// configuration, of which the backend reads a part.
package backend

import (
	"net/netip"

	"flannel/pkg/conf"
	"flannel/pkg/dataplane"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

// Backend translates leases to devices and paths for one node.
type Backend interface {
	// Devices returns the devices that this node needs, including the underlay as
	// dataplane.Existing.
	Devices(local subnet.Lease) []dataplane.Device
	// Describe completes this node's lease with what the peers need to reach it. links
	// contains all of Devices.
	Describe(local subnet.Lease, links dataplane.Links) (subnet.Lease, error)
	// Paths returns the paths to a peer's subnets, one for each family. An error means
	// that the peer is rejected.
	Paths(peer *subnet.Lease) ([]*dataplane.Path, error)
	// MTU returns the pods' MTU in bytes (FLANNEL_MTU).
	MTU() int
	// Wire returns what the peers must have in common with this node.
	Wire() Wire
	// ForWindows returns a sentence about what keeps this Linux node and Windows nodes from
	// reaching each other, and what to change; "": nothing.
	ForWindows() string

	// Some tunnel ends have an identity that must be unique: the MAC addresses of VTEPs, the
	// keys of WireGuard. Other backends embed plain, which has none.

	// Ends returns the paths through the tunnel to a peer's subnets, one for each
	// family, even if Paths returns direct ones; none without such ends.
	Ends(peer *subnet.Lease) ([]*dataplane.Path, error)
	// Derived reports whether the identity of an end is the one that is derived from
	// its subnet. Other nodes never have it. A device that was made otherwise may have
	// another MAC address, and keys are never derived.
	Derived(end *dataplane.Path) bool
}

// Wire is the part of the configuration that nodes must have in common to reach
// each other.
type Wire struct {
	Name  string // equal on nodes that reach each other, such as "vxlan, VNI 1, port 8472"
	Paths bool   // the backend makes paths
	Echo  bool   // a peer's kernel answers pings to the first or second address of its subnet
	Keys  bool   // a node negotiates keys with each peer, and Dataplane.Traffic has the time
	// Bridges means that a peer's kernel answers pings from the second address of our subnet
	// to the second one of its own if pods have run on both nodes.
	Bridges bool
	// Hops is the hop limit of a packet to a peer's pod with which the peer's kernel is the
	// last to process it, and answers for the pod; 0: its answer would not arrive.
	Hops int
	// Untyped means that a lease without a type is complete: flannel publishes none
	// with this backend. With others, the owner has only reserved its subnet so far.
	Untyped bool
}

// Pending reports whether the owner of a lease has reserved its subnet, and not
// published yet how to reach it.
func (w Wire) Pending(l *subnet.Lease) bool { return l.Backend == "" && !w.Untyped }

// Node is what a backend needs to know about the machine.
type Node struct {
	Underlay underlay.Link
	V4, V6   bool // the families that the configuration enables
	// Sources are further addresses from which this node's tunnel sends.
	Sources []netip.Addr
}

// Maker makes the backend for a node, again after a change of the configuration or the
// underlay. Warnings are for the operator. The error means that the node does not support
// the configuration.
type Maker func(Node) (b Backend, warnings []string, err error)

// Kind is a row in the program's table of backends.
type Kind struct {
	Name string // in the configuration's Backend.Type and in leases
	// Parse parses the configuration's Backend object and records problems in it. os is
	// runtime.GOOS.
	Parse func(o *conf.Object, os string) Maker
	// V4Only lists the operating systems (runtime.GOOS) on which the backend has no
	// IPv6. Nodes there join with IPv4 only.
	V4Only []string
	// Refused is set for a backend of flannel that this program does not have: the
	// reason, as the end of "X is not supported: …". Only Name is set beside it.
	Refused string
}
