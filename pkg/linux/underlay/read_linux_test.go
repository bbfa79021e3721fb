package underlay

import (
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"flannel/internal/test/nstest"
	"flannel/pkg/reconcile"
	"flannel/pkg/underlay"
)

var (
	pfx = netip.MustParsePrefix
	ip  = netip.MustParseAddr
)

func run(t *testing.T, command string) {
	t.Helper()
	if out, err := exec.Command("sh", "-ec", command).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
}

// Without checks for duplicate addresses, which end at a time of their own.
const plug = `echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad
	ip link add eth0 address 02:00:00:00:00:05 type veth peer name far
	ip link set eth0 up; ip link set far up
	ip addr add 192.168.1.5/24 dev eth0; ip addr add 192.168.1.6/24 dev eth0
	ip addr add 10.8.0.1 peer 10.8.0.2/32 dev eth0; ip addr add 10.9.0.1/24 dev eth0 noprefixroute
	ip -6 addr add 2001:db8:1::5/64 dev eth0 nodad; ip -6 addr add 2001:db8:1::4/64 dev eth0 nodad
	ip route add default via 192.168.1.1 src 192.168.1.6 metric 7; ip route add 172.16.0.0/24 dev eth0
	ip route add 10.99.0.0/16 via 192.168.1.1
	ip -6 route add default via 2001:db8:1::1; ip -6 route add fd09::/64 dev eth0`

func TestRead(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		run(t, plug)
		run(t, `ip link add eth1 type veth peer name far1; ip addr add 10.1.0.5/16 dev eth1; ip link property add dev eth1 altname enp3s0
			ip link add br0 type bridge
			ip -6 addr add fd01::1/64 dev eth0 preferred_lft 0 nodad`)
		o := underlay.Options{CanReach: netip.MustParseAddr("9.9.9.9")}
		s, err := Read(o)
		if err != nil {
			t.Fatal(err)
		}
		got, err := underlay.Choose(s, underlay.Options{}, true, true)
		if err != nil {
			t.Fatal(err)
		}
		want := underlay.Link{
			Name: "eth0", Index: got.Index, MTU: 1500, MAC: [6]byte{2, 0, 0, 0, 0, 5},
			V4: ip("192.168.1.6"), V6: ip("2001:db8:1::5"), PublicV4: ip("192.168.1.6"), PublicV6: ip("2001:db8:1::5"),
			OnLink: []netip.Prefix{pfx("10.8.0.2/32"), pfx("172.16.0.0/24"), pfx("192.168.1.0/24"), pfx("2001:db8:1::/64"), pfx("fd01::/64"), pfx("fd09::/64")},
		}
		if !got.Equal(want) {
			t.Errorf("%+v\nwant %+v", got, want)
		}
		if l, err := underlay.Choose(s, o, true, false); err != nil || l.V4 != ip("192.168.1.6") {
			t.Errorf("can reach: %+v, %v", l, err)
		}
		for _, in := range s.Interfaces {
			if in.Veth != slices.Contains([]string{"eth0", "far", "eth1", "far1"}, in.Name) {
				t.Errorf("%s is a veth device: %t", in.Name, in.Veth)
			}
		}
		eth0, eth1 := s.ByIndex(got.Index), -1
		for i, in := range s.Interfaces {
			if in.Name == "eth1" {
				eth1 = i
			}
			if in.Loopback != (in.Name == "lo") {
				t.Errorf("loopback: %+v", in)
			}
		}
		if in := s.Interfaces[eth1]; in.Up || !slices.Equal(in.AltNames, []string{"enp3s0"}) {
			t.Errorf("eth1: %+v", in)
		}
		flags := map[string]string{}
		for _, a := range eth0.Addrs {
			flags[a.IP.String()] = strings.TrimSpace(map[bool]string{true: "secondary "}[a.Secondary] + map[bool]string{true: "deprecated "}[a.Deprecated] +
				map[bool]string{true: "local"}[!a.Global])
		}
		for a, want := range map[string]string{"192.168.1.5": "", "192.168.1.6": "secondary", "fd01::1": "deprecated", "2001:db8:1::5": "", "10.8.0.1": ""} {
			if flags[a] != want {
				t.Errorf("%s is %q, want %q", a, flags[a], want)
			}
		}
		run(t, "ip route del default")
		if s, err := Read(o); err != nil || s.Reach.Problem == "" {
			t.Errorf("an address out of reach: %+v, %v", s.Reach, err)
		}
		run(t, "ip route add default nexthop via 192.168.1.1 dev eth0 nexthop via 192.168.1.2 dev eth0")
		s, err = Read(underlay.Options{})
		if n := len(s.Defaults); err != nil || n != 3 {
			t.Errorf("%d default routes, want 2 of IPv4, 1 of IPv6: %+v, %v", n, s.Defaults, err)
		}
		if l, err := underlay.Choose(s, underlay.Options{}, true, false); err != nil || l.V4 != ip("192.168.1.5") {
			t.Errorf("multipath: %+v, %v", l, err)
		}
	})
}

// Routes that the netlink library cannot read (segment routing with a key) keep nothing else from being read, also if the
// address that the underlay must reach is behind one.
func TestReadBesideRoutesOfOthers(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		run(t, plug)
		run(t, `sysctl -qw net.ipv6.conf.all.seg6_enabled=1
			printf 'secret\nsecret\n' | ip sr hmac set 17 sha256
			ip -6 route add fd01::/64 encap seg6 mode encap segs fd00:1::5 hmac 17 via 2001:db8:1::1 dev eth0 src 2001:db8:1::4`)
		s, err := Read(underlay.Options{CanReach: ip("fd01::7")})
		if err != nil {
			t.Fatal(err)
		}
		if eth0 := s.ByIndex(s.Reach.Index); eth0 == nil || eth0.Name != "eth0" || s.Reach.Source != ip("2001:db8:1::4") {
			t.Errorf("the route leads to %+v, want eth0 and the source 2001:db8:1::4", s.Reach)
		}
	})
}

func TestWatch(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		// Checks for duplicate link-local addresses end at a time of their own, and count then.
		run(t, "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad")
		changed := make(chan struct{}, 1)
		if err := Watch(t.Context(), func() { reconcile.Notify(changed) }); err != nil {
			t.Fatal(err)
		}
		// expect waits until Choose gives what is wanted, woken by nothing but the watch.
		expect := func(what, change string, want func(underlay.Link) bool) {
			t.Helper()
			start := time.Now()
			run(t, change)
			for deadline := time.After(2 * time.Minute); ; {
				select {
				case <-changed:
				case <-deadline:
					t.Fatalf("%s: not noticed", what)
				}
				s, err := Read(underlay.Options{})
				if err != nil {
					t.Fatal(err)
				}
				if l, _ := underlay.Choose(s, underlay.Options{}, true, true); want(l) {
					t.Logf("%-24s seen after %v", what, time.Since(start).Round(time.Millisecond))
					return
				}
			}
		}
		first := 0
		expect("plugged in", plug, func(l underlay.Link) bool { first = l.Index; return l.V4 == ip("192.168.1.6") && l.V6.IsValid() })
		expect("MTU changed", "ip link set eth0 mtu 1400", func(l underlay.Link) bool { return l.MTU == 1400 })
		expect("MAC changed", "ip link set eth0 address 02:00:00:00:00:09", func(l underlay.Link) bool { return l.MAC[5] == 9 })
		expect("address changed", `ip addr add 192.168.1.7/24 dev eth0; ip route replace default via 192.168.1.1 src 192.168.1.7 metric 7; ip addr del 192.168.1.6/24 dev eth0`,
			func(l underlay.Link) bool { return l.V4 == ip("192.168.1.7") })
		expect("on-link route added", "ip route add 172.17.0.0/24 dev eth0", func(l underlay.Link) bool { return l.Reaches(ip("172.17.0.1")) })
		// Without an address in it, as where routers announce a network and DHCPv6 gives the addresses.
		expect("IPv6 on-link route added", "ip -6 route add fd10::/64 dev eth0 proto ra", func(l underlay.Link) bool { return l.Reaches(ip("fd10::1")) })
		expect("IPv6 on-link route removed", "ip -6 route del fd10::/64 dev eth0", func(l underlay.Link) bool { return l.V6.IsValid() && !l.Reaches(ip("fd10::1")) })
		expect("default route removed", "ip route del default", func(l underlay.Link) bool { return l.Name == "" })
		expect("default route back", "ip route add default via 192.168.1.1", func(l underlay.Link) bool { return l.V4.IsValid() })
		run(t, `echo 0 > /proc/sys/net/ipv4/nexthop_compat_mode # the kernel then notifies of the object, and not of its routes
			ip nexthop add id 9 via 192.168.1.1 dev eth0; ip route replace default nhid 9`)
		for _, step := range []struct {
			what, change string
			found        bool
		}{
			{"nexthop object elsewhere", "ip nexthop replace id 9 dev far", false},
			{"nexthop object back", "ip nexthop replace id 9 via 192.168.1.1 dev eth0", true},
			{"nexthop object deleted", "ip nexthop del id 9", false},
		} {
			drain(changed) // of what was done before
			expect(step.what, step.change, func(l underlay.Link) bool { return l.V4.IsValid() == step.found })
		}
		expect("unplugged", "ip link del eth0", func(l underlay.Link) bool { return l.Name == "" })
		expect("plugged in again", plug, func(l underlay.Link) bool { return l.Index != first && l.V4 == ip("192.168.1.6") && l.MTU == 1500 })

		run(t, "ip link add cni0 type bridge; ip link set cni0 up")
		hasBridge := func() bool {
			s, err := Read(underlay.Options{})
			return err == nil && slices.Contains(s.Addrs(), ip("10.5.1.1"))
		}
		for range 5 { // fewer than ten notifications of the steps above can be left
			expect("address of the pods' bridge", "ip addr add 10.5.1.1/32 dev cni0", func(underlay.Link) bool { return hasBridge() })
			expect("removed from the bridge", "ip addr del 10.5.1.1/32 dev cni0", func(underlay.Link) bool { return !hasBridge() })
		}

		for tries := 5; ; tries-- { // on a busy machine it may be told of the last step only now
			drain(changed)
			run(t, `ip route add 10.5.7.0/24 via 192.168.1.1; ip route del 10.5.7.0/24
				ip -6 route add fd07::/64 via 2001:db8:1::1; ip -6 route del fd07::/64
				ip route add 10.5.8.0/24 dev far proto 70; ip route del 10.5.8.0/24 # as flanneld's own for WireGuard
				ip -6 route add fd08::/64 dev far proto 70; ip -6 route del fd08::/64
				ip -6 nexthop add id 7 via 2001:db8:1::1 dev eth0 proto 70 # as flanneld's own
				ip -6 route add fd07::/64 nhid 7 proto bgp; ip -6 route del fd07::/64; ip nexthop del id 7
				ip link add flannel.1 address 02:00:00:00:00:77 type veth peer name flannel-far; ip link set flannel.1 up
				ip link set flannel-far up; ip -6 route add fd08::/64 dev flannel.1; ip link del flannel.1`)
			select {
			case <-changed:
				if tries == 0 {
					t.Fatal("notified of a change of flanneld's devices, routes or nexthop objects, or of a route with a gateway that is no default route")
				}
			case <-time.After(time.Second):
				return
			}
		}
	})
}

func drain(changed <-chan struct{}) {
	for {
		select {
		case <-changed:
		case <-time.After(500 * time.Millisecond): // longer than the notifications of a change take to arrive
			return
		}
	}
}

// TestFilterBridgePort: pods come and go as ports of a bridge.
func TestFilterBridgePort(t *testing.T) {
	info := nl.NewIfInfomsg(unix.AF_UNSPEC)
	info.Index = 7
	kind := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	kind.AddRtAttr(nl.IFLA_INFO_SLAVE_KIND, []byte("bridge\x00"))
	port := append(info.Serialize(), kind.Serialize()...)
	addr := nl.NewIfAddrmsg(unix.AF_INET6) // link-local
	addr.Index, addr.Scope = 7, unix.RT_SCOPE_LINK
	global := nl.NewIfAddrmsg(unix.AF_INET6)
	global.Index = 7
	type message struct {
		kind uint16
		body []byte
	}
	f := ignoredLinks{}
	for i, step := range []struct {
		m    message
		want bool
	}{
		{message{unix.RTM_NEWADDR, addr.Serialize()}, true},
		{message{unix.RTM_NEWLINK, info.Serialize()}, true},
		{message{unix.RTM_NEWLINK, port}, false},
		{message{unix.RTM_NEWADDR, addr.Serialize()}, false},
		{message{unix.RTM_NEWADDR, global.Serialize()}, true},
		{message{unix.RTM_DELLINK, port}, false},
		{message{unix.RTM_NEWADDR, addr.Serialize()}, true},
		{message{unix.RTM_NEWLINK, nil}, false},
		{message{unix.RTM_NEWADDR, nil}, false},
		{message{unix.RTM_NEWROUTE, nil}, false},
		{message{unix.RTM_NEWNEIGH, nil}, false},
	} {
		if got := f.concerns(step.m.kind, step.m.body); got != step.want {
			t.Errorf("step %d: %t", i, got)
		}
	}
}
