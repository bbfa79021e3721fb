// Package underlay finds the interface and the addresses on which this node meets the others.
// The choice is a pure function over a Snapshot; only reading one needs the operating system.
package underlay

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"flannel/pkg/mac"
)

// Link is the chosen interface.
type Link struct {
	Name   string
	Index  int
	MTU    int // bytes
	MAC    mac.Addr
	V4, V6 netip.Addr // our own addresses on it; zero where the family is off
	// PublicV4 and PublicV6 are told to the others: V4 and V6 unless --public-ip says otherwise.
	PublicV4, PublicV6 netip.Addr
	OnLink             []netip.Prefix // networks that are reached through it without a gateway
}

// Reaches tells whether a is a neighbour on the link, to be reached without a gateway.
func (l Link) Reaches(a netip.Addr) bool {
	return slices.ContainsFunc(l.OnLink, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Prefixes are the link's own addresses, as single ones, and the networks that are reached through it without a gateway.
func (l Link) Prefixes() []netip.Prefix {
	all := slices.Clone(l.OnLink)
	for _, a := range []netip.Addr{l.V4, l.V6} {
		if p, err := a.WithZone("").Prefix(a.BitLen()); err == nil {
			all = append(all, p)
		}
	}
	return all
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

// Since says for a person what is another than it was.
func (l Link) Since(was Link) string {
	var all []string
	for _, f := range []struct {
		what    string
		was, is any
	}{
		{"name", was.Name, l.Name}, {"index", was.Index, l.Index}, {"MTU", was.MTU, l.MTU}, {"MAC", was.MAC, l.MAC},
		{"IPv4", was.V4, l.V4}, {"IPv6", was.V6, l.V6}, {"public IPv4", was.PublicV4, l.PublicV4}, {"public IPv6", was.PublicV6, l.PublicV6},
		{"neighbouring networks", was.OnLink, l.OnLink},
	} {
		if !reflect.DeepEqual(f.was, f.is) {
			all = append(all, fmt.Sprintf("%s was %v and is %v", f.what, f.was, f.is))
		}
	}
	return strings.Join(all, "; ")
}

// Equal tells whether nothing of the link differs.
func (l Link) Equal(o Link) bool { return reflect.DeepEqual(l, o) }
