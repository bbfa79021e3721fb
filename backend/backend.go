// Package backend has the backends, each in a file of its name: the knowledge of how the
// subnets of a cluster are connected. A backend has no state, makes no system calls and
// has no build tags; Kind.Parse gets the name of the operating system and checks what that
// supports. shared.go has what several backends use, and config.go parses the network
// configuration, of which the backend reads a part.
//
// The daemon makes the Backend in force from the network configuration and the
// underlay: Kind.Parse makes a Maker, which makes a Backend. package plan asks the
// Backend for the paths to peers.
package backend

import (
	"net/netip"

	"flannel/pkg/conf"
	"flannel/pkg/dataplane"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

// Backend translates leases to devices and paths for one node. The daemon's loop calls it,
// and so does a subnet.Judge on goroutines of the lease manager: it is never modified.
type Backend interface {
	// Devices returns the devices that this node needs, including the underlay: as
	// dataplane.Existing, which is never created or changed. local is this node's lease
	// since Acquire, with a subnet of each family in use.
	Devices(local subnet.Lease) []dataplane.Device
	// Describe completes this node's lease with what the peers need to reach it. links are
	// the existing devices. The error means that one of Devices is not among them, or lacks
	// what peers need: then the next pass of the loop tries again.
	Describe(local subnet.Lease, links dataplane.Links) (subnet.Lease, error)
	// Paths returns the paths to a peer's subnets, one for each family that both use. It
	// validates the lease's backend data only; package plan validates the rest. An error means
	// that the peer is rejected. It wraps subnet.ErrOtherConfig if the peer's data is valid,
	// and that of a node with another configuration.
	Paths(peer *subnet.Lease) ([]*dataplane.Path, error)
	// MTU returns the pods' MTU in bytes (FLANNEL_MTU).
	MTU() int
	// Wire returns what the peers must have in common with this node. A configuration with
	// another Wire disconnects nodes, so it is adopted in steps (pkg/daemon/rollout).
	Wire() Wire
	// ForWindows returns a sentence about what keeps this Linux node and Windows nodes from
	// reaching each other, and what to change; "": nothing.
	ForWindows() string

	// With vxlan and wireguard, a tunnel end has an identity that must be unique: the MAC
	// address of a VTEP, the key of a WireGuard device. package plan rejects one of two
	// leases with the same. Other backends have no such ends, and embed plain.

	// Ends returns the paths through the tunnel to a peer's subnets, one for each family.
	// Paths may return paths without the tunnel (DirectRouting) to the same peer. Without
	// such ends, it returns none.
	Ends(peer *subnet.Lease) ([]*dataplane.Path, error)
	// Derived reports whether the identity of the end of a path is the one that is derived
	// from the path's subnet. No other node may have that identity. It is false for a
	// device that got another MAC address, and for keys, which are random.
	Derived(end *dataplane.Path) bool
}

// Wire is the part of the configuration that nodes must have in common to reach
// each other: Name. The other fields follow from the backend. They say which pings
// show that a peer is reached.
type Wire struct {
	Name  string // equal on nodes that reach each other, such as "vxlan, VNI 1, port 8472"
	Paths bool   // the backend makes paths; false: others connect the nodes
	// Echo means that a peer's kernel answers pings to the base address of its subnet, which
	// its tunnel device has, and to the address after it, which the bridge of its pods has.
	Echo bool
	Keys bool // a node negotiates keys with each peer; Dataplane.Traffic says when it did last
	// Bridges is for backends without a tunnel device: a peer's kernel answers a ping to the
	// address of the bridge of its pods if pods have run on both nodes. The ping must come
	// from the address of our bridge. Both are the second addresses of the subnets.
	Bridges bool
	// Hops is the hop limit of a ping to a peer's pod that ends at the peer's kernel, which
	// answers "time exceeded" and so shows that it forwards; 0: its answer would not arrive.
	Hops int
	// Untyped means that a lease without a type (Lease.Backend) is complete: flannel
	// publishes none with this backend. With others, the owner has only reserved its subnet so far.
	Untyped bool
}

// Pending reports whether the owner of a lease has reserved its subnet, and not
// published yet how to reach it.
func (w Wire) Pending(l *subnet.Lease) bool { return l.Backend == "" && !w.Untyped }

// Node is what a backend needs to know about the machine.
type Node struct {
	Underlay underlay.Link // the interface to the other nodes
	V4, V6   bool          // the families that the configuration enables
	// Sources are the addresses from which this node's tunnel sends beside its public IPs,
	// so that the guard of a peer accepts its packets.
	Sources []netip.Addr
}

// Maker makes the backend for a node. The daemon calls it again after a change of the
// underlay, and calls that of a new configuration. Warnings are for the operator. The error
// means that the node does not support the configuration: a running daemon keeps the Backend
// that it has, and one that starts tries again.
type Maker func(Node) (b Backend, warnings []string, err error)

// Kind is a row of Kinds, the table of backends.
type Kind struct {
	Name string // in the configuration's Backend.Type and in leases
	// Parse parses the configuration's Backend object and records problems in it. With a
	// problem, the configuration is refused, and the Maker is not called. os is
	// runtime.GOOS.
	Parse func(o *conf.Object, os string) Maker
	// V4Only lists the operating systems (runtime.GOOS) on which the backend has no
	// IPv6. Nodes there join with IPv4 only.
	V4Only []string
	// Refused is set for a backend of flannel that this program does not have: the
	// reason, as the end of "X is not supported: …". Only Name is set beside it.
	Refused string
}
