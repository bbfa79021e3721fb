package path

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"flannel/internal/test/nstest"
	"flannel/pkg/doctor"
)

// The kernel's route leads through a tunnel of flanneld's, or to the peer as the gateway. The underlay can be a tunnel of
// another program, also with a name that flanneld could give. The port that nodes publish is that of devices without one.
func TestDescribe(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		sh(t, `ip link set lo up
			ip tuntap add wg0 mode tun; ip addr add 192.0.2.1/24 dev wg0
			ip link add flannel-vpn type vxlan id 9 dstport 4789 dev lo local 127.0.0.1; ip addr add 198.51.100.1/24 dev flannel-vpn
			ip link add flannel.1 type vxlan id 1 dstport 8473 dev lo local 127.0.0.1
			ip tuntap add flannel9000 mode tun; ip tuntap add flannel-wg mode tun
			for device in wg0 flannel-vpn flannel.1 flannel9000 flannel-wg; do ip link set $device up; done
			ip route add 10.5.2.0/24 via 192.0.2.2; ip route add 10.5.3.0/24 via 198.51.100.2; ip route add 10.5.4.0/24 via 10.5.4.0 dev flannel.1 onlink
			ip route add 10.5.6.0/24 dev flannel9000; ip route add 10.5.7.0/24 dev flannel-wg`)
		for _, c := range []struct {
			underlay, peer, device, subnet, kind string
			port, overhead                       int
		}{
			{"wg0", "192.0.2.2", "wg0", "10.5.2.0", doctor.PathDirect, 0, 0}, // as wireguard-go makes it
			{"flannel-vpn", "198.51.100.2", "flannel-vpn", "10.5.3.0", doctor.PathDirect, 0, 0},
			{"wg0", "192.0.2.2", "flannel.1", "10.5.4.0", "vxlan", 8473, 50},
			{"wg0", "192.0.2.2", "flannel9000", "10.5.6.0", "udp", 9000, 28},
			{"wg0", "192.0.2.2", "flannel-wg", "10.5.7.0", "wireguard", 51820, 80},
		} {
			r, err := routeTo(netip.MustParseAddr(c.subnet))
			if err != nil {
				t.Fatal(err)
			}
			p := doctor.Path{PublicIP: netip.MustParseAddr(c.peer)}
			describe(&p, Target{Devices: []string{c.underlay, c.device}, Underlay: c.underlay, Port: 51820}, r)
			if p.Device != c.device || p.Kind != c.kind || p.Port != c.port || p.Overhead != c.overhead {
				t.Errorf("through %s: %q by %s, port %d, overhead %d", c.device, p.Kind, p.Device, p.Port, p.Overhead)
			}
		}
	})
	var p doctor.Path
	ipip := &netlink.Iptun{LinkAttrs: netlink.LinkAttrs{Name: "flannel.ipip"}} // not every kernel has the module
	describe(&p, Target{Devices: []string{"flannel.ipip"}, Port: 51820}, route{link: ipip})
	if p.Kind != "ipip" || p.Port != 0 {
		t.Errorf("through IPIP: %q, port %d", p.Kind, p.Port)
	}
}
