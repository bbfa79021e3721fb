// Package subnet has the types of a node's lease on a part of the pod network, the interface of the stores that keep the
// leases (Manager), the network configuration, and the file that passes the lease to the CNI plugin (subnet.env).
//
// What both stores need to live with servers that do not answer, or to which others write, is here
// too: pauses between attempts, a log of outages, and the connections to drop.
package subnet

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
)

// Lease is one node's part of the pod network and how to reach it.
// A lease that a Manager has handed out is never changed; an unchanged peer keeps its pointer from one Set (the leases of
// all other nodes, see Manager.Watch) to the next.
type Lease struct {
	// Name identifies the lease in its store: the etcd key or the name of the Kubernetes Node.
	Name string
	// Since orders the leases of one store by age: the smaller number is the older lease. With etcd it is the revision at
	// which the key was created, with Kubernetes the Unix time in seconds at which the Node was.
	Since int64
	// Backend is the type as published ("vxlan"). It is empty before the owner has published how to reach it; with
	// flannel's backends udp and alloc it stays empty.
	Backend string
	// V4 and V6: a zero Endpoint means that the node does not use that family. At least one is in use in a lease that a
	// Manager hands over as a peer's.
	V4, V6 Endpoint
}

// Endpoint is one address family of a lease.
type Endpoint struct {
	Subnet   netip.Prefix    // masked; the zero Prefix: family off
	PublicIP netip.Addr      // the node address to which other nodes send packets for Subnet
	Data     json.RawMessage // what the node's backend published for its peers, such as a MAC address; nil: nothing
}

// On reports whether the family is in use.
func (e Endpoint) On() bool { return e.Subnet.IsValid() }

// Endpoints returns the families in use, IPv4 first.
func (l *Lease) Endpoints() []Endpoint {
	on := make([]Endpoint, 0, 2) // a constant capacity, so that it stays on the caller's stack
	for _, e := range []Endpoint{l.V4, l.V6} {
		if e.On() {
			on = append(on, e)
		}
	}
	return on
}

// String formats the lease for messages: "10.5.34.0/24 at 192.168.64.3", and the other family after a comma.
func (l *Lease) String() string {
	var parts []string
	for _, e := range l.Endpoints() {
		parts = append(parts, fmt.Sprintf("%s at %s", e.Subnet, e.PublicIP))
	}
	return strings.Join(parts, ", ")
}

// Equal reports whether l and o have the same content: all but Name and Since, which belong to the entry in the store.
func (l *Lease) Equal(o *Lease) bool {
	return l.Backend == o.Backend && l.V4.equal(o.V4) && l.V6.equal(o.V6)
}

// equal compares all fields; Data byte for byte.
func (e Endpoint) equal(o Endpoint) bool {
	return e.Subnet == o.Subnet && e.PublicIP == o.PublicIP && bytes.Equal(e.Data, o.Data)
}

// SameNode reports whether l and o, each with a family in use, have the same public address: IPv4 if o has IPv4, else
// IPv6. With etcd, the next lease of a node has another Name (the key), so that only the address shows that
// both are of one node.
func (l *Lease) SameNode(o *Lease) bool {
	return o.V4.On() && o.V4.PublicIP == l.V4.PublicIP || !o.V4.On() && o.V6.PublicIP == l.V6.PublicIP
}

// Within reports whether a subnet of l equals a subnet of o, or lies in one. The reverse does not count: package peerset
// takes l for the successor of a lost lease that l is within, and in etcd, one large subnet could contain the leases
// of all nodes.
func (l *Lease) Within(o *Lease) bool {
	return within(l.V4.Subnet, o.V4.Subnet) || within(l.V6.Subnet, o.V6.Subnet)
}

// within reports whether a network is in another, or the same. The zero Prefix (family off) is in none, and has none in it.
func within(part, whole netip.Prefix) bool {
	return part.IsValid() && whole.IsValid() && whole.Bits() <= part.Bits() && whole.Contains(part.Addr())
}

// Compare orders the leases of a Set, by subnet, IPv4 first. Leases with the same subnets are ordered by name, so that
// every node sees the same one first.
func Compare(a, b *Lease) int {
	if c := a.V4.Subnet.Compare(b.V4.Subnet); c != 0 {
		return c
	}
	if c := a.V6.Subnet.Compare(b.V6.Subnet); c != 0 { // only now: to compare zero prefixes allocates an error
		return c
	}
	return cmp.Compare(a.Name, b.Name)
}
