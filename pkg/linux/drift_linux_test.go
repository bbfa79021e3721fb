package linux

import (
	"fmt"
	"testing"
	"time"

	"flannel/internal/test/eventually"
	"flannel/internal/test/nstest"
)

// drifts are changes by other programs. All must be undone, for the kernel notifies us of each.
var drifts = []struct{ name, command string }{
	{"route deleted", "ip route del 10.5.2.0/24"},
	{"route via elsewhere", "ip route replace 10.5.2.0/24 via 192.168.100.77 dev eth0"},
	{"route in the plain form via elsewhere with our protocol", "ip route replace 10.5.2.0/24 via 192.168.100.77 dev eth0 proto 70"},
	{"route made a blackhole", "ip route replace blackhole 10.5.2.0/24"},
	{"route given an MTU", "ip route replace 10.5.2.0/24 via 10.5.2.0 dev flannel.1 onlink mtu 900"},
	{"foreign route before ours", "ip route prepend 10.5.2.0/24 via 192.168.100.77 dev eth0"},
	{"IPv6 route deleted", "ip -6 route del 2001:cafe:42:2::/64"},
	{"IPv6 route via elsewhere", "ip -6 route replace 2001:cafe:42:2::/64 via fd00:100::77 dev eth0"},
	{"route added", "ip route add 10.5.99.0/24 via 10.5.99.0 dev flannel.1 onlink"},
	{"route added with our protocol", "ip route add 10.5.77.0/24 via 192.168.100.77 proto 70"},
	{"nexthop object deleted", "ip nexthop del id $(ip nexthop show proto 70 | grep 10.5.3.0 | cut -d' ' -f2)"},
	{"nexthop object replaced", "ip nexthop replace id $(ip nexthop show proto 70 | grep 10.5.3.0 | cut -d' ' -f2) via 192.168.100.77 dev eth0"},
	{"nexthop object replaced, still with our protocol", "ip nexthop replace id $(ip nexthop show proto 70 | grep 10.5.3.0 | cut -d' ' -f2) via 192.168.100.77 dev eth0 proto 70"},
	{"nexthop objects flushed", "ip nexthop flush proto 70"},
	{"nexthop object added with our protocol", "ip nexthop add id 1174414712 via 192.168.100.77 dev eth0 proto 70"},
	{"route moved to another nexthop object, which is deleted", "ip nexthop add id 7 via 10.5.3.0 dev flannel.1 onlink; ip route replace 10.5.3.0/24 nhid 7 proto 70; ip nexthop del id 7"},
	{"route moved to a group, which is deleted", "ip nexthop add id 7 via 10.5.3.0 dev flannel.1 onlink; ip nexthop add id 9 group 7; ip route replace 10.5.3.0/24 nhid 9 proto 70; ip nexthop del id 7"},
	{"neighbour deleted", "ip neigh del 10.5.2.0 dev flannel.1"},
	{"neighbour changed", "ip neigh replace 10.5.2.0 lladdr 02:00:00:00:99:99 dev flannel.1 nud permanent"},
	{"neighbour no longer permanent", "ip neigh replace 10.5.2.0 lladdr 02:00:00:00:01:02 dev flannel.1 nud stale"},
	{"neighbour added", "ip neigh add 10.5.99.0 lladdr 02:00:00:00:99:99 dev flannel.1 nud permanent"},
	{"IPv6 neighbour deleted", "ip neigh del 2001:cafe:42:2:: dev flannel-v6.1"},
	{"FDB entry deleted", "bridge fdb del 02:00:00:00:01:02 dev flannel.1"},
	{"FDB entry changed", "bridge fdb replace 02:00:00:00:01:02 dev flannel.1 dst 192.168.100.77 self permanent"},
	{"FDB entry added", "bridge fdb add 02:00:00:00:99:99 dev flannel.1 dst 192.168.100.77 self permanent"},
	{"flood entry added", "bridge fdb append 00:00:00:00:00:00 dev flannel.1 dst 192.168.100.77 self permanent"},
	{"device deleted", "ip link del flannel.1"},
	{"both devices deleted", "ip link del flannel.1; ip link del flannel-v6.1"},
	{"device down", "ip link set flannel.1 down"},
	{"device down and up", "ip link set flannel.1 down; ip link set flannel.1 up"},
	{"device renamed", "until printf 'link set flannel.1 down\nlink set flannel.1 name other\n' | ip -batch - 2>/dev/null; do :; done; ip link set other up; sleep .1; ip link del other 2>/dev/null || true"},
	{"device replaced by another hand", "ip link del flannel.1; ip link add flannel.1 type vxlan id 1 dev eth0 dstport 4789 2>/dev/null || true"},
	{"device address deleted", "ip addr flush dev flannel.1 || true"},
	{"device address added", "ip addr add 10.5.77.1/32 dev flannel.1"},
	{"device MTU changed", "ip link set flannel.1 mtu 1400"},
	{"device MAC changed", "ip link set flannel.1 address 02:00:00:00:99:98"},
	{"device of a former VNI", "ip link add flannel.9 type vxlan id 9 dstport 9999 dev eth0; ip addr add 10.5.1.0/32 dev flannel.9"},
	{"underlay down and up", "ip link set eth0 down; sleep .1; ip link set eth0 up; ip addr replace fd00:100::1/64 dev eth0 nodad"},
	{"forwarding switched off", "sysctl -qw net.ipv4.ip_forward=0"},
	{"IPv6 forwarding switched off", "sysctl -qw net.ipv6.conf.all.forwarding=0"},
	{"routes flushed", "for i in 2 3 4; do ip route del 10.5.$i.0/24; ip -6 route del 2001:cafe:42:$i::/64; done"},
	// One round: with more, ip gives up when each finds what was mended since the last.
	{"neighbours flushed", "ip neigh show dev flannel.1 nud permanent | while read a _; do ip neigh del $a dev flannel.1; done"},
}

func TestDriftIsMended(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		m.mustPass()
		m.serve()
		all := func() string {
			return kernel(t) + run(t, `cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv6/conf/all/forwarding
				ip route show 10.5.77.0/24; ip link show flannel.9 2>/dev/null || true; ip nexthop show id 1174414712 2>/dev/null || true; ip nexthop show proto 70 | wc -l`)
		}
		want := all()
		for _, d := range drifts {
			m.mu.Lock()
			clear(m.repaired)
			m.mu.Unlock()
			run(t, "%s", d.command)
			took := eventually.Nil(t, d.name, func() error {
				if got := all(); got != want {
					return fmt.Errorf("the kernel holds\n%s\nwant\n%s", got, want)
				}
				return nil
			})
			m.mu.Lock()
			if len(m.repaired) == 0 && d.name != "device of a former VNI" && d.name != "underlay down and up" { // nothing of ours was changed
				t.Errorf("%s: no repair was reported", d.name)
			}
			t.Logf("%-60s mended and seen after %v: %v", d.name, took.Round(time.Millisecond), m.repaired)
			m.mu.Unlock()
		}
	})
}
