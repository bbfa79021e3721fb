package underlay

import (
	"encoding/binary"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"flannel/pkg/rtnetlink"
)

// route is what of a route matters to the choice of the underlay.
type route struct {
	dst            netip.Prefix
	source         netip.Addr
	metric         int
	hops           []hop
	viaOtherFamily bool
}

type hop struct {
	index   int
	gateway netip.Addr // zero: none needed
}

// direct tells whether the route needs no gateway.
func (r route) direct() bool {
	return !r.viaOtherFamily && len(r.hops) == 1 && !r.hops[0].gateway.IsValid()
}

// listRoutes lists the main table's default routes and those without a gateway. A node has a route for each peer
// besides: the first bytes of their messages are all that is looked at, which the netlink library cannot do.
func listRoutes() ([]route, error) {
	var all []route
	request := nl.NewNetlinkRequest(unix.RTM_GETROUTE, unix.NLM_F_DUMP)
	request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	err := request.ExecuteIter(unix.NETLINK_ROUTE, unix.RTM_NEWROUTE, func(m []byte) bool {
		if len(m) >= unix.SizeofRtMsg && interesting(m) {
			if r := parseRoute(m); r.dst.Bits() == 0 || r.direct() {
				all = append(all, r)
			}
		}
		return true
	})
	return all, err
}

// interesting tells from struct rtmsg whether a route can be a default route, or one to what is on the link.
func interesting(m []byte) bool {
	family, bits, table, scope, kind := m[0], m[1], m[4], m[6], m[7]
	return table == unix.RT_TABLE_MAIN && kind == unix.RTN_UNICAST && (bits == 0 || family == unix.AF_INET6 || scope == unix.RT_SCOPE_LINK)
}

func parseRoute(m []byte) (r route) {
	base := netip.IPv4Unspecified()
	if m[0] == unix.AF_INET6 {
		base = netip.IPv6Unspecified()
	}
	var one hop
	for kind, value := range rtnetlink.Attrs(m[unix.SizeofRtMsg:]) {
		switch kind {
		case unix.RTA_DST:
			base = toIP(value)
		case unix.RTA_PREFSRC:
			r.source = toIP(value)
		case unix.RTA_PRIORITY:
			r.metric = number(value)
		case unix.RTA_OIF:
			one.index = number(value)
		case unix.RTA_GATEWAY:
			one.gateway = toIP(value)
		case unix.RTA_VIA:
			r.viaOtherFamily = true
		case unix.RTA_MULTIPATH:
			r.hops = parseHops(value)
		}
	}
	r.dst = netip.PrefixFrom(base, int(m[1])).Masked()
	if r.hops == nil {
		r.hops = []hop{one}
	}
	return r
}

// parseHops reads a list of struct rtnexthop, each with attributes of its own.
func parseHops(b []byte) (all []hop) {
	for len(b) >= unix.SizeofRtNexthop {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofRtNexthop || size > len(b) {
			break
		}
		one := hop{index: number(b[4:8])}
		for kind, value := range rtnetlink.Attrs(b[unix.SizeofRtNexthop:size]) {
			if kind == unix.RTA_GATEWAY {
				one.gateway = toIP(value)
			}
		}
		all = append(all, one)
		b = b[min(len(b), (size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1)):]
	}
	return all
}

func number(b []byte) int {
	if len(b) != 4 {
		return 0
	}
	return int(int32(binary.NativeEndian.Uint32(b)))
}

func (s *Snapshot) addRoute(r route) {
	if r.dst.Bits() > 0 {
		if in := s.byIndex(r.hops[0].index); in != nil {
			in.OnLink = append(in.OnLink, r.dst)
		}
		return
	}
	for _, h := range r.hops {
		s.Defaults = append(s.Defaults, Default{Index: h.index, V6: r.dst.Addr().Is6(), Gateway: h.gateway, Source: r.source, Metric: r.metric})
	}
}
