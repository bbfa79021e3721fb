package underlay

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"flannel/internal/test/logtest"
	"flannel/pkg/dataplane"
)

var (
	pfx = netip.MustParsePrefix
	ip  = netip.MustParseAddr
)

// dev makes an interface from "192.168.1.5/24 secondary"-like addresses, all global.
func dev(index int, name string, addrs ...string) Interface {
	in := Interface{Name: name, Index: index, MTU: 1500, Up: true, MAC: dataplane.MAC{2, 0, 0, 0, 0, byte(index)}}
	for _, text := range addrs {
		words := strings.Fields(text)
		p := pfx(words[0])
		a := Addr{IP: p.Addr(), Net: p.Masked(), Global: !p.Addr().IsLinkLocalUnicast(), Host: p.IsSingleIP()}
		for _, w := range words[1:] {
			switch w {
			case "secondary":
				a.Secondary = true
			case "temporary":
				a.Temporary = true
			case "deprecated":
				a.Deprecated = true
			case "tentative":
				a.Tentative = true
			case "dynamic":
				a.Host = false
			case "dhcp":
				a.DHCP = true
			case "local":
				a.Global = false
			default:
				panic(w)
			}
		}
		in.Addrs = append(in.Addrs, a)
	}
	return in
}

func host() Snapshot {
	lo := dev(1, "lo", "127.0.0.1/8", "::1/128")
	lo.Loopback = true
	down := dev(5, "eth2", "10.2.0.5/24")
	down.Up = false
	return Snapshot{
		Interfaces: []Interface{
			lo,
			dev(2, "eth0", "192.168.1.5/24", "192.168.1.6/24 secondary", "2001:db8:1::5/64", "fe80::5/64"),
			dev(3, "eth1", "10.1.0.5/16", "fe80::6/64"),
			dev(4, "wlan0", "169.254.7.7/16", "fd00:7::7/64"),
			down,
			dev(6, "flannel.1", "10.5.1.0/32"),
			dev(7, "cni0", "10.5.1.1/24"),
		},
		Defaults: []Default{
			{Index: 3, Gateway: ip("10.1.0.1"), Metric: 200},
			{Index: 2, Gateway: ip("192.168.1.1"), Metric: 100},
			{Index: 2, V6: true, Gateway: ip("fe80::1"), Metric: 1024},
		},
	}
}

func re(texts ...string) (all []*regexp.Regexp) {
	for _, t := range texts {
		all = append(all, regexp.MustCompile(t))
	}
	return all
}

// with is the host after a change.
func with(change func(*Snapshot)) Snapshot { s := host(); change(&s); return s }

func reachable(index int) Snapshot { return with(func(s *Snapshot) { s.Reach = Reach{Index: index} }) }

// privacy is a host with an interface of these addresses, and a route from fd00::2.
func privacy(addrs ...string) Snapshot {
	return Snapshot{Interfaces: []Interface{dev(2, "eth0", addrs...)}, Reach: Reach{Index: 2, Source: ip("fd00::2")}}
}

type choice struct {
	name   string
	s      Snapshot
	o      Options
	v4, v6 bool
	want   string // name, v4, v6, public v4, public v6; or after "!" what the error names
}

func chooseAll(t *testing.T, all []choice) {
	for _, c := range all {
		t.Run(c.name, func(t *testing.T) {
			got := ""
			l, err := Choose(c.s, c.o, c.v4, c.v6)
			if err == nil {
				got = fmt.Sprintf("%s %s %s %s %s", l.Name, show(l.V4), show(l.V6), show(l.PublicV4), show(l.PublicV6))
			} else if wrong, refused := strings.CutPrefix(c.want, "!"); refused && logtest.Names(err.Error(), strings.Fields(wrong)...) {
				got = c.want
			} else {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("%s\nwant %s", got, c.want)
			}
		})
	}
}

func TestChoose(t *testing.T) {
	chooseAll(t, []choice{
		{"default route, lowest metric", host(), Options{}, true, false, "eth0 192.168.1.5 - 192.168.1.5 -"},
		{"default route, dual", host(), Options{}, true, true, "eth0 192.168.1.5 2001:db8:1::5 192.168.1.5 2001:db8:1::5"},
		{"default route, v6 only", host(), Options{}, false, true, "eth0 - 2001:db8:1::5 - 2001:db8:1::5"},
		{"default route's source", with(func(s *Snapshot) { s.Defaults[1].Source = ip("192.168.1.6") }), Options{}, true, false, "eth0 192.168.1.6 - 192.168.1.6 -"},
		{"v6 default route's source in dual", with(func(s *Snapshot) {
			s.Interfaces[1] = dev(2, "eth0", "192.168.1.5/24", "2001:db8:1::5/64", "2001:db8:1::6/64")
			s.Defaults[2].Source = ip("2001:db8:1::6")
		}), Options{}, true, true, "eth0 192.168.1.5 2001:db8:1::6 192.168.1.5 2001:db8:1::6"},
		{"next default route when the first is down", with(func(s *Snapshot) { s.Interfaces[1].Up = false }), Options{}, true, false, "eth1 10.1.0.5 - 10.1.0.5 -"},
		{"next default route in dual has no v6", with(func(s *Snapshot) { s.Interfaces[1].Up = false }), Options{}, true, true, "!IPv4 IPv6 eth0 eth1 fe80::6"},
		{"default route through cni0", with(func(s *Snapshot) { s.Defaults = []Default{{Index: 7}} }), Options{}, true, false, "!IPv4 cni0"},
		{"default route to nowhere", with(func(s *Snapshot) { s.Defaults = []Default{{Index: 99}} }), Options{}, true, false, "!IPv4"},
		{"v6 default elsewhere", with(func(s *Snapshot) { s.Defaults[2].Index = 4 }), Options{}, true, true, "eth0 192.168.1.5 2001:db8:1::5 192.168.1.5 2001:db8:1::5"},
		{"no default route", with(func(s *Snapshot) { s.Defaults = nil }), Options{}, true, false, "!IPv4 --iface"},
		{"no v6 default route", with(func(s *Snapshot) { s.Defaults = s.Defaults[:2] }), Options{}, false, true, "!IPv6"},
		{"equal metrics keep their order", with(func(s *Snapshot) { s.Defaults[0].Metric = 100 }), Options{}, true, false, "eth1 10.1.0.5 - 10.1.0.5 -"},

		{"iface by name", host(), Options{Iface: []string{"eth1"}}, true, false, "eth1 10.1.0.5 - 10.1.0.5 -"},
		{"iface by other name", with(func(s *Snapshot) { s.Interfaces[2].AltNames = []string{"enp3s0"} }), Options{Iface: []string{"enp3s0"}}, true, false, "eth1 10.1.0.5 - 10.1.0.5 -"},
		{"iface by address", host(), Options{Iface: []string{"10.1.0.5"}}, true, false, "eth1 10.1.0.5 - 10.1.0.5 -"},
		{"iface by secondary address", host(), Options{Iface: []string{"192.168.1.6"}}, true, false, "eth0 192.168.1.6 - 192.168.1.6 -"},
		{"iface by v6 address, dual", host(), Options{Iface: []string{"2001:db8:1::5"}}, true, true, "eth0 192.168.1.5 2001:db8:1::5 192.168.1.5 2001:db8:1::5"},
		{"iface by link-local address", host(), Options{Iface: []string{"169.254.7.7"}}, true, false, "wlan0 169.254.7.7 - 169.254.7.7 -"},
		{"iface by link-local address and zone", host(), Options{Iface: []string{"fe80::6%eth1"}}, false, true, "eth1 - fe80::6 - fe80::6"},
		{"iface by link-local address, wrong zone", host(), Options{Iface: []string{"fe80::6%eth0"}}, false, true, "!--iface=fe80::6%eth0:"},
		{"iface by name is no leave for link-local", host(), Options{Iface: []string{"wlan0"}}, true, false, "!--iface=wlan0: wlan0 IPv4 169.254.7.7"},
		{"ifaces in order", host(), Options{Iface: []string{"eth9", "1.2.3.4", "eth2", "wlan0", "eth1", "eth0"}}, true, false, "eth1 10.1.0.5 - 10.1.0.5 -"},
		{"no iface fits", host(), Options{Iface: []string{"eth9"}}, true, false, "!--iface=eth9:"},
		{"iface down", host(), Options{Iface: []string{"eth2"}}, true, false, "!--iface=eth2: eth2"},
		{"iface lo", host(), Options{Iface: []string{"lo"}}, true, false, "!--iface=lo:"},
		{"--iface with a device of flanneld", host(), Options{Iface: []string{"flannel.1"}}, true, false, "!"},
		{"neither family fits", host(), Options{Iface: []string{"eth9", "cni0", "eth3"}}, true, true, "!--iface=eth3:"},
	})
}

func TestChooseByPattern(t *testing.T) {
	chooseAll(t, []choice{
		{"regex on address before name", host(), Options{IfaceRegex: re(`^10\.1\.|eth0`)}, true, false, "eth1 10.1.0.5 - 10.1.0.5 -"},
		{"regex on name", host(), Options{IfaceRegex: re("^eth[12]$")}, true, false, "eth1 10.1.0.5 - 10.1.0.5 -"},
		{"regex on secondary address", host(), Options{IfaceRegex: re(`1\.6$`)}, true, false, "eth0 192.168.1.6 - 192.168.1.6 -"},
		{"regex on two addresses of an interface", with(func(s *Snapshot) { s.Interfaces[1] = dev(2, "eth0", "192.168.1.50/32", "192.168.1.5/24") }),
			Options{IfaceRegex: re(`^192\.168\.`)}, true, false, "eth0 192.168.1.5 - 192.168.1.5 -"},
		{"regex on a floating address alone", with(func(s *Snapshot) { s.Interfaces[1] = dev(2, "eth0", "192.168.1.5/24", "192.168.1.50/32") }),
			Options{IfaceRegex: re(`\.50$`)}, true, false, "eth0 192.168.1.50 - 192.168.1.50 -"},
		{"regexes in order", host(), Options{IfaceRegex: re("^nothing$", "^wlan", "^eth1", "^eth0")}, true, false, "eth1 10.1.0.5 - 10.1.0.5 -"},
		{"iface before regex", host(), Options{Iface: []string{"eth9", "eth0"}, IfaceRegex: re("eth1")}, true, false, "eth0 192.168.1.5 - 192.168.1.5 -"},
		{"regex after iface", host(), Options{Iface: []string{"eth9"}, IfaceRegex: re("eth1")}, true, false, "eth1 10.1.0.5 - 10.1.0.5 -"},
		{"--iface-regex does not match devices of flanneld", host(), Options{IfaceRegex: re(".*")}, true, false, "eth0 192.168.1.5 - 192.168.1.5 -"},
		{"regex without a match", host(), Options{IfaceRegex: re("^bond")}, true, false, "!--iface-regex=^bond:"},

		{"can reach", with(func(s *Snapshot) { s.Reach = Reach{Index: 2, Source: ip("192.168.1.6")} }), Options{CanReach: ip("9.9.9.9")}, true, false, "eth0 192.168.1.6 - 192.168.1.6 -"},
		{"can reach, dual", with(func(s *Snapshot) { s.Reach = Reach{Index: 2, Source: ip("192.168.1.6")} }), Options{CanReach: ip("9.9.9.9")}, true, true, "eth0 192.168.1.6 2001:db8:1::5 192.168.1.6 2001:db8:1::5"},
		{"can reach by a temporary address", privacy("fd00::1/64", "fd00::2/64 temporary"), Options{CanReach: ip("fd00::9")}, false, true, "eth0 - fd00::1 - fd00::1"},
		{"can reach by a temporary address alone", privacy("fd01::1/64", "fd00::2/64 temporary"), Options{CanReach: ip("fd00::9")}, false, true, "eth0 - fd00::2 - fd00::2"},
		{"can reach by a temporary address, other deprecated", privacy("fd00::1/64 deprecated", "fd00::2/64 temporary"), Options{CanReach: ip("fd00::9")}, false, true, "eth0 - fd00::2 - fd00::2"},
		{"cannot reach", with(func(s *Snapshot) { s.Reach = Reach{Problem: "network is unreachable"} }), Options{CanReach: ip("9.9.9.9")}, true, false, "!--iface-can-reach=9.9.9.9:"},
		{"can reach itself", with(func(s *Snapshot) { s.Reach = Reach{Index: 1, Source: ip("192.168.1.5")} }), Options{CanReach: ip("192.168.1.5")}, true, false, "!"},

		{"can reach when no iface matches", reachable(2), Options{Iface: []string{"eth9"}, CanReach: ip("9.9.9.9")}, true, false, "eth0 192.168.1.5 - 192.168.1.5 -"},
		{"can reach when no regex matches", reachable(2), Options{IfaceRegex: re("^bond"), CanReach: ip("9.9.9.9")}, true, false, "eth0 192.168.1.5 - 192.168.1.5 -"},
		{"iface before can-reach", reachable(2), Options{Iface: []string{"eth9", "eth1"}, CanReach: ip("9.9.9.9")}, true, false, "eth1 10.1.0.5 - 10.1.0.5 -"},
		{"a matching iface is waited for", reachable(2), Options{Iface: []string{"eth2"}, CanReach: ip("9.9.9.9")}, true, false, "!--iface=eth2: eth2"},
		{"neither iface nor can-reach", with(func(s *Snapshot) { s.Reach.Problem = "network is unreachable" }), Options{Iface: []string{"eth9"}, CanReach: ip("9.9.9.9")}, true, false,
			"!--iface=eth9: --iface-can-reach=9.9.9.9"},
	})
}

func TestChooseByPublicAddress(t *testing.T) {
	chooseAll(t, []choice{
		{"public address of the host", host(), Options{PublicV4: ip("192.168.1.6")}, true, false, "eth0 192.168.1.6 - 192.168.1.6 -"},
		{"public address of another interface", host(), Options{PublicV4: ip("10.1.0.5")}, true, false, "eth1 10.1.0.5 - 10.1.0.5 -"},
		{"public address and iface", host(), Options{PublicV4: ip("10.1.0.5"), Iface: []string{"eth0"}}, true, false, "eth0 192.168.1.5 - 10.1.0.5 -"},
		{"public address and can-reach", reachable(2), Options{PublicV4: ip("10.1.0.5"), CanReach: ip("9.9.9.9")}, true, false, "eth0 192.168.1.5 - 10.1.0.5 -"},
		{"public addresses, dual", with(func(s *Snapshot) { s.Defaults = nil }), Options{PublicV4: ip("192.168.1.6"), PublicV6: ip("2001:db8:1::5")}, true, true,
			"eth0 192.168.1.6 2001:db8:1::5 192.168.1.6 2001:db8:1::5"},
		{"public v6 address selects", with(func(s *Snapshot) { s.Defaults = nil }), Options{PublicV4: ip("203.0.113.9"), PublicV6: ip("2001:db8:1::5")}, true, true,
			"eth0 192.168.1.5 2001:db8:1::5 203.0.113.9 2001:db8:1::5"},
		{"public address of lo selects nothing", with(func(s *Snapshot) { s.Interfaces[0].Addrs = append(s.Interfaces[0].Addrs, Addr{IP: ip("192.0.2.1")}) }),
			Options{PublicV4: ip("192.0.2.1")}, true, false, "eth0 192.168.1.5 - 192.0.2.1 -"},
		{"public address of a tunnel selects nothing", host(), Options{PublicV4: ip("10.5.1.0")}, true, false, "eth0 192.168.1.5 - 10.5.1.0 -"},
		{"public address of an interface that is down", host(), Options{PublicV4: ip("10.2.0.5")}, true, false, "!--public-ip=10.2.0.5: eth2"},
		{"public address of an off family", host(), Options{PublicV6: ip("fd00:7::7")}, true, false, "eth0 192.168.1.5 - 192.168.1.5 -"},
		{"public address of nobody", host(), Options{PublicV4: ip("203.0.113.9"), PublicV6: ip("2001:db8::9")}, true, true, "eth0 192.168.1.5 2001:db8:1::5 203.0.113.9 2001:db8::9"},
		{"public v6 with v6 off", host(), Options{PublicV6: ip("2001:db8::9")}, true, false, "eth0 192.168.1.5 - 192.168.1.5 -"},
	})
}

func show(a netip.Addr) string {
	if !a.IsValid() {
		return "-"
	}
	return a.String()
}

// TestChooseAddress has one interface; its addresses are what differs.
func TestChooseAddress(t *testing.T) {
	for _, c := range []struct {
		addrs        string
		want4, want6 string
	}{
		{"192.168.1.6/24 secondary, 192.168.1.5/24", "192.168.1.5", "-"},
		{"192.168.1.5/24, 10.0.0.5/24", "192.168.1.5", "-"},
		{"169.254.1.1/16, 10.0.0.5/24 secondary", "10.0.0.5", "-"},
		{"10.0.0.9/24 local, 10.0.0.5/24", "10.0.0.5", "-"},
		{"10.0.0.9/24 local", "10.0.0.9", "-"},
		{"127.0.0.9/8", "-", "-"},
		{"fd00::1/64, fd00::2/64", "-", "fd00::1"},
		{"fd00::1/64 temporary, fd00::2/64", "-", "fd00::2"},
		{"fd00::1/64 deprecated, fd00::2/64 temporary", "-", "fd00::2"},
		{"fd00::1/64 deprecated", "-", "fd00::1"},
		{"fd00::1/64 tentative, fd00::2/64 deprecated", "-", "fd00::2"},
		{"fd00::1/64 tentative", "-", "-"},
		{"fe80::1/64", "-", "-"},
		{"fe80::1/64, 2001:db8::1/128, 10.0.0.1/32", "10.0.0.1", "2001:db8::1"},
		{"10.0.0.50/32, 10.0.0.5/24", "10.0.0.5", "-"},
		{"10.0.0.50/32 dynamic, 10.0.0.5/24", "10.0.0.50", "-"},
		{"2001:db8::50/128, 2001:db8::5/64", "-", "2001:db8::5"},
		{"2001:db8::50/128, 2001:db8::5/64 deprecated", "-", "2001:db8::5"},
		{"2001:db8::50/128 dynamic, 2001:db8::5/64", "-", "2001:db8::50"},
	} {
		s := Snapshot{Interfaces: []Interface{dev(2, "eth0", strings.Split(c.addrs, ",")...)}, Defaults: []Default{{Index: 2}, {Index: 2, V6: true}}}
		l4, _ := Choose(s, Options{}, true, false)
		l6, _ := Choose(s, Options{}, false, true)
		if show(l4.V4) != c.want4 || show(l6.V6) != c.want6 {
			t.Errorf("%s: %s and %s, want %s and %s", c.addrs, show(l4.V4), show(l6.V6), c.want4, c.want6)
		}
		_, err := Choose(s, Options{}, true, true)
		if want := c.want4 != "-" && c.want6 != "-"; (err == nil) != want {
			t.Errorf("%s, dual: %v", c.addrs, err)
		}
	}
}

// What a person reads of a change is in what two links differ, also where their names and addresses do not.
func TestSince(t *testing.T) {
	was := Link{Name: "Ethernet", Index: 5, MTU: 1500, V4: ip("10.0.0.1"), PublicV4: ip("10.0.0.1"), OnLink: []netip.Prefix{pfx("10.0.0.0/24")}}
	is := was
	is.Index = 12
	if got := is.Since(was); !logtest.Names(got, "5", "12") {
		t.Errorf("got %q", got)
	}
	is.MTU, is.OnLink = 1450, nil
	if got := is.Since(was); !logtest.Names(got, "5", "12", "MTU", "1500", "1450", "[10.0.0.0/24]", "[]") {
		t.Errorf("got %q", got)
	}
}

func TestChosenLink(t *testing.T) {
	s := host()
	s.Interfaces[1].OnLink = []netip.Prefix{pfx("172.16.0.0/24"), pfx("192.168.1.0/24"), pfx("fe80::/64"), pfx("ff00::/8")}
	s.Interfaces[1].MTU = 9000
	got, err := Choose(s, Options{}, true, true)
	if err != nil {
		t.Fatal(err)
	}
	want := Link{
		Name: "eth0", Index: 2, MTU: 9000, MAC: dataplane.MAC{2, 0, 0, 0, 0, 2},
		V4: ip("192.168.1.5"), V6: ip("2001:db8:1::5"), PublicV4: ip("192.168.1.5"), PublicV6: ip("2001:db8:1::5"),
		OnLink: []netip.Prefix{pfx("172.16.0.0/24"), pfx("192.168.1.0/24"), pfx("2001:db8:1::/64")},
	}
	if !got.Equal(want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	for a, want := range map[string]bool{"192.168.1.77": true, "172.16.0.1": true, "172.16.1.1": false, "2001:db8:1::77": true, "fe80::1": false} {
		if got.Reaches(ip(a)) != want {
			t.Errorf("reaches %s: %t", a, !want)
		}
	}
	// A link-local underlay reaches its neighbours.
	local, err := Choose(s, Options{Iface: []string{"fe80::5"}}, false, true)
	if err != nil || !local.Reaches(ip("fe80::1")) {
		t.Errorf("%v, %v", local, err)
	}
}

// TestChooseExplains is what a person reads when nothing fits.
func TestChooseExplains(t *testing.T) {
	s := host()
	s.Interfaces[1].Up = false
	for range 60 {
		s.Interfaces = append(s.Interfaces, dev(len(s.Interfaces)+1, fmt.Sprint("veth", len(s.Interfaces)+1)))
	}
	s.Interfaces = append(s.Interfaces[:7:7], s.Interfaces[20:]...)
	s.Interfaces[6] = dev(7, "bond0", "10.7.0.1/24", "10.7.0.2/24", "10.7.0.3/24", "10.7.0.4/24", "fd00::7/64")
	_, err := Choose(s, Options{Iface: []string{"eth9"}, IfaceRegex: re("^eth")}, true, true)
	if err == nil {
		t.Fatal("chosen")
	}
	const want = `
--iface=eth9:
--iface-regex=^eth: eth0
--iface-regex=^eth: eth1 IPv6 fe80::6
--iface-regex=^eth: eth2

lo (127.0.0.1, ::1)
eth0 (192.168.1.5, 192.168.1.6, 2001:db8:1::5, fe80::5)
eth1 (10.1.0.5, fe80::6) IPv6 fe80::6
wlan0 (169.254.7.7, fd00:7::7) IPv4 169.254.7.7
eth2 (10.2.0.5)
flannel.1 (10.5.1.0)
bond0 (10.7.0.1, 10.7.0.2, 10.7.0.3, 10.7.0.4, …) --iface=bond0
veth21 IPv4 IPv6`
	lines := strings.Split(err.Error(), "\n")
	last, n := lines[len(lines)-1], strings.Count(want, "\n")+1
	if head := strings.Join(lines[:min(n, len(lines))], "\n"); !logtest.Lines(head, want) {
		t.Errorf("%s\nwant lines with\n%s", head, want)
	}
	if !strings.Contains(last, "14") {
		t.Errorf("ends with %q", last)
	}
}

// The error does not change when a pod comes.
func TestPodsAreNotListed(t *testing.T) {
	s := host()
	_, before := Choose(s, Options{Iface: []string{"eth9"}}, true, false)
	pod := dev(99, "veth99", "fe80::99/64")
	pod.Veth = true
	s.Interfaces = append(s.Interfaces, pod)
	if _, after := Choose(s, Options{Iface: []string{"eth9"}}, true, false); before == nil || after == nil || after.Error() != before.Error() {
		t.Errorf("%v\nand before\n%v", after, before)
	}
	// It may be the node's own interface, in a container.
	own := dev(98, "veth98", "192.168.98.5/24")
	own.Veth = true
	s.Interfaces = append(s.Interfaces, own)
	if _, err := Choose(s, Options{Iface: []string{"eth9"}}, true, false); err == nil || !logtest.Names(err.Error(), "veth98") {
		t.Errorf("%v", err)
	}
}

func TestOurs(t *testing.T) {
	for name, want := range map[string]bool{
		"flannel.1": true, "flannel-v6.1": true, "flannel.ipip": true, "flannel-wg": true, "flannel0": true, "flannel12": true, "cni0": true,
		"eth0": false, "flannel": false, "flannelnet": false, "cni1": false, "": false,
	} {
		if Ours(name) != want {
			t.Errorf("Ours(%q) = %t", name, !want)
		}
	}
}

func TestCannotReachWithUnboundAdapter(t *testing.T) {
	const problem = "no such way"
	s := Snapshot{Interfaces: []Interface{{Name: "unbound", Up: true}}, Reach: Reach{Problem: problem}}
	if _, err := Choose(s, Options{CanReach: ip("1.1.1.1")}, true, false); err == nil || !strings.Contains(err.Error(), "--iface-can-reach=1.1.1.1: "+problem) {
		t.Error(err)
	}
}
