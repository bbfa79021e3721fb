package underlay

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"flannel/internal/test/nstest"
	"flannel/pkg/underlay"
)

// The largest metric is the worst one.
func TestReadLargestMetric(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		run(t, plug)
		run(t, `ip link add eth1 type veth peer name far1; ip link set eth1 up; ip link set far1 up; ip addr add 10.1.0.5/16 dev eth1
			ip route add default via 10.1.0.1 metric 4294967295`)
		s, err := Read(underlay.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if l, err := underlay.Choose(s, underlay.Options{}, true, false); err != nil || l.Name != "eth0" {
			t.Errorf("chosen is %q (%v), want eth0, of %+v", l.Name, err, s.Defaults)
		}
	})
}

// Of a route through a nexthop object, Read gives the same whether the kernel puts the attributes of the object into
// the route or not.
func TestReadNexthopObjects(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		run(t, "echo 1 > /proc/sys/net/ipv6/conf/default/addr_gen_mode") // no link-local addresses, which the kernel adds later
		run(t, plug)
		run(t, `ip link add eth1 type veth peer name far1; ip link set eth1 up; ip link set far1 up; ip addr add 10.1.0.5/16 dev eth1
			ip nexthop add id 1 via 192.168.1.1 dev eth0; ip nexthop add id 2 via 10.1.0.1 dev eth1
			ip nexthop add id 3 dev eth1; ip nexthop add id 4 via 172.30.0.1 dev eth1 onlink; ip nexthop add id 5 group 2/1,3
			ip -6 nexthop add id 6 via 2001:db8:1::1 dev eth0; ip nexthop add id 7 blackhole`)
		for routes, want := range map[string]int{ // the number of default routes and of routes that put 172.16.1.0/24 on a link
			"ip route add default nhid 1": 1,
			"ip route add default nhid 1 src 192.168.1.6 metric 5; ip route add default nhid 2": 2,
			"ip route add default nhid 3":                                          1,
			"ip route add default nhid 4":                                          1,
			"ip route add default nhid 5":                                          2,
			"ip route add default nhid 6; ip -6 route add default nhid 6 metric 9": 2,
			"ip route add default nhid 7":                                          0,
			"ip route add 172.16.1.0/24 nhid 3 scope link; ip route add 8/8 via 172.16.1.1; ip route del 8/8": 1,
			"ip route add 172.16.1.0/24 nhid 3; ! ip route add 8/8 via 172.16.1.1":                            0, // scope global
			"ip route add 172.16.1.0/24 nhid 2 scope link":                                                    0,
			"ip route add 172.16.1.0/24 nhid 5 scope link":                                                    0,
			"ip route add 172.16.1.0/24 nhid 6 scope link":                                                    0,
		} {
			run(t, "while ip route del default || ip -6 route del default || ip route del 172.16.1.0/24; do :; done 2>/dev/null; "+routes)
			var read [2]underlay.Snapshot
			for compat := range read {
				run(t, fmt.Sprintf("echo %d > /proc/sys/net/ipv4/nexthop_compat_mode", compat))
				var err error
				if read[compat], err = Read(underlay.Options{}); err != nil {
					t.Fatalf("%s, nexthop_compat_mode %d: %v", routes, compat, err)
				}
			}
			n := len(read[0].Defaults)
			for _, in := range read[0].Interfaces {
				if slices.Contains(in.OnLink, pfx("172.16.1.0/24")) {
					n++
				}
			}
			if !reflect.DeepEqual(read[0], read[1]) || n != want {
				t.Errorf("%s: read %+v with nexthop_compat_mode 0, and %+v with 1; have %d, want %d", routes, read[0], read[1], n, want)
			}
		}
	})
}
