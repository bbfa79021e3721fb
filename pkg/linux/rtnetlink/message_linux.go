package rtnetlink

import (
	"encoding/binary"
	"errors"
	"iter"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// ProtocolOurs is the protocol number (rtm_protocol, nh_protocol) of the routes and nexthop objects that
// flanneld makes. iproute2's list does not assign it.
const ProtocolOurs = 70

// Message is a buffer to which netlink messages are appended (netlink(7)). Each
// has a header (struct nlmsghdr), a body of fixed size and attributes. As with append, the
// methods return the longer buffer. A Message without a header is a list of attributes, for
// the value of a nested one.
type Message []byte

// Begin appends a message without attributes: kind is nlmsg_type, flags are those besides the one of
// a request, body is the struct of this type. Sending the message sets its length and sequence number.
func (m Message) Begin(kind, flags uint16, body []byte) Message {
	m = append(m, 0, 0, 0, 0) // nlmsg_len
	m = binary.NativeEndian.AppendUint16(m, kind)
	m = binary.NativeEndian.AppendUint16(m, unix.NLM_F_REQUEST|flags)
	m = append(m, 0, 0, 0, 0, 0, 0, 0, 0) // nlmsg_seq, which sending sets, and nlmsg_pid
	return append(m, body...)
}

// Attr appends an attribute to the last message, with less than 64 KiB.
func (m Message) Attr(kind uint16, value []byte) Message {
	m = binary.NativeEndian.AppendUint16(m, uint16(unix.SizeofRtAttr+len(value)))
	m = binary.NativeEndian.AppendUint16(m, kind)
	m = append(m, value...)
	for len(m)%unix.NLMSG_ALIGNTO != 0 {
		m = append(m, 0)
	}
	return m
}

// Uint32 appends a number as an attribute.
func (m Message) Uint32(kind uint16, value uint32) Message {
	return m.Attr(kind, binary.NativeEndian.AppendUint32(nil, value))
}

// Addr appends an IP address as an attribute.
func (m Message) Addr(kind uint16, a netip.Addr) Message { return m.Attr(kind, a.AsSlice()) }

// Family returns the address family of an address.
func Family(a netip.Addr) uint8 {
	if a.Is6() {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// Attrs yields the kinds and values of the attributes after a message's body, up to one that is
// cut off. Values are parts of b.
func Attrs(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofRtAttr {
			size := int(binary.NativeEndian.Uint16(b))
			kind := binary.NativeEndian.Uint16(b[2:]) & 0x3fff // without NLA_F_NESTED and NLA_F_NET_BYTEORDER
			if size < unix.SizeofRtAttr || size > len(b) || !yield(kind, b[unix.SizeofRtAttr:size]) {
				return
			}
			b = b[min(len(b), (size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1)):]
		}
	}
}

// Attr returns the value of the first attribute of a kind after a message's body, nil if there is none. With several kinds,
// each attribute is looked for in the value of the one before. Texts end with a zero byte (unix.ByteSliceToString).
func Attr(b []byte, kinds ...uint16) []byte {
	for _, want := range kinds {
		var found []byte
		for kind, value := range Attrs(b) {
			if kind == want {
				found = value
				break
			}
		}
		b = found
	}
	return b
}

// ErrShort is the error of a message that is cut off.
var ErrShort = errors.New("netlink message is cut off")

// Number parses an attribute of 32 bits; it returns 0 for other lengths.
func Number(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

// Address parses an IP address; it returns the zero Addr for lengths other than 4
// and 16 bytes.
func Address(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}

// AddrOf converts an address of package net, as the library netlink has them; nil becomes
// the zero Addr. An IPv4 address in 16 bytes becomes one in 4, so that the two compare as equal.
func AddrOf(ip net.IP) netip.Addr { return Address(ip).Unmap() }

// PrefixOf converts a prefix of package net and does not mask it; nil becomes the zero
// Prefix.
func PrefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(AddrOf(n.IP), bits)
}
