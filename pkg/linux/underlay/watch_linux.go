package underlay

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"flannel/pkg/linux/rtnetlink"
	"flannel/pkg/underlay"
)

// Watch calls changed, which must not block, when the result of Read may have changed, until
// ctx ends: for every change after the return of Watch, except those that fewRoutes and
// ignoredLinks drop. The calls are on the goroutine of one Listener. Watch subscribes in the
// network namespace of the calling goroutine's thread.
func Watch(ctx context.Context, changed func()) error {
	ignored := ignoredLinks{}
	l, err := rtnetlink.Listen(rtnetlink.Notifications{
		Protocol: unix.NETLINK_ROUTE,
		Groups:   []int{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_NEXTHOP},
		Filter:   fewRoutes(),
		Each: func(h rtnetlink.Header, body []byte) error {
			if ignored.concerns(h.Kind, body) {
				changed()
			}
			return nil
		},
		Lost: func(error) { // on the same goroutine as Each, that of the Listener
			clear(ignored) // an index may be that of another interface by now
			changed()
		},
	})
	if err != nil {
		return fmt.Errorf("watch interfaces: %w", err)
	}
	context.AfterFunc(ctx, func() { _ = l.Close() }) // no error is possible: it is open
	return nil
}

// fewRoutes returns a socket filter (classic BPF) that drops notifications about most routes, so
// that a route for each peer does not wake us. It drops flanneld's own routes, and passes the default
// routes of others and their on-link routes: those with scope link or, as IPv6 has no scopes, with an
// interface and without a gateway. An IPv6 route whose message names no interface has several hops, or only
// the ID of a nexthop object: relevant would ignore it, too (route.direct). Of nexthop objects, it drops
// flanneld's own. fewRoutes passes all that is not about routes or nexthop objects.
func fewRoutes() []unix.SockFilter {
	const ( // offsets in a message
		kind       = 4 // nlmsg_type
		family     = unix.NLMSG_HDRLEN
		bits       = family + 1 // rtm_dst_len
		protocol   = family + 5 // rtm_protocol
		scope      = family + 6 // rtm_scope
		attributes = family + unix.SizeofRtMsg
		nhProtocol = family + 2 // nh_protocol, of struct nhmsg
	)
	// SKF_AD_OFF + SKF_AD_NLATTR of linux/filter.h: the load from there is of the offset of the first
	// attribute with the type X, from the offset A on; 0: there is none.
	const attribute = 1<<32 - 0x1000 + 12
	const loadByte, ifEqual = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	swapped := func(v uint16) uint32 { // a filter loads words in network byte order, netlink has the host's
		return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, v)))
	}
	// Jt and Jf are how many instructions to skip if the comparison is true or false.
	// The two returns are the number of bytes to pass: all of them (pass), or none (drop).
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: kind},
		{Code: ifEqual, K: swapped(unix.RTM_NEWROUTE), Jt: 5},
		{Code: ifEqual, K: swapped(unix.RTM_DELROUTE), Jt: 4},
		{Code: ifEqual, K: swapped(unix.RTM_NEWNEXTHOP), Jt: 1},
		{Code: ifEqual, K: swapped(unix.RTM_DELNEXTHOP), Jf: 18}, // to pass
		{Code: loadByte, K: nhProtocol},
		{Code: ifEqual, K: rtnetlink.ProtocolOurs, Jt: 17, Jf: 16}, // to drop or to pass
		{Code: loadByte, K: protocol},
		{Code: ifEqual, K: rtnetlink.ProtocolOurs, Jt: 15}, // to drop
		{Code: loadByte, K: bits},
		{Code: ifEqual, K: 0, Jt: 12}, // to pass
		{Code: loadByte, K: scope},
		{Code: ifEqual, K: unix.RT_SCOPE_LINK, Jt: 10}, // to pass
		{Code: loadByte, K: family},
		{Code: ifEqual, K: unix.AF_INET6, Jf: 9}, // to drop
		{Code: unix.BPF_LDX | unix.BPF_W | unix.BPF_IMM, K: unix.RTA_GATEWAY},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_IMM, K: attributes},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: attribute},
		{Code: ifEqual, K: 0, Jf: 5}, // to drop
		{Code: unix.BPF_LDX | unix.BPF_W | unix.BPF_IMM, K: unix.RTA_OIF},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_IMM, K: attributes},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: attribute},
		{Code: ifEqual, K: 0, Jt: 1}, // to drop
		{Code: unix.BPF_RET | unix.BPF_K, K: 1<<32 - 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
}

// ignoredLinks is the set of interfaces, by index, most of whose changes are ignored: our own, and
// ports of bridges. Because of its pods, most interfaces of a node are such ports. An underlay that becomes
// a port stays the underlay until its address or its default route moves to the bridge; both are
// noticed (concerns). What else changes of the port until then is noticed at the resync.
type ignoredLinks map[int32]bool

// concerns reports whether a message can change the choice of the underlay or the node's addresses,
// and keeps the set of ignored interfaces up to date. It only reads the beginning of a message
// where that is enough. A message that is too short concerns nothing. Only the Listener's
// goroutine uses the set.
func (ignored ignoredLinks) concerns(kind uint16, body []byte) bool {
	switch kind {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if len(body) < unix.SizeofIfInfomsg {
			return false
		}
		info := nl.DeserializeIfInfomsg(body)
		if info.Family == unix.AF_BRIDGE { // state of a port within its bridge
			return false
		}
		index := info.Index
		if kind == unix.RTM_DELLINK {
			known := ignored[index]
			delete(ignored, index) // the index may be used again
			return !known
		}
		// A pod's interface is created before it becomes a port of the bridge, so the
		// first message about it causes a notification, and later ones do not. Read
		// returns the same before and after an interface becomes a port.
		if cannotBeUnderlay(body[unix.SizeofIfInfomsg:]) {
			ignored[index] = true
			return false
		}
		delete(ignored, index)
		return true
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		if len(body) < unix.SizeofIfAddrmsg {
			return false
		}
		// All addresses of the node matter (Snapshot.Addrs), such as that of the pods' bridge, except
		// link-local ones. The interface of each pod gets one.
		a := nl.DeserializeIfAddrmsg(body)
		return !ignored[int32(a.Index)] || a.Scope < unix.RT_SCOPE_LINK
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		r, ok := relevant(body)
		// Networks on the link of an ignored interface do not count. A default route may have further hops;
		// others have exactly one (relevant).
		return ok && (r.dst.Bits() == 0 || !ignored[int32(r.hops[0].index)])
	case unix.RTM_NEWNEXTHOP, unix.RTM_DELNEXTHOP:
		// The kernel changes or deletes the routes through the object, and does not always notify of them.
		return true
	}
	return false
}

// cannotBeUnderlay reports whether a link's attributes show that it is
// flanneld's or a port of a bridge.
func cannotBeUnderlay(attributes []byte) bool {
	text := func(kinds ...uint16) string { return unix.ByteSliceToString(rtnetlink.Attr(attributes, kinds...)) }
	return underlay.Ours(text(unix.IFLA_IFNAME)) || text(unix.IFLA_LINKINFO, nl.IFLA_INFO_SLAVE_KIND) == "bridge"
}
