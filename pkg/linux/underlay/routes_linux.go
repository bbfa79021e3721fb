// This file reads the routes that matter for the choice of the underlay, for Read.

package underlay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"flannel/pkg/linux/rtnetlink"
	"flannel/pkg/underlay"
)

// rtaNexthopID is RTA_NH_ID of linux/rtnetlink.h, which x/sys lacks.
const rtaNexthopID = 30

// route is the part of a route that matters for choosing the underlay.
type route struct {
	dst            netip.Prefix
	source         netip.Addr // preferred source address; zero: not set
	metric         int
	nexthop        uint32 // ID of its nexthop object; 0: it has none
	hops           []hop  // never empty when parsed, see parseRoute
	viaOtherFamily bool   // the gateway is of the other address family (RTA_VIA)
}

// hop is one of the ways that a route offers; only a multipath route has several.
type hop struct {
	index   int        // of the interface
	gateway netip.Addr // zero: no gateway
	onLink  bool       // the gateway is on the link, whatever the addresses of the interface
}

// incomplete reports whether the kernel has said only the ID of the route's nexthop object, see parseRoute.
func (r route) incomplete() bool { return r.nexthop != 0 && r.hops[0].index == 0 }

// direct reports whether the route needs no gateway. Of a route without an interface, that is not known.
func (r route) direct() bool {
	return !r.viaOtherFamily && len(r.hops) == 1 && !r.hops[0].gateway.IsValid() && r.hops[0].index != 0
}

// listRoutes lists the main table's default routes and those without a gateway.
// Of all other routes, of which a node has one for each peer, it only reads the header. (The
// netlink library copies each list several times, and can only parse whole routes.)
func listRoutes() (all []route, err error) {
	conn, err := rtnetlink.Dial(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // it only reads
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		others := len(all)
		err := conn.DumpRoutes(family, func() { all = all[:others] }, func(m []byte) error {
			if r, ok := relevant(m); ok {
				all = append(all, r)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	for i := range all {
		if r := &all[i]; r.incomplete() {
			r.hops = nil
			if err := r.addHops(r.nexthop); err != nil {
				return nil, err
			}
		}
	}
	return slices.DeleteFunc(all, func(r route) bool { return r.dst.Bits() > 0 && !r.direct() }), nil
}

// addHops adds the hops of a nexthop object to the route, of a group those of all its members. An object that does not
// exist has none: the kernel has deleted its routes, too.
func (r *route) addHops(id uint32) error {
	request := nl.NewNetlinkRequest(unix.RTM_GETNEXTHOP, 0)
	request.AddRawData(rtnetlink.Message(make([]byte, unix.SizeofNhmsg)).Uint32(unix.NHA_ID, id))
	answers, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEXTHOP)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return fmt.Errorf("read the nexthop object %d: %w", id, err)
	case len(answers) == 0 || len(answers[0]) < unix.SizeofNhmsg:
		return fmt.Errorf("read the nexthop object %d: %w", id, rtnetlink.ErrShort)
	}
	for _, member := range r.parseNexthop(answers[0]) { // which are no groups
		if err := r.addHops(member); err != nil {
			return err
		}
	}
	return nil
}

// parseNexthop parses a message of RTM_NEWNEXTHOP: struct nhmsg, with the flags from byte 4 on, then attributes. It adds
// the hop to the route. Of a group, it returns the IDs of the members, from a list of struct nexthop_grp (ID, weight and
// padding). A gateway of the other address family is left out, as in parseRoute.
func (r *route) parseNexthop(m []byte) (members []uint32) {
	const sizeofNexthopGroup = 8
	next := hop{onLink: binary.NativeEndian.Uint32(m[4:])&unix.RTNH_F_ONLINK != 0}
	for kind, value := range rtnetlink.Attrs(m[unix.SizeofNhmsg:]) {
		switch kind {
		case unix.NHA_OIF:
			next.index = number(value)
		case unix.NHA_GATEWAY:
			if gateway := rtnetlink.Address(value); gateway.Is6() == r.dst.Addr().Is6() {
				next.gateway = gateway
			} else {
				r.viaOtherFamily = true
			}
		case unix.NHA_GROUP:
			for ; len(value) >= sizeofNexthopGroup; value = value[sizeofNexthopGroup:] {
				members = append(members, rtnetlink.Number(value[:4]))
			}
		}
	}
	if members == nil {
		r.hops = append(r.hops, next)
	}
	return members
}

// relevant parses a message about a route, and reports whether the route is a default route or one
// without a gateway in the main table. Else, the route may be zero. An incomplete IPv4 route may be one; of IPv6 there
// can be too many, since mayMatter does not limit them.
func relevant(m []byte) (r route, ok bool) {
	if len(m) < unix.SizeofRtMsg || !mayMatter(m) {
		return route{}, false
	}
	r = parseRoute(m)
	return r, r.dst.Bits() == 0 || r.direct() || r.incomplete() && r.dst.Addr().Is4() // 0: a default route
}

// mayMatter reports whether, by its struct rtmsg, a route can be a default
// route or an on-link route of others. IPv6 routes have no scope link, so all of them
// may. When it looks up a gateway, the kernel skips IPv4 routes with scope global, such as those of
// "ip route add … nhid …", so they put no peer on the link. flanneld's own routes lead to peers, or
// through its own devices.
//
//	struct rtmsg  family dst_len src_len tos table protocol scope type flags
//	byte          0      1       2       3   4     5        6     7    8 to 11
func mayMatter(m []byte) bool {
	family, bits, table, protocol, scope, kind := m[0], m[1], m[4], m[5], m[6], m[7]
	return table == unix.RT_TABLE_MAIN && kind == unix.RTN_UNICAST && protocol != rtnetlink.ProtocolOurs &&
		(bits == 0 || family == unix.AF_INET6 || scope == unix.RT_SCOPE_LINK)
}

// parseRoute parses a message of RTM_NEWROUTE or RTM_DELROUTE: struct rtmsg, then attributes. A
// default route has no RTA_DST. A route through a nexthop object has the attributes
// of the object's hops, too, unless net.ipv4.nexthop_compat_mode is off. Then its only hop has no interface, and
// listRoutes completes it.
func parseRoute(m []byte) (r route) {
	base := netip.IPv4Unspecified()
	if m[0] == unix.AF_INET6 {
		base = netip.IPv6Unspecified()
	}
	next := hop{onLink: binary.NativeEndian.Uint32(m[8:])&unix.RTNH_F_ONLINK != 0}
	for kind, value := range rtnetlink.Attrs(m[unix.SizeofRtMsg:]) {
		switch kind {
		case unix.RTA_DST:
			base = rtnetlink.Address(value)
		case unix.RTA_PREFSRC:
			r.source = rtnetlink.Address(value)
		case unix.RTA_PRIORITY:
			r.metric = int(min(rtnetlink.Number(value), math.MaxInt32)) // unsigned, in contrast to number
		case unix.RTA_OIF:
			next.index = number(value)
		case unix.RTA_GATEWAY:
			next.gateway = rtnetlink.Address(value)
		case rtaNexthopID:
			r.nexthop = rtnetlink.Number(value)
		case unix.RTA_VIA:
			r.viaOtherFamily = true
		case unix.RTA_MULTIPATH:
			r.hops = parseHops(value)
		}
	}
	r.dst = netip.PrefixFrom(base, int(m[1])).Masked()
	if r.hops == nil {
		r.hops = []hop{next}
	}
	return r
}

// parseHops parses a list of struct rtnexthop (length, flags at byte 2, index at byte 4), each
// followed by its attributes, up to one that is cut off.
func parseHops(b []byte) (all []hop) {
	for len(b) >= unix.SizeofRtNexthop {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofRtNexthop || size > len(b) {
			break
		}
		gateway := rtnetlink.Address(rtnetlink.Attr(b[unix.SizeofRtNexthop:size], unix.RTA_GATEWAY))
		all = append(all, hop{index: number(b[4:8]), onLink: b[2]&unix.RTNH_F_ONLINK != 0, gateway: gateway})
		b = b[min(len(b), (size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1)):]
	}
	return all
}

// number parses an attribute of 32 bits as a signed number, such as the index of an
// interface.
func number(b []byte) int { return int(int32(rtnetlink.Number(b))) }

// addRoute adds a default route to s.Defaults, once for each of its hops. It adds the
// destination of any other route, which listRoutes returns only without a gateway, to the
// networks that are on-link on its interface.
func addRoute(s *underlay.Snapshot, r route) {
	if r.dst.Bits() > 0 {
		if in := s.ByIndex(r.hops[0].index); in != nil {
			in.OnLink = append(in.OnLink, r.dst)
		}
		return
	}
	for _, h := range r.hops {
		s.Defaults = append(s.Defaults, underlay.Default{Index: h.index, V6: r.dst.Addr().Is6(), Gateway: h.gateway, OnLink: h.onLink, Source: r.source, Metric: r.metric})
	}
}
