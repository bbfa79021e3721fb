// Package underlay chooses the interface and the addresses by which this node reaches
// the other nodes: the underlay of the pod network. Choose is a pure function of a
// Snapshot, and a Chooser also considers its earlier choices. Packages linux/underlay
// and windows read the Snapshot, and watch for changes of it.
package underlay

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"flannel/pkg/dataplane"
)

// Link is the chosen interface. It is a value: after a change of the interface,
// Choose returns another Link, and Equal and Since show what differs.
type Link struct {
	Name   string
	Index  int
	MTU    int // bytes
	MAC    dataplane.MAC
	V4, V6 netip.Addr // our own addresses on it; zero if the family is disabled
	// PublicV4 and PublicV6 are published in our lease. They are V4 and V6 unless
	// --public-ip or --public-ipv6 is set.
	PublicV4, PublicV6 netip.Addr
	OnLink             []netip.Prefix // networks that are reached through it without a gateway
	// AtStart is the name of the interface that a start of flanneld would choose; "": this one.
	// It is a remark about the choice, and no part of the link for Equal and Since.
	AtStart string
}

// Reaches reports whether a is on the link, so that packets to it need no gateway.
func (l Link) Reaches(a netip.Addr) bool {
	return slices.ContainsFunc(l.OnLink, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Prefixes returns OnLink and the link's own addresses as prefixes of one address.
func (l Link) Prefixes() []netip.Prefix {
	all := slices.Clone(l.OnLink)
	for _, a := range []netip.Addr{l.V4, l.V6} {
		// It fails for the zero Addr of a disabled family only.
		if p, err := a.WithZone("").Prefix(a.BitLen()); err == nil {
			all = append(all, p)
		}
	}
	return all
}

// String describes the link for log lines.
func (l Link) String() string {
	var addrs []string
	for _, a := range []netip.Addr{l.V4, l.V6} {
		if a.IsValid() {
			addrs = append(addrs, a.String())
		}
	}
	return fmt.Sprintf("%s (%s, MTU %d)", l.Name, strings.Join(addrs, ", "), l.MTU)
}

// Since lists for log lines the fields that differ from the link before, with both values; "" if none
// do.
func (l Link) Since(before Link) string {
	var all []string
	for _, f := range []struct {
		what        string
		before, now any
	}{
		{"name", before.Name, l.Name}, {"index", before.Index, l.Index}, {"MTU", before.MTU, l.MTU}, {"MAC", before.MAC, l.MAC},
		{"IPv4", before.V4, l.V4}, {"IPv6", before.V6, l.V6}, {"public IPv4", before.PublicV4, l.PublicV4}, {"public IPv6", before.PublicV6, l.PublicV6},
		{"neighbouring networks", before.OnLink, l.OnLink},
	} {
		if !reflect.DeepEqual(f.before, f.now) {
			all = append(all, fmt.Sprintf("%s was %v and is %v", f.what, f.before, f.now))
		}
	}
	return strings.Join(all, "; ")
}

// Equal reports whether all fields except AtStart are equal.
func (l Link) Equal(o Link) bool {
	l.AtStart, o.AtStart = "", ""
	return reflect.DeepEqual(l, o)
}
