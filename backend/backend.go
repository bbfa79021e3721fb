// Package backend says what a backend is: pure knowledge of how the subnets of a cluster are joined. A backend holds
// no state, makes no system call and carries no build tag; what an operating system cannot do is data that it checks.
package backend

import (
	"flannel/pkg/conf"
	"flannel/pkg/dataplane"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

// Backend turns leases into devices and paths for one node.
type Backend interface {
	// Devices are those that this node needs, and, as dataplane.Existing, the underlay.
	Devices(local subnet.Lease) []dataplane.Device
	// Describe completes the lease with what the others need to reach this node. links holds every one of Devices.
	Describe(local subnet.Lease, links dataplane.Links) (subnet.Lease, error)
	// Paths leads to a peer's subnets, one for each family. An error leaves that peer out and says why.
	Paths(peer *subnet.Lease) ([]*dataplane.Path, error)
	// MTU is what pods may use, in bytes (FLANNEL_MTU).
	MTU() int
	// Wire says what the peers must have in common with this node.
	Wire() Wire
}

// Wire is what nodes must have in common to reach each other, as far as the configuration decides that.
type Wire struct {
	Name  string // equal on nodes that reach each other, and for people: "vxlan, VNI 1, port 8472"
	Paths bool   // it leads to peers at all
	Echo  bool   // a peer's kernel answers at the first or the second address of its subnet, through what leads there
}

// Mixed is a Backend of Linux with options that Windows nodes do not have.
type Mixed interface {
	// ForWindows says in a sentence what keeps this node and Windows nodes apart, and what to change; "": nothing.
	ForWindows() string
}

// Tunnel is a Backend whose tunnel ends have MAC addresses, of which no two nodes can have the same.
type Tunnel interface {
	// Ends are the paths through the tunnel to a peer's subnets, one for each family, also where Paths avoids the tunnel.
	Ends(peer *subnet.Lease) ([]*dataplane.Path, error)
	// Derived reports whether the MAC address of an end is the one that every node can work out from its subnet. An
	// existing device may have another one, but this one is nobody else's.
	Derived(end *dataplane.Path) bool
}

// Node is what a backend must know of the machine.
type Node struct {
	OS       string // runtime.GOOS
	Underlay underlay.Link
	V4, V6   bool // the families that the configuration enables
}

// Maker makes the backend for a node. Warnings are for the operator; an error names an impossible combination of
// configuration and node.
type Maker func(Node) (b Backend, warnings []string, err error)

// Kind is one row in the program's table of backends.
type Kind struct {
	Name string // as in the configuration's Backend.Type and in leases
	// Parse reads the configuration's Backend object and records its problems there; os is runtime.GOOS.
	Parse func(o *conf.Object, os string) Maker
	// V4Only lists the operating systems (runtime.GOOS) on which it has no IPv6: there a node joins with IPv4 alone.
	V4Only []string
}
