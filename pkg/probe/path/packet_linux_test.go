package path

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"flannel/pkg/dataplane"
)

// What no kernel completes has the right length and checksum, also if its size is odd.
func TestPacketsByHand(t *testing.T) {
	for _, c := range []struct{ src, dst string }{{"10.5.1.0", "10.5.2.0"}, {"fd05::1", "fd05::2:0"}} {
		src, dst := netip.MustParseAddr(c.src), netip.MustParseAddr(c.dst)
		for _, size := range []int{84, 85} {
			m := echoRequest(src, dst, 7, newToken(), size)
			p := ipPacket(src, dst, icmpOf(dst), 64, m)
			if len(p) != size || !isRequest(m) || binary.BigEndian.Uint16(m[6:]) != 7 {
				t.Errorf("%s: %d bytes instead of %d: %x", dst, len(p), size, m)
			}
			covered := m
			if dst.Is6() {
				covered = withAddresses(p, unix.IPPROTO_ICMPV6, m)
			} else if sum := dataplane.Checksum(p[:headerLength(dst)]); sum != 0 {
				t.Errorf("%s: the header has a wrong checksum, by %#x: %x", dst, sum, p)
			}
			if sum := dataplane.Checksum(covered); sum != 0 {
				t.Errorf("%s: the request has a wrong checksum, by %#x: %x", dst, sum, m)
			}
		}
		segment := syn(netip.AddrPortFrom(src, 1), netip.AddrPortFrom(dst, 2), 3)
		p := ipPacket(src, dst, unix.IPPROTO_TCP, 64, segment)
		if sum := dataplane.Checksum(withAddresses(p, unix.IPPROTO_TCP, segment)); sum != 0 {
			t.Errorf("%s: the segment has a wrong checksum, by %#x: %x", dst, sum, segment)
		}
	}
}

// withAddresses returns what the checksum of a packet's payload covers: the addresses, as
// they are in the packet, the protocol and the length (RFC 9293, RFC 8200), and itself.
func withAddresses(packet []byte, protocol uint16, payload []byte) []byte {
	header := packet[:len(packet)-len(payload)]
	addresses := header[12:]
	if len(header) == 40 {
		addresses = header[8:]
	}
	b := binary.BigEndian.AppendUint16(append([]byte{}, addresses...), protocol)
	return append(binary.BigEndian.AppendUint16(b, uint16(len(payload))), payload...)
}
