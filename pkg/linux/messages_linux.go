package linux

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"flannel/pkg/dataplane"
	"flannel/pkg/linux/rtnetlink"
)

// This file writes and parses the messages of rtnetlink(7) for routes, nexthop
// objects, neighbours and FDB entries, because the netlink library supports
// neither batches nor nexthop objects. Devices and addresses use the library. Each
// message begins with a struct, whose bytes the functions number:
//
//	rtmsg  0 family, 1 length of the destination, 3 TOS, 4 table, 5 protocol, 6 scope, 7 type, 8-11 flags
//	nhmsg  0 family, 1 scope, 2 protocol, 4-7 flags
//	ndmsg  0 family, 4-7 index of the device, 8-9 state, 10 flags, 11 type

// Attributes that x/sys lacks: RTA_NH_ID of linux/rtnetlink.h, NHA_FDB of
// linux/nexthop.h.
const (
	rtaNexthopID = 30
	nhaFDB       = 11
)

// writeRoute appends a message about a route of the main table; kind is
// RTM_NEWROUTE or RTM_DELROUTE. A route with a nexthop ID does not contain the
// hop's address and device. What a deletion does not name may have any value.
func writeRoute(m rtnetlink.Message, kind, flags uint16, r kernelRoute) rtnetlink.Message {
	body := make([]byte, unix.SizeofRtMsg)
	body[0] = rtnetlink.Family(r.key.Dst.Addr())
	body[1] = uint8(r.key.Dst.Bits())
	body[4] = unix.RT_TABLE_MAIN
	body[5] = r.protocol
	body[6] = unix.RT_SCOPE_UNIVERSE
	body[7] = unix.RTN_UNICAST
	switch {
	case r.hop.Blackhole:
		body[7] = unix.RTN_BLACKHOLE
	case kind == unix.RTM_DELROUTE:
		body[6] = unix.RT_SCOPE_NOWHERE // any
	case r.hop.Onlink && r.nexthop == 0:
		binary.NativeEndian.PutUint32(body[8:], unix.RTNH_F_ONLINK)
	case !r.hop.Via.IsValid() && r.key.Dst.Addr().Is4(): // routes of IPv6 have no scope
		body[6] = unix.RT_SCOPE_LINK
	}
	m = m.Begin(kind, flags, body).Addr(unix.RTA_DST, r.key.Dst.Addr())
	if r.key.Metric != 0 {
		m = m.Uint32(unix.RTA_PRIORITY, r.key.Metric)
	}
	switch {
	case r.nexthop != 0:
		m = m.Uint32(rtaNexthopID, r.nexthop)
	case r.hop.Via.IsValid():
		m = m.Addr(unix.RTA_GATEWAY, r.hop.Via).Uint32(unix.RTA_OIF, uint32(r.hop.Index))
	case r.hop.Index != 0:
		m = m.Uint32(unix.RTA_OIF, uint32(r.hop.Index))
	}
	return m
}

// writeNexthop appends a nexthop object. Deleting one takes only its ID.
func writeNexthop(m rtnetlink.Message, kind, flags uint16, id uint32, h hop) rtnetlink.Message {
	body := make([]byte, unix.SizeofNhmsg)
	if kind == unix.RTM_DELNEXTHOP {
		return m.Begin(kind, flags, body).Uint32(unix.NHA_ID, id)
	}
	body[0] = rtnetlink.Family(h.Via)
	body[2] = protocolOurs
	if h.Onlink {
		binary.NativeEndian.PutUint32(body[4:], unix.RTNH_F_ONLINK)
	}
	return m.Begin(kind, flags, body).Uint32(unix.NHA_ID, id).
		Uint32(unix.NHA_OIF, uint32(h.Index)).Addr(unix.NHA_GATEWAY, h.Via)
}

// writeNeigh appends a permanent neighbour (fam is the family of a) or, for
// unix.AF_BRIDGE, a permanent FDB entry (a is the underlay address of the tunnel
// end with the MAC address).
func writeNeigh(m rtnetlink.Message, kind, flags uint16, fam uint8, index int, a netip.Addr, mac dataplane.MAC) rtnetlink.Message {
	body := make([]byte, lenNdmsg)
	body[0] = fam
	binary.NativeEndian.PutUint32(body[4:], uint32(index))
	binary.NativeEndian.PutUint16(body[8:], unix.NUD_PERMANENT)
	if fam == unix.AF_BRIDGE {
		body[10] = unix.NTF_SELF // in the FDB of the device, and not in that of a bridge that it is a port of
	}
	m = m.Begin(kind, flags, body)
	if a.IsValid() {
		m = m.Addr(unix.NDA_DST, a)
	}
	return m.Attr(unix.NDA_LLADDR, mac[:])
}

// parseRoute parses a route. ok is false for routes that cannot be ours: those of other
// tables, default, local and cached (cloned) ones. A hop with properties that we never set is
// Unmanaged. The error is rtnetlink.ErrShort. Of a route through a nexthop object, r.hop may be
// zero: nexthopStore.resolve completes it.
func parseRoute(b []byte) (r kernelRoute, ok bool, err error) {
	if len(b) < unix.SizeofRtMsg {
		return r, false, rtnetlink.ErrShort
	}
	fam, bits, tos, table, kind := b[0], int(b[1]), b[3], uint32(b[4]), b[7]
	flags := binary.NativeEndian.Uint32(b[8:])
	r.protocol = b[5]
	var dst netip.Addr
	for attr, value := range rtnetlink.Attrs(b[unix.SizeofRtMsg:]) {
		switch attr {
		case unix.RTA_DST:
			dst = rtnetlink.Address(value)
		case unix.RTA_OIF:
			r.hop.Index = int(rtnetlink.Number(value))
		case unix.RTA_GATEWAY:
			r.hop.Via = rtnetlink.Address(value)
		case unix.RTA_PRIORITY:
			r.key.Metric = rtnetlink.Number(value)
		case unix.RTA_TABLE:
			table = rtnetlink.Number(value)
		case rtaNexthopID:
			r.nexthop = rtnetlink.Number(value)
		case unix.RTA_MULTIPATH, unix.RTA_VIA, unix.RTA_ENCAP, unix.RTA_METRICS, unix.RTA_PREFSRC:
			r.hop.Unmanaged = true
		}
	}
	if !dst.IsValid() || table != unix.RT_TABLE_MAIN || tos != 0 || flags&unix.RTM_F_CLONED != 0 ||
		rtnetlink.Family(dst) != fam || bits > dst.BitLen() {
		return r, false, nil
	}
	r.key.Dst = netip.PrefixFrom(dst, bits)
	switch kind {
	case unix.RTN_BLACKHOLE:
		r.hop = hop{Blackhole: true} // for IPv6 the kernel shows the loopback device
	case unix.RTN_UNICAST:
		r.hop.Onlink = flags&unix.RTNH_F_ONLINK != 0
	default:
		return r, false, nil
	}
	return r, true, nil
}

// parseNexthop parses a nexthop object. One that we would not make, such as a group, is
// Unmanaged. The error is rtnetlink.ErrShort.
func parseNexthop(b []byte) (id uint32, protocol uint8, h hop, err error) {
	if len(b) < unix.SizeofNhmsg {
		return 0, 0, h, rtnetlink.ErrShort
	}
	h.Onlink = binary.NativeEndian.Uint32(b[4:])&unix.RTNH_F_ONLINK != 0
	for attr, value := range rtnetlink.Attrs(b[unix.SizeofNhmsg:]) {
		switch attr {
		case unix.NHA_ID:
			id = rtnetlink.Number(value)
		case unix.NHA_OIF:
			h.Index = int(rtnetlink.Number(value))
		case unix.NHA_GATEWAY:
			h.Via = rtnetlink.Address(value)
		case unix.NHA_GROUP, unix.NHA_BLACKHOLE, nhaFDB, unix.NHA_ENCAP:
			h.Unmanaged = true
		}
	}
	return id, b[2], h, nil
}

// kernelNeigh is a neighbour or an FDB entry (fam is unix.AF_BRIDGE).
type kernelNeigh struct {
	fam       uint8
	index     int        // of the device
	permanent bool       // as are all that we add; others were learned
	ip        netip.Addr // of the neighbour; of an FDB entry, the tunnel's end on the underlay
	mac       dataplane.MAC
}

// parseNeigh parses a neighbour or an FDB entry. ok is false for proxies and for
// link-layer addresses other than Ethernet's. Without an address, n.ip is zero, as in an entry
// of a bridge's own FDB. The error is rtnetlink.ErrShort.
func parseNeigh(b []byte) (n kernelNeigh, ok bool, err error) {
	if len(b) < lenNdmsg {
		return n, false, rtnetlink.ErrShort
	}
	n.fam = b[0]
	n.index = int(int32(binary.NativeEndian.Uint32(b[4:])))
	n.permanent = binary.NativeEndian.Uint16(b[8:])&unix.NUD_PERMANENT != 0
	ok = b[10]&unix.NTF_PROXY == 0
	for attr, value := range rtnetlink.Attrs(b[lenNdmsg:]) {
		switch attr {
		case unix.NDA_DST:
			n.ip = rtnetlink.Address(value)
		case unix.NDA_LLADDR:
			if len(value) != len(n.mac) {
				return n, false, nil
			}
			n.mac = dataplane.MAC(value)
		}
	}
	return n, ok, nil
}
