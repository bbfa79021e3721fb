package dataplane

import "testing"

// With an MTU of 1500 on the underlay, an IPIP device has 1480, and a VXLAN device, as in RFC 7348, 1450 or 1430; a
// WireGuard device has 1420, as with wg-quick; pods have, as with flannel, 1423 with IPsec or, with UDP, 1415.
func TestOverheads(t *testing.T) {
	for _, c := range []struct {
		kind   Kind
		v4, v6 int
	}{
		{Existing{}, 0, 0}, {IPIP{}, 20, 40}, {VXLAN{}, 50, 70}, {WireGuard{}, 80, 80}, {TUN{}, 28, 48}, {IPsec{}, 77, 97}, {IPsec{UDPEncap: true}, 85, 105},
	} {
		traits := TraitsOf(c.kind)
		if v4, v6 := traits.Overhead(false), traits.Overhead(true); v4 != c.v4 || v6 != c.v6 {
			t.Errorf("%s: %d bytes over IPv4, %d over IPv6, want %d and %d", KindName(c.kind), v4, v6, c.v4, c.v6)
		}
	}
}

// A device is of the kind that has its type and its name, and a path of the one that has its backend.
func TestTraitsOfDevices(t *testing.T) {
	for _, c := range []struct {
		link, name string
		backend    string // "": it is no tunnel
		protocol   uint8
		port       uint16
	}{
		{"vxlan", "flannel.7", "vxlan", 17, 8472},
		{"ipip", "flannel.ipip", "ipip", 4, 0},
		{"wireguard", "flannel-wg", "wireguard", 17, 0},
		{"tuntap", "flannel-wg-v6", "wireguard", 17, 0}, // of wireguard-go
		{"tuntap", "flannel0", "udp", 17, 8285},
		{"tuntap", "flannel9000", "udp", 17, 9000},
		{"device", "eth0", "", 0, 0},
		{"wireguard", "wg0", "", 0, 0}, // an underlay
		{"tuntap", "tailscale0", "", 0, 0},
		{"tuntap", "flannel-vpn", "", 0, 0}, // these are devices of others, too: udp's are named after their port
		{"tuntap", "flannel70000", "", 0, 0},
		{"tuntap", "flannel", "", 0, 0},
		{"tuntap", "flannel-wg0", "", 0, 0},
		{"wireguard", "flannel-wg-v6x", "", 0, 0},
		{"vxlan", "flannel.lab", "", 0, 0},
		{"vxlan", "flannel-v6.7", "vxlan", 17, 8472},
		{"ipip", "flannel.7", "", 0, 0},
		{"vxlan", "vxlan7", "", 0, 0},
		{"", "", "", 0, 0},
	} {
		of, is := TraitsOfLink(c.link, c.name)
		if is != (c.backend != "") || of.Backend != c.backend || of.Protocol != c.protocol || of.Port != c.port {
			t.Errorf("%s of type %s: %+v, %t", c.name, c.link, of, is)
		}
		if by := TraitsOfBackend(c.backend); by.Backend != c.backend || by.Protocol != c.protocol {
			t.Errorf("%s: %+v", c.backend, by)
		}
	}
	for _, c := range []struct {
		kind     Kind
		protocol uint8
		port     uint16
	}{{VXLAN{Port: 4789}, 17, 4789}, {TUN{Port: 9000}, 17, 9000}, {WireGuard{Port: 51820}, 17, 51820}, {IPsec{}, 50, 0}, {IPsec{UDPEncap: true}, 17, 4500}} {
		if of := TraitsOf(c.kind); of.Protocol != c.protocol || of.Port != c.port {
			t.Errorf("%+v: protocol %d, port %d", c.kind, of.Protocol, of.Port)
		}
	}
}
