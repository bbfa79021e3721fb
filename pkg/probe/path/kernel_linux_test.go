package path

import (
	"net/netip"
	"os"
	"reflect"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

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

// There is no route if the kernel says so. One that cannot be looked up may exist, and the doctor says that it does not know.
func TestUnreadRoutes(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		sh(t, `ip link add eth0 type veth peer name far; ip link set eth0 up; ip link set far up; ip addr add 192.168.1.5/24 dev eth0
			ip link add flannel.1 type vxlan id 1 dev eth0 local 192.168.1.5 dstport 8472; ip addr add 10.5.1.0/32 dev flannel.1; ip link set flannel.1 up
			ip link add cni0 type bridge; ip addr add 10.5.1.1/24 dev cni0; ip link set cni0 up; echo 1 > /proc/sys/net/ipv4/ip_forward
			ip route add 10.5.2.0/24 via 10.5.2.0 dev flannel.1 onlink; ip route add unreachable 10.5.3.0/24; ip route add unreachable 192.168.2.0/24
			ip rule add from 10.5.1.0/24 prohibit`)
		target := Target{Subnet: netip.MustParsePrefix("10.5.2.0/24"), PublicIP: netip.MustParseAddr("192.168.1.6"), Own: netip.MustParsePrefix("10.5.1.0/24"),
			Devices: []string{"flannel.1"}, Underlay: "eth0"}
		routes := func(target Target) (doctor.Path, error) {
			r := run{target: target, addr: target.Subnet.Addr(), Path: doctor.Path{PublicIP: target.PublicIP}}
			err := r.findRoutes()
			return r.Path, err
		}
		none := target
		none.Subnet, none.PublicIP = netip.MustParsePrefix("10.5.3.0/24"), netip.MustParseAddr("192.168.2.6")
		if p, err := routes(none); err != nil || p.Kind != "" || p.Device != "" || p.Underlay != "" {
			t.Errorf("without routes: %+v, %v", p, err)
		}
		faults := nstest.NewFaults(t)
		want, err := routes(target)
		if err != nil || want.Kind != "vxlan" || want.Underlay != "eth0" || len(want.Astray) != 3 {
			t.Fatalf("%+v, %v", want, err)
		}
		for n, calls := 1, faults.Fail(0, 0); n <= calls; n++ {
			for _, errno := range []unix.Errno{unix.EMFILE, unix.ENOBUFS, unix.ENOMEM} {
				faults.Fail(n, errno)
				got, err := routes(target)
				faults.Fail(0, 0)
				if err == nil && !reflect.DeepEqual(got, want) {
					t.Errorf("call %d failed with %v: %+v, want %+v", n, errno, got, want)
				}
			}
		}
		faults.Fail(1, unix.EMFILE)
		if p := Test(t.Context(), target, time.Millisecond); p.Problem == "" {
			t.Errorf("nothing is known: %+v", p)
		}
	})
}

// Without the capability for a packet socket, Test says so, and closes the sockets that it has opened before.
func TestWithoutPacketSocket(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		sh(t, `ip link add eth0 type veth peer name far; ip link set eth0 up; ip link set far up; ip addr add 192.168.1.5/24 dev eth0
			ip link add flannel.1 type vxlan id 1 dev eth0 local 192.168.1.5 dstport 8472; ip addr add 10.5.1.0/32 dev flannel.1; ip link set flannel.1 up
			ip route add 10.5.2.0/24 via 10.5.2.0 dev flannel.1 onlink; ip neigh add 10.5.2.0 lladdr 02:00:00:00:00:02 dev flannel.1`)
		runtime.LockOSThread() // for good: the thread ends with the test
		var own [2]unix.CapUserData
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		if err := unix.Capget(&header, &own[0]); err != nil {
			t.Fatal(err)
		}
		own[0].Effective &^= 1 << unix.CAP_NET_RAW
		if err := unix.Capset(&header, &own[0]); err != nil {
			t.Fatal(err)
		}
		var open [2]int
		for i := range open { // the first Test may open descriptors that the process keeps
			p := Test(t.Context(), Target{Subnet: netip.MustParsePrefix("10.5.2.0/24"), PublicIP: netip.MustParseAddr("192.168.1.6"),
				Devices: []string{"flannel.1"}, Underlay: "eth0"}, time.Millisecond)
			if p.Problem == "" || p.PublishedMAC == "" {
				t.Fatalf("it ended with %+v", p)
			}
			descriptors, err := os.ReadDir("/proc/self/fd")
			if err != nil {
				t.Fatal(err)
			}
			open[i] = len(descriptors)
		}
		if open[0] != open[1] {
			t.Errorf("%d descriptors were open, then %d", open[0], open[1])
		}
	})
}
