package reach

import (
	"encoding/binary"
	"math"
	"net/netip"
	"time"
)

// message is the body of our echo requests, which an answer repeats.
//
//	bytes  content
//	0-3    FLRE
//	4      version: 1
//	5      length of the subnet
//	6      family: 4 or 6
//	7      0
//	8-23   subnet of the sender, in the family of the packet; of IPv4 in the first four bytes
//	24-27  how long ago the sender last received a request of the receiver, in
//	       milliseconds; all ones: never
//	28-31  0
//	32-39  a random number
//	40     1: the sender does not forward packets of its pods; else 0
//	41-    anything, up to the size of the packet
//
// A peer may send anything: only the age and byte 40 change the state of a peer, and only of
// the one that has the sender's address. The subnet tells requests of another network apart,
// and the random number which request an answer is for.
type message struct {
	subnet netip.Prefix  // of the sender, in the family of the packet
	heard  time.Duration // ago; negative: never
	token  uint64
	// notForwarding is byte 40, which earlier versions ignore.
	notForwarding bool
}

const (
	headerLen = 40
	icmpLen   = 8
	// minBody is the size of the body of a small request (all but those of the MTU's size): the bytes
	// above and a few more. All versions ignore shorter bodies.
	minBody    = 48
	version    = 1              // requests of a peer with another one are ignored; answers repeat ours
	neverHeard = math.MaxUint32 // in the place of an age
)

// Magic is how the bodies of our requests begin, for the filter of the socket (path.OpenSocket).
var Magic = [4]byte{'F', 'L', 'R', 'E'}

// encode returns a body of that size, or of minBody bytes if that is more.
func (m message) encode(size int) []byte {
	b := make([]byte, max(size, minBody))
	copy(b, Magic[:])
	b[4], b[5], b[6] = version, byte(m.subnet.Bits()), 4
	if m.subnet.Addr().Is6() {
		b[6] = 6
	}
	copy(b[8:24], m.subnet.Addr().AsSlice())
	heard := uint32(neverHeard)
	if ms := m.heard.Milliseconds(); m.heard >= 0 && ms < neverHeard {
		heard = uint32(ms)
	}
	binary.BigEndian.PutUint32(b[24:], heard)
	binary.BigEndian.PutUint64(b[32:], m.token)
	if m.notForwarding {
		b[headerLen] = 1
	}
	return b
}

// decode is the inverse of encode. ok is false if the body is not one of ours.
func decode(b []byte) (m message, ok bool) {
	if len(b) < minBody || [4]byte(b) != Magic || b[4] != version || b[7] != 0 || binary.BigEndian.Uint32(b[28:]) != 0 {
		return m, false
	}
	var addr netip.Addr
	switch {
	case b[6] == 4 && [12]byte(b[12:]) == [12]byte{}:
		addr = netip.AddrFrom4([4]byte(b[8:]))
	case b[6] == 6:
		addr = netip.AddrFrom16([16]byte(b[8:]))
	default:
		return m, false
	}
	m.subnet = netip.PrefixFrom(addr, int(b[5]))
	if !m.subnet.IsValid() || m.subnet != m.subnet.Masked() || addr.Is4In6() {
		return m, false
	}
	m.heard = -1
	if heard := binary.BigEndian.Uint32(b[24:]); heard != neverHeard {
		m.heard = time.Duration(heard) * time.Millisecond
	}
	m.token = binary.BigEndian.Uint64(b[32:])
	m.notForwarding = b[headerLen] == 1
	return m, true
}

// sizeOf returns the size of the body, in bytes, with which the packet to an address has
// the size of the MTU: that of pods, since such packets go to the peer's tunnel device or
// bridge, as those of pods do. The headers of a tunnel come on top.
func sizeOf(mtu int, to netip.Addr) int {
	header := 20
	if to.Is6() {
		header = 40
	}
	return mtu - header - icmpLen
}
