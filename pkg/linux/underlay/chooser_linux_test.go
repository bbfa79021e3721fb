package underlay

import (
	"testing"
	"time"

	"flannel/internal/test/nstest"
	"flannel/pkg/underlay"
)

// The kernel keeps a default route when the address is deleted in whose network the gateway is,
// as long as the interface has another address.
func TestFloatingAddressInTheKernel(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		run(t, `ip link add eth0 type veth peer name far; ip link set eth0 up; ip link set far up
			echo 1 > /proc/sys/net/ipv6/conf/eth0/accept_dad
			ip addr add 192.168.1.5/24 dev eth0; ip addr add 192.168.1.50/32 dev eth0; ip route add default via 192.168.1.1
			ip -6 addr add 2001:db8:1::5/64 dev eth0 nodad; ip -6 addr add 2001:db8:1::50/128 dev eth0 nodad`)
		const flush = "ip -4 addr flush dev eth0; "
		var four, six underlay.Chooser
		now := time.Unix(1e9, 0)
		for _, step := range []struct{ change, v4, v6 string }{ // "": none can be chosen yet
			{"true", "192.168.1.5", "2001:db8:1::5"},
			{"ip addr del 192.168.1.5/24 dev eth0", "", "2001:db8:1::5"},
			{"ip addr add 192.168.1.5/24 dev eth0; ip addr del 2001:db8:1::5/64 dev eth0", "192.168.1.5", ""},
			{"ip addr add 2001:db8:1::5/64 dev eth0 nodad", "192.168.1.5", "2001:db8:1::5"},
			// What clouds give: the only address has no network, and a route shows that it belongs here.
			{flush + "ip addr add 10.128.0.2/32 dev eth0; ip route add default via 10.128.0.1 dev eth0 onlink", "10.128.0.2", "2001:db8:1::5"},
			{"ip route replace default via 10.128.0.1 dev eth0 onlink src 10.128.0.2", "10.128.0.2", "2001:db8:1::5"},
			{"ip route del default; ip route add 10.128.0.1 dev eth0; ip route add default via 10.128.0.1", "10.128.0.2", "2001:db8:1::5"},
			{"ip addr add 10.128.0.50/32 dev eth0", "10.128.0.2", "2001:db8:1::5"},
			{flush + "ip addr add 10.128.0.3/32 dev eth0 valid_lft 3600 preferred_lft 3600; ip route add default via 192.168.1.1 dev eth0 onlink",
				"10.128.0.3", "2001:db8:1::5"},
			{flush + "ip addr add 10.8.0.1 peer 10.8.0.2/32 dev eth0; ip route add default dev eth0", "10.8.0.1", "2001:db8:1::5"},
		} {
			run(t, step.change)
			s, err := Read(underlay.Options{})
			if err != nil {
				t.Fatal(err)
			}
			now = now.Add(time.Second)
			d4, err4 := four.Choose(now, s, underlay.Options{}, true, false)
			if got := d4.Link.V4; (err4 == nil) != (step.v4 != "") || err4 == nil && got.String() != step.v4 {
				t.Errorf("%s: chosen is %s, want %q; %v", step.change, got, step.v4, err4)
			}
			d6, err6 := six.Choose(now, s, underlay.Options{Iface: []string{"eth0"}}, false, true)
			if got := d6.Link.V6; (err6 == nil) != (step.v6 != "") || err6 == nil && got.String() != step.v6 {
				t.Errorf("%s: chosen is %s, want %q; %v", step.change, got, step.v6, err6)
			}
		}
	})
}
