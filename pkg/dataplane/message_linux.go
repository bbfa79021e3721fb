package dataplane

import (
	"encoding/binary"
	"fmt"
	"iter"
	"net/netip"

	"golang.org/x/sys/unix"

	"flannel/pkg/mac"
)

// Messages of rtnetlink(7) for routes, nexthop objects, neighbours and FDB entries. The netlink library knows no
// batches and no nexthop objects, so these few are written and read here; devices and addresses are left to it.

// Attributes that x/sys lacks: RTA_NH_ID of linux/rtnetlink.h, NHA_FDB of linux/nexthop.h.
const (
	rtaNexthopID = 30
	nhaFDB       = 11
)

// message is a netlink message under construction: header, fixed part, attributes; before it may lie others, complete.
// Ten thousand are written into one buffer.
type message []byte

// begin starts a message; length and sequence number are set when it is sent.
func (m message) begin(kind, flags uint16, body []byte) message {
	m = append(m, 0, 0, 0, 0)
	m = binary.NativeEndian.AppendUint16(m, kind)
	m = binary.NativeEndian.AppendUint16(m, unix.NLM_F_REQUEST|flags)
	m = append(m, 0, 0, 0, 0, 0, 0, 0, 0)
	return append(m, body...)
}

func (m message) attr(kind uint16, value []byte) message {
	m = binary.NativeEndian.AppendUint16(m, uint16(unix.SizeofRtAttr+len(value)))
	m = binary.NativeEndian.AppendUint16(m, kind)
	m = append(m, value...)
	for len(m)%unix.NLMSG_ALIGNTO != 0 {
		m = append(m, 0)
	}
	return m
}

func (m message) uint32(kind uint16, value uint32) message {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], value)
	return m.attr(kind, b[:])
}

func (m message) addr(kind uint16, a netip.Addr) message {
	if a.Is4() {
		b := a.As4()
		return m.attr(kind, b[:])
	}
	b := a.As16()
	return m.attr(kind, b[:])
}

func family(a netip.Addr) uint8 {
	if a.Is6() {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// route appends a route of the main table. With a nexthop ID the hop's address and device are left out.
func (m message) route(kind, flags uint16, r kernelRoute) message {
	body := make([]byte, unix.SizeofRtMsg)
	body[0] = family(r.key.Dst.Addr())
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
	}
	m = m.begin(kind, flags, body).addr(unix.RTA_DST, r.key.Dst.Addr())
	if r.key.Metric != 0 {
		m = m.uint32(unix.RTA_PRIORITY, r.key.Metric)
	}
	switch {
	case r.nexthop != 0:
		m = m.uint32(rtaNexthopID, r.nexthop)
	case r.hop.Via.IsValid():
		m = m.addr(unix.RTA_GATEWAY, r.hop.Via).uint32(unix.RTA_OIF, uint32(r.hop.Index))
	case r.hop.Index != 0:
		m = m.uint32(unix.RTA_OIF, uint32(r.hop.Index))
	}
	return m
}

// nexthop appends a nexthop object; to delete one its ID is enough.
func (m message) nexthop(kind, flags uint16, id uint32, h hop) message {
	body := make([]byte, 8) // struct nhmsg
	if kind == unix.RTM_DELNEXTHOP {
		return m.begin(kind, flags, body).uint32(unix.NHA_ID, id)
	}
	body[0] = family(h.Via)
	body[2] = protocolOurs
	if h.Onlink {
		binary.NativeEndian.PutUint32(body[4:], unix.RTNH_F_ONLINK)
	}
	return m.begin(kind, flags, body).uint32(unix.NHA_ID, id).
		uint32(unix.NHA_OIF, uint32(h.Index)).addr(unix.NHA_GATEWAY, h.Via)
}

// neigh appends a permanent neighbour (of the address's own family), or, for unix.AF_BRIDGE, an FDB entry of a
// tunnel device, whose address is the other tunnel end.
func (m message) neigh(kind, flags uint16, fam uint8, index int, a netip.Addr, mac mac.Addr) message {
	body := make([]byte, 12) // struct ndmsg
	body[0] = fam
	binary.NativeEndian.PutUint32(body[4:], uint32(index))
	binary.NativeEndian.PutUint16(body[8:], unix.NUD_PERMANENT)
	if fam == unix.AF_BRIDGE {
		body[10] = unix.NTF_SELF
	}
	m = m.begin(kind, flags, body)
	if a.IsValid() {
		m = m.addr(unix.NDA_DST, a)
	}
	return m.attr(unix.NDA_LLADDR, mac[:])
}

// Attrs walks over the attributes that follow a message's fixed part; it ends at the first that is cut off.
func Attrs(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofRtAttr {
			size := int(binary.NativeEndian.Uint16(b))
			kind := binary.NativeEndian.Uint16(b[2:]) & 0x3fff // without the flags "nested" and "byte order"
			if size < unix.SizeofRtAttr || size > len(b) || !yield(kind, b[unix.SizeofRtAttr:size]) {
				return
			}
			b = b[min(len(b), (size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1)):]
		}
	}
}

var errShort = fmt.Errorf("netlink message is cut off")

func number(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

func address(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b) // the zero Addr for anything else than 4 or 16 bytes
	return a
}

// parseRoute reads a route. ok is false for what can never concern us: other tables, local and cached routes.
func parseRoute(b []byte) (r kernelRoute, ok bool, err error) {
	if len(b) < unix.SizeofRtMsg {
		return r, false, errShort
	}
	fam, bits, tos, table, kind := b[0], int(b[1]), b[3], uint32(b[4]), b[7]
	flags := binary.NativeEndian.Uint32(b[8:])
	r.protocol = b[5]
	var dst netip.Addr
	for attr, value := range Attrs(b[unix.SizeofRtMsg:]) {
		switch attr {
		case unix.RTA_DST:
			dst = address(value)
		case unix.RTA_OIF:
			r.hop.Index = int(number(value))
		case unix.RTA_GATEWAY:
			r.hop.Via = address(value)
		case unix.RTA_PRIORITY:
			r.key.Metric = number(value)
		case unix.RTA_TABLE:
			table = number(value)
		case rtaNexthopID:
			r.nexthop = number(value)
		case unix.RTA_MULTIPATH, unix.RTA_VIA, unix.RTA_ENCAP, unix.RTA_METRICS, unix.RTA_PREFSRC:
			r.hop.Odd = true
		}
	}
	if !dst.IsValid() || table != unix.RT_TABLE_MAIN || tos != 0 || flags&unix.RTM_F_CLONED != 0 ||
		family(dst) != fam || bits > dst.BitLen() {
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

// parseNexthop reads a nexthop object: its ID, who made it, and where it leads.
func parseNexthop(b []byte) (id uint32, protocol uint8, h hop, err error) {
	if len(b) < 8 {
		return 0, 0, h, errShort
	}
	h.Onlink = binary.NativeEndian.Uint32(b[4:])&unix.RTNH_F_ONLINK != 0
	for attr, value := range Attrs(b[8:]) {
		switch attr {
		case unix.NHA_ID:
			id = number(value)
		case unix.NHA_OIF:
			h.Index = int(number(value))
		case unix.NHA_GATEWAY:
			h.Via = address(value)
		case unix.NHA_GROUP, unix.NHA_BLACKHOLE, nhaFDB, unix.NHA_ENCAP:
			h.Odd = true
		}
	}
	return id, b[2], h, nil
}

// kernelNeigh is a neighbour or FDB entry as a message describes it.
type kernelNeigh struct {
	fam       uint8
	index     int
	permanent bool
	ip        netip.Addr
	mac       mac.Addr
}

// parseNeigh reads a neighbour or FDB entry. ok is false for proxies and for what is no Ethernet address.
func parseNeigh(b []byte) (n kernelNeigh, ok bool, err error) {
	if len(b) < 12 {
		return n, false, errShort
	}
	n.fam = b[0]
	n.index = int(int32(binary.NativeEndian.Uint32(b[4:])))
	n.permanent = binary.NativeEndian.Uint16(b[8:])&unix.NUD_PERMANENT != 0
	ok = b[10]&unix.NTF_PROXY == 0
	for attr, value := range Attrs(b[12:]) {
		switch attr {
		case unix.NDA_DST:
			n.ip = address(value)
		case unix.NDA_LLADDR:
			if len(value) != len(n.mac) {
				return n, false, nil
			}
			n.mac = mac.Addr(value)
		}
	}
	return n, ok, nil
}

// changeVXLAN changes parent and source of a VXLAN device. The netlink library would send the port along, which the
// kernel refuses to see in a change.
func (c *conn) changeVXLAN(index, parent int, dev Device) error {
	body := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(body[4:], uint32(index))
	local := uint16(unix.IFLA_VXLAN_LOCAL)
	if dev.Local.Is6() {
		local = unix.IFLA_VXLAN_LOCAL6
	}
	data := message(nil).uint32(unix.IFLA_VXLAN_ID, dev.VNI).uint32(unix.IFLA_VXLAN_LINK, uint32(parent)).attr(local, dev.Local.AsSlice())
	info := message(nil).attr(unix.IFLA_INFO_KIND, []byte("vxlan")).attr(unix.IFLA_INFO_DATA|unix.NLA_F_NESTED, data)
	return first(c.batch(1, func(m message, _ int) message {
		return m.begin(unix.RTM_NEWLINK, 0, body).attr(unix.IFLA_LINKINFO|unix.NLA_F_NESTED, info)
	}))
}
