// Package subnet holds what a node has (a lease on a part of the pod network), where it comes from (a Manager),
// which of the others' leases can be believed (Vet), and the file that tells the CNI plugin about it (subnet.env).
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
// A lease that a Manager has handed out is never changed; an unchanged peer keeps its pointer from one Set to the next.
type Lease struct {
	// Name says where the lease was read, for messages: the etcd key or the name of the Kubernetes node.
	Name string
	// Since tells which of two leases of one store is the older: the one with the smaller number.
	Since int64
	// Backend is the type as published ("vxlan"); empty while the owner has claimed its subnet but not yet described itself.
	Backend string
	// V4 and V6: a zero Endpoint means that the node does not take part in that family.
	V4, V6 Endpoint
}

// Endpoint is one address family of a lease.
type Endpoint struct {
	Subnet   netip.Prefix    // masked; the zero Prefix: family off
	PublicIP netip.Addr      // where the other nodes send packets for Subnet
	Data     json.RawMessage // what the backend published, nil where it has nothing to say
}

// On tells whether the family is in use.
func (e Endpoint) On() bool { return e.Subnet.IsValid() }

// Endpoints returns the families in use, IPv4 first.
func (l *Lease) Endpoints() []Endpoint {
	on := make([]Endpoint, 0, 2) // of constant size: it stays on the caller's stack
	for _, e := range []Endpoint{l.V4, l.V6} {
		if e.On() {
			on = append(on, e)
		}
	}
	return on
}

// String names the lease for a person: "10.5.34.0/24 at 192.168.64.3", both families if there are two.
func (l *Lease) String() string {
	var parts []string
	for _, e := range l.Endpoints() {
		parts = append(parts, fmt.Sprintf("%s at %s", e.Subnet, e.PublicIP))
	}
	return strings.Join(parts, ", ")
}

// Equal tells whether a and b say the same; Name and Since do not count.
func (l *Lease) Equal(o *Lease) bool {
	return l.Backend == o.Backend && l.V4.equal(o.V4) && l.V6.equal(o.V6)
}

func (e Endpoint) equal(o Endpoint) bool {
	return e.Subnet == o.Subnet && e.PublicIP == o.PublicIP && bytes.Equal(e.Data, o.Data)
}

// Displaces reports whether l, which the store has now, shows that o, which it no longer has, is out of date: l has its
// subnet or its address.
func (l *Lease) Displaces(o *Lease) bool {
	if o.V4.On() && o.V4.PublicIP == l.V4.PublicIP || !o.V4.On() && o.V6.PublicIP == l.V6.PublicIP {
		return true
	}
	return overlap(o.V4.Subnet, l.V4.Subnet) || overlap(o.V6.Subnet, l.V6.Subnet)
}

// Compare orders leases by subnet, IPv4 first: the order of a Set. Of two names with one subnet, every node must see the
// same one first.
func Compare(a, b *Lease) int {
	if c := a.V4.Subnet.Compare(b.V4.Subnet); c != 0 {
		return c
	}
	if c := a.V6.Subnet.Compare(b.V6.Subnet); c != 0 { // only now: to compare zero prefixes allocates an error
		return c
	}
	return cmp.Compare(a.Name, b.Name)
}
