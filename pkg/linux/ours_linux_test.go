package linux

import (
	"net/netip"
	"testing"

	"flannel/pkg/dataplane"
)

func TestWhichRoutesAreOurs(t *testing.T) {
	networks := []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16"), netip.MustParsePrefix("2001:cafe:42::/56")}
	tunnels := map[int]bool{7: true}
	route := func(dst string, protocol uint8, metric uint32, h hop) kernelRoute {
		return kernelRoute{key: routeKey{netip.MustParsePrefix(dst), metric}, hop: h, protocol: protocol}
	}
	via := func(a string, index int) hop { return hop{Via: netip.MustParseAddr(a), Index: index} }
	tunnel := func(a string) hop { return hop{Via: netip.MustParseAddr(a), Index: 7, Onlink: true} }
	for _, test := range []struct {
		name string
		r    kernelRoute
		ours bool
	}{
		{"our protocol", route("10.5.2.0/24", protocolOurs, 5, via("192.168.0.1", 2)), true},
		{"our protocol, the whole network", route("10.5.0.0/16", protocolOurs, 0, via("192.168.0.1", 2)), true},
		{"our protocol, a former network", route("10.4.2.0/24", protocolOurs, 0, via("192.168.0.1", 2)), true},
		{"our protocol, through our device", route("10.77.0.0/24", protocolOurs, 0, tunnel("10.77.0.0")), true},
		{"our protocol, another flanneld's network", route("10.77.0.0/24", protocolOurs, 5, via("192.168.0.1", 2)), false},
		{"flannel's host-gw of a former network", route("10.4.2.0/24", protocolBoot, 0, via("192.168.0.2", 2)), false},
		{"flannel's vxlan", route("10.5.2.0/24", protocolBoot, 0, tunnel("10.5.2.0")), true},
		{"flannel's vxlan of a former network", route("10.9.2.0/24", protocolBoot, 0, tunnel("10.9.2.0")), true},
		{"flannel's vxlan, IPv6", route("2001:cafe:42:1::/64", protocolBoot, 1024, tunnel("2001:cafe:42:1::")), true},
		{"flannel's host-gw", route("10.5.2.0/24", protocolBoot, 0, via("192.168.0.2", 2)), true},
		{"flannel's blackhole", route("10.5.2.0/24", protocolBoot, 0, hop{Blackhole: true}), true},
		{"flannel's host-gw, to a node with another length", route("10.5.2.0/27", protocolBoot, 0, via("192.168.0.2", 2)), true},
		{"an administrator's, with a length in a former network", route("10.5.2.0/28", protocolBoot, 0, via("192.168.0.2", 2)), false},
		{"an administrator's, with a length of IPv6", route("10.5.2.0/30", protocolBoot, 0, via("192.168.0.2", 2)), false},
		{"flannel's host-gw, before another SubnetLen", route("10.5.2.0/25", protocolBoot, 0, via("192.168.0.2", 2)), true},
		{"flannel's ipip, a subnet of another length", route("10.5.2.0/26", protocolBoot, 0, hop{Via: netip.MustParseAddr("192.168.0.2"), Index: 7, Onlink: true}), true},
		{"flannel's host-gw, IPv6", route("2001:cafe:42:1::/64", protocolBoot, 1024, via("fd00::2", 2)), true},
		{"an administrator's, shorter than a subnet", route("10.5.0.0/20", protocolBoot, 0, via("192.168.0.2", 2)), false},
		{"a VPN's, to one address", route("10.5.9.9/32", protocolBoot, 0, via("192.168.0.2", 2)), false},
		{"a VPN's, IPv6", route("2001:cafe:42::/60", protocolBoot, 1024, via("fd00::2", 2)), false},
		{"an administrator's blackhole", route("10.5.16.0/20", protocolBoot, 0, hop{Blackhole: true}), false},
		{"through an operator's nexthop object", kernelRoute{routeKey{netip.MustParsePrefix("10.5.2.0/24"), 0}, via("192.168.0.2", 2), protocolBoot, 8}, false},
		{"the pods' bridge", route("10.5.1.0/24", 2, 0, hop{Index: 9}), false},
		{"no gateway", route("10.5.1.0/24", protocolBoot, 0, hop{Index: 9}), false},
		{"an operator's static route", route("10.5.2.0/24", 4, 0, via("192.168.0.2", 2)), false},
		{"a routing daemon's", route("10.5.2.0/24", 186, 0, via("192.168.0.2", 2)), false},
		{"another metric", route("10.5.2.0/24", protocolBoot, 100, via("192.168.0.2", 2)), false},
		{"the whole network", route("10.5.0.0/16", protocolBoot, 0, via("192.168.0.2", 2)), false},
		{"around the network", route("10.0.0.0/8", protocolBoot, 0, via("192.168.0.2", 2)), false},
		{"elsewhere", route("10.6.0.0/24", protocolBoot, 0, via("192.168.0.2", 2)), false},
		{"on our device, but another gateway", route("10.9.2.0/24", protocolBoot, 0, tunnel("10.9.3.0")), false},
		{"the default route", route("0.0.0.0/0", protocolBoot, 0, via("192.168.0.2", 2)), false},
		{"several gateways", route("10.5.2.0/24", protocolBoot, 0, hop{Unmanaged: true, Via: netip.MustParseAddr("192.168.0.2")}), false},
	} {
		s := scope{networks: networks, tunnels: tunnels, former: []netip.Prefix{netip.MustParsePrefix("10.4.0.0/16")},
			subnets: ownSubnets}
		s.lengths.addSubnets(dataplane.State{Networks: networks, Subnets: ownSubnets,
			FormerSubnets: []netip.Prefix{netip.MustParsePrefix("10.5.1.128/25"), netip.MustParsePrefix("10.4.1.0/28"), netip.MustParsePrefix("2001:cafe:42:1::/94")},
			Paths:         []*dataplane.Path{{Dst: netip.MustParsePrefix("10.5.2.0/27")}}})
		if got := s.owns(test.r); got != test.ours {
			t.Errorf("%s: ours %t, want %t", test.name, got, test.ours)
		}
		// Of a backend that routes nothing, only what we made is ours.
		s.unrouted, s.tunnels = true, nil
		if got := s.owns(test.r); got && test.r.protocol != protocolOurs {
			t.Errorf("%s: ours although the backend routes nothing", test.name)
		}
	}
}
