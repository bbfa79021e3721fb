package underlay

import (
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"flannel/internal/test/nstest"
	"flannel/pkg/linux/rtnetlink"
)

// The filter of the socket drops routes that cannot matter, so that they do not wake the daemon.
func TestFewRoutes(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		run(t, plug)
		passed := make(chan netip.Prefix, 100)
		l, err := rtnetlink.Listen(rtnetlink.Notifications{
			Protocol: unix.NETLINK_ROUTE,
			Groups:   []int{unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE},
			Filter:   fewRoutes(),
			Each: func(h rtnetlink.Header, body []byte) error {
				if r := parseRoute(body); h.Kind == unix.RTM_NEWROUTE && body[4] == unix.RT_TABLE_MAIN {
					passed <- r.dst
				}
				return nil
			},
			Lost: func(err error) { t.Errorf("lost notifications: %v", err) },
		})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close() //nolint:errcheck // it only receives
		run(t, `echo 0 > /proc/sys/net/ipv4/nexthop_compat_mode # the routes below then have the ID of an object, and no interface
			ip -6 nexthop add id 7 via 2001:db8:1::1 dev eth0; ip nexthop add id 8 via 192.168.1.1 dev eth0
			ip -6 route add fd07::/64 nhid 7
			ip -6 route add default nhid 7 metric 70
			ip -6 route add fd08::/64 via 2001:db8:1::1
			ip -6 route add fd0a::/64 nexthop via 2001:db8:1::1 dev eth0 nexthop via 2001:db8:1::2 dev eth0
			ip -6 route add fd0b::/64 dev eth0 proto 70
			ip -6 route add fd0c::/64 dev eth0
			ip route add 10.5.7.0/24 nhid 8
			ip route add default nhid 8 metric 70
			ip route add 10.5.8.0/24 via 192.168.1.1
			ip route add 10.5.9.0/24 dev eth0 proto 70
			ip route add 10.5.10.0/24 dev eth0`)
		want := []netip.Prefix{pfx("::/0"), pfx("fd0c::/64"), pfx("0.0.0.0/0"), pfx("10.5.10.0/24")}
		var have []netip.Prefix
		for last := want[len(want)-1]; !slices.Contains(have, last); {
			have = append(have, <-passed)
		}
		if !slices.Equal(have, want) {
			t.Errorf("the filter passed %v, want %v", have, want)
		}
	})
}
