package path

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRefused has WireGuard's messages, as a sniffer sees them, of keys that are wrong and
// of packets that are lost.
func TestRefused(t *testing.T) {
	for _, family := range [][2]string{{"192.0.2.1", "192.0.2.2"}, {"2001:db8::1", "2001:db8::2"}} {
		own, peer := netip.MustParseAddr(family[0]), netip.MustParseAddr(family[1])
		etherType := map[bool]uint16{true: etherIPv4, false: etherIPv6}[own.Is4()]
		message := func(src, dst netip.Addr, kind byte) packet {
			udp := []byte{0xca, 0x6c, 0xca, 0x6c, 0, 0, 0, 0, kind, 0, 0, 0} // port 51820
			return packet{ipPacket(src, dst, unix.IPPROTO_UDP, 64, udp), etherType, src == own}
		}
		for _, c := range []struct {
			name     string
			from, to []byte
			refused  bool
		}{
			{"silence", nil, []byte{wgInitiation}, false},
			{"another preshared key there", []byte{wgResponse}, []byte{wgInitiation}, true},
			{"another key there", []byte{wgInitiation}, []byte{wgInitiation}, true},
			{"answers are lost", []byte{wgInitiation}, []byte{wgInitiation, wgResponse}, false},
			{"data are lost", []byte{wgData}, []byte{wgData}, false},
			{"both begin, and preshared keys differ", []byte{wgInitiation, wgResponse}, []byte{wgInitiation, wgResponse}, true},
		} {
			var h handshake
			o := outer{peer, unix.IPPROTO_UDP, 51820}
			see := func(p packet) {
				if !o.carries(p) {
					t.Errorf("%s: %x is not taken for a packet of the tunnel", c.name, p.data)
				}
				h.see(p, headerLength(peer))
			}
			for _, kind := range c.from {
				see(message(peer, own, kind))
			}
			for _, kind := range c.to {
				see(message(own, peer, kind))
			}
			if h.refused() != c.refused {
				t.Errorf("%s: refused is %t", c.name, h.refused())
			}
		}
		other := netip.MustParseAddr(family[1]).Next()
		if o := (outer{peer, unix.IPPROTO_UDP, 51820}); o.carries(message(other, own, 1)) || o.carries(message(own, other, 1)) {
			t.Error("packets of others are taken for the peer's")
		}
	}
}
