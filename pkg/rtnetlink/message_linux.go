package rtnetlink

import (
	"encoding/binary"
	"errors"
	"iter"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Message is a netlink message under construction: header, fixed part, attributes; before it may lie others, complete.
// Ten thousand are written into one buffer.
type Message []byte

// Begin starts a message; length and sequence number are set when it is sent.
func (m Message) Begin(kind, flags uint16, body []byte) Message {
	m = append(m, 0, 0, 0, 0)
	m = binary.NativeEndian.AppendUint16(m, kind)
	m = binary.NativeEndian.AppendUint16(m, unix.NLM_F_REQUEST|flags)
	m = append(m, 0, 0, 0, 0, 0, 0, 0, 0)
	return append(m, body...)
}

// Attr appends an attribute.
func (m Message) Attr(kind uint16, value []byte) Message {
	m = binary.NativeEndian.AppendUint16(m, uint16(unix.SizeofRtAttr+len(value)))
	m = binary.NativeEndian.AppendUint16(m, kind)
	m = append(m, value...)
	for len(m)%unix.NLMSG_ALIGNTO != 0 {
		m = append(m, 0)
	}
	return m
}

// Uint32 appends an attribute that is a number.
func (m Message) Uint32(kind uint16, value uint32) Message {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], value)
	return m.Attr(kind, b[:])
}

// Addr appends an attribute that is an IP address.
func (m Message) Addr(kind uint16, a netip.Addr) Message {
	if a.Is4() {
		b := a.As4()
		return m.Attr(kind, b[:])
	}
	b := a.As16()
	return m.Attr(kind, b[:])
}

// Family is the address family of an address.
func Family(a netip.Addr) uint8 {
	if a.Is6() {
		return unix.AF_INET6
	}
	return unix.AF_INET
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

// ErrShort is the error of a message that is cut off.
var ErrShort = errors.New("netlink message is cut off")

// Number reads an attribute of 32 bits; it is 0 for one of another length.
func Number(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

// Address reads an IP address; it is the zero Addr for anything else than 4 or 16 bytes.
func Address(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}
