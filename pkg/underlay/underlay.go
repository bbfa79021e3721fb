// Package underlay finds the interface and the addresses on which this node meets the others.
// The choice is a pure function over a Snapshot; only reading one needs the operating system.
package underlay

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"flannel/pkg/dataplane"
)

// Link is the chosen interface.
type Link struct {
	Name   string
	Index  int
	MTU    int // bytes
	MAC    dataplane.MAC
	V4, V6 netip.Addr // our own addresses on it; zero where the family is off
	// PublicV4 and PublicV6 are told to the others: V4 and V6 unless --public-ip says otherwise.
	PublicV4, PublicV6 netip.Addr
	OnLink             []netip.Prefix // networks that are reached through it without a gateway
}

// Reaches tells whether a is a neighbour on the link, to be reached without a gateway.
func (l Link) Reaches(a netip.Addr) bool {
	return slices.ContainsFunc(l.OnLink, func(p netip.Prefix) bool { return p.Contains(a) })
}

// String names the link for a person.
func (l Link) String() string {
	var addrs []string
	for _, a := range []netip.Addr{l.V4, l.V6} {
		if a.IsValid() {
			addrs = append(addrs, a.String())
		}
	}
	return fmt.Sprintf("%s (%s, MTU %d)", l.Name, strings.Join(addrs, ", "), l.MTU)
}

// Equal tells whether nothing of the link differs.
func (l Link) Equal(o Link) bool { return reflect.DeepEqual(l, o) }
