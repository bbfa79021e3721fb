package underlay

import (
	"cmp"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"flannel/internal/test/logtest"
)

// step is a state of the machine, and what is chosen then.
type step struct {
	after    time.Duration // the step before
	eth0     string        // its addresses; "": it is down
	eth1     string
	defaults string // "eth0 100, tun0 50": interfaces of default routes, with their metrics; --iface-can-reach uses the first
	want     string // interface and address; "!": none can be chosen
	atStart  string
}

// machineOf makes a Snapshot of a step.
func machineOf(st step) (s Snapshot) {
	for i, in := range []struct{ name, addrs string }{{"eth0", st.eth0}, {"eth1", st.eth1}, {"tun0", "10.8.0.6/24"}} {
		d := dev(i+2, in.name)
		if in.addrs != "" {
			d = dev(i+2, in.name, strings.Split(in.addrs, ",")...)
		}
		d.Up = in.addrs != ""
		s.Interfaces = append(s.Interfaces, d)
	}
	for route := range strings.SplitSeq(st.defaults, ",") {
		f := strings.Fields(route)
		d := Default{Gateway: ip("192.168.1.1")}
		d.Metric, _ = strconv.Atoi(f[1])
		for _, in := range s.Interfaces {
			if in.Name == f[0] {
				d.Index = in.Index
			}
		}
		s.Defaults = append(s.Defaults, d)
	}
	reach := s.ByIndex(s.Defaults[0].Index)
	s.Reach.Index = reach.Index
	if len(reach.Addrs) > 0 {
		s.Reach.Source = reach.Addrs[0].IP
	}
	return s
}

func chooseInSteps(t *testing.T, o Options, steps []step) {
	t.Helper()
	var c Chooser
	now := time.Unix(1e9, 0)
	for i, st := range steps {
		now = now.Add(st.after)
		d, err := c.Choose(now, machineOf(st), o, true, false)
		got := "!"
		if err == nil {
			got = d.Link.Name + " " + d.Link.V4.String()
		}
		if got != st.want || err == nil && d.Link.AtStart != st.atStart {
			t.Errorf("step %d: chosen is %s, at a start %q, want %s, %q; %v", i, got, d.Link.AtStart, st.want, st.atStart, err)
		}
		if err != nil && strings.Contains(st.eth0, vip) && !logtest.Names(err.Error(), "192.168.1.50/32") {
			t.Errorf("step %d: the reason is %v", i, err)
		}
	}
}

const (
	own    = "192.168.1.5/24"
	vip    = "192.168.1.50/32"
	second = time.Second
)

// A floating address does not replace the node's own one, which is away for a moment, and is
// left when another one appears.
func TestChooserFloatingAddress(t *testing.T) {
	const route = "eth0 100"
	for name, o := range map[string]Options{"default route": {}, "by name": {Iface: []string{"eth0"}}, "by pattern": {IfaceRegex: re("^192")}} {
		t.Run(name, func(t *testing.T) {
			chooseInSteps(t, o, []step{
				{0, own + "," + vip, "", route, "eth0 192.168.1.5", ""},
				{second, vip, "", route, "!", ""},
				{second, vip + "," + own, "", route, "eth0 192.168.1.5", ""},
				{time.Hour, vip + "," + own, "", route, "eth0 192.168.1.5", ""},
				// The time begins anew each time.
				{second, vip, "", route, "!", ""},
				{59 * second, vip, "", route, "!", ""},
				{second, vip, "", route, "eth0 192.168.1.50", ""},
				{time.Hour, vip, "", route, "eth0 192.168.1.50", ""},
				{second, vip + "," + own, "", route, "eth0 192.168.1.5", ""},
				{second, vip, "", route, "!", ""},
				{second, "192.168.1.7/24", "", route, "eth0 192.168.1.7", ""},
				{second, "192.168.1.7/24,192.168.1.5/24 secondary", "", route, "eth0 192.168.1.7", ""},
				{second, "192.168.1.5/24,192.168.1.7/24 secondary", "", route, "eth0 192.168.1.7", ""},
			})
			chooseInSteps(t, o, []step{ // at a start
				{0, vip, "", route, "!", ""},
				{5 * second, vip, "", route, "!", ""},
				{5 * second, vip, "", route, "eth0 192.168.1.50", ""},
			})
		})
	}
	// A pattern that only this address matches is not met by another one: a better one would have to match, too.
	chooseInSteps(t, Options{IfaceRegex: re(`\.50$`)}, []step{
		{0, own + "," + vip, "", route, "!", ""},
		{10 * second, own + "," + vip, "", route, "eth0 192.168.1.50", ""},
	})
	// It is named, or it is the only one that a cloud gives.
	chooseInSteps(t, Options{Iface: []string{"192.168.1.50"}}, []step{{0, vip + "," + own, "", route, "eth0 192.168.1.50", ""}})
	// Another default route has a better one.
	chooseInSteps(t, Options{}, []step{{0, vip, "10.1.0.5/16", "eth0 100,eth1 200", "eth1 10.1.0.5", "eth0"}})
	chooseInSteps(t, Options{}, []step{{0, vip + " dynamic", "", route, "eth0 192.168.1.50", ""}})
}

// An interface that can still be the underlay is not left because of another default route,
// and the one of the start comes back.
func TestChooserStays(t *testing.T) {
	const other = "10.1.0.5/16"
	chooseInSteps(t, Options{}, []step{
		{0, own, other, "eth0 100", "eth0 192.168.1.5", ""},
		{second, own, other, "eth0 100,tun0 50", "eth0 192.168.1.5", "tun0"},
		{second, own, other, "tun0 50,eth0 100,eth1 10", "eth0 192.168.1.5", "eth1"},
		{second, own, other, "eth0 100,tun0 50", "eth0 192.168.1.5", "tun0"},
		// The address is away, the route is, the interface is down: after half a minute the best of the others, until it is back.
		{second, vip, other, "eth0 100,tun0 50", "!", ""},
		{29 * second, vip, other, "eth0 100,tun0 50", "!", ""},
		{second, vip, other, "eth0 100,tun0 50", "tun0 10.8.0.6", ""},
		{2 * time.Minute, vip, other, "eth0 100,tun0 50", "tun0 10.8.0.6", ""},
		{second, own, other, "eth0 100,tun0 50", "eth0 192.168.1.5", "tun0"},
		{second, own, other, "eth1 20", "!", ""},
		{30 * second, own, other, "tun0 50,eth1 200", "tun0 10.8.0.6", ""},
		{second, own, other, "tun0 50,eth1 20", "tun0 10.8.0.6", "eth1"},
		{second, own, other, "eth0 100,tun0 50", "eth0 192.168.1.5", "tun0"},
		{second, "", other, "eth0 100,tun0 50", "!", ""},
		{30 * second, "", other, "eth0 100,tun0 50", "tun0 10.8.0.6", ""},
		{second, own, other, "eth0 100", "eth0 192.168.1.5", ""},
		// For a moment, and again: the time begins anew, but not if nothing can be chosen in between.
		{second, own, other, "tun0 50", "!", ""},
		{29 * second, own, other, "eth0 100,tun0 50", "eth0 192.168.1.5", "tun0"},
		{second, own, other, "tun0 50", "!", ""},
		{28 * second, "", "", "eth0 100", "!", ""},
		{second, own, other, "tun0 50", "!", ""},
		{second, own, other, "tun0 50", "tun0 10.8.0.6", ""},
		{second, own, other, "eth0 100", "eth0 192.168.1.5", ""},
		{second, own, other, "eth1 100", "!", ""},
		{29 * second, "", "", "eth0 100", "!", ""},
		// Somebody made another route the better one, and keeps this one with a worse metric than it had.
		{second, own, other, "eth1 100", "eth1 10.1.0.5", ""},
		{second, own, other, "eth1 100,eth0 200", "eth1 10.1.0.5", ""},
		{second, own, "", "eth1 100,eth0 200", "!", ""}, // it does not come first, although it is that of the start
		{29 * second, own, other, "eth1 100,eth0 200", "eth1 10.1.0.5", ""},
		{second, own, other, "eth1 100,eth0 50", "eth0 192.168.1.5", ""},
	})
	// The address moves with the default route, as to a bridge.
	chooseInSteps(t, Options{}, []step{
		{0, own, "", "eth0 100", "eth0 192.168.1.5", ""},
		{second, "", own, "eth1 100", "eth1 192.168.1.5", ""},
	})
	// The interface of the start is made anew, with a larger metric, as those of dhcpcd contain the index.
	chooseInSteps(t, Options{}, []step{
		{0, own, other, "eth0 100,tun0 300", "eth0 192.168.1.5", ""},
		{second, "", other, "tun0 300", "!", ""},
		{30 * second, "", other, "tun0 300", "tun0 10.8.0.6", ""},
		{second, own, other, "tun0 300,eth0 300", "tun0 10.8.0.6", ""},
		{second, own, other, "tun0 300,eth0 107", "eth0 192.168.1.5", ""},
		{second, own, other, "tun0 106,eth0 107", "eth0 192.168.1.5", "tun0"},
		{second, "", other, "tun0 106", "!", ""},
		{30 * second, "", other, "tun0 106", "tun0 10.8.0.6", ""},
		{second, own, other, "tun0 106,eth0 108", "tun0 10.8.0.6", ""},
		{second, own, other, "eth0 108", "!", ""}, // for a moment
		{second, own, other, "tun0 106,eth0 108", "tun0 10.8.0.6", ""},
		{second, own, other, "tun0 106,eth0 107", "eth0 192.168.1.5", "tun0"}, // as before
	})
}

// The interface that --iface-can-reach has found is not left because the route leads elsewhere.
func TestChooserStaysWithReach(t *testing.T) {
	const other = "10.1.0.5/16"
	chooseInSteps(t, Options{CanReach: ip("9.9.9.9")}, []step{
		{0, own, other, "eth0 100", "eth0 192.168.1.5", ""},
		{second, own, other, "tun0 50", "eth0 192.168.1.5", "tun0"},
		// The address in use stays, whatever other ones there are.
		{second, "192.168.1.4/24," + own + " secondary", other, "tun0 50", "eth0 192.168.1.5", "tun0"},
		{second, own + " deprecated,192.168.1.4/24", other, "tun0 50", "eth0 192.168.1.5", "tun0"},
		{second, "", other, "tun0 50", "!", ""},
		{30 * second, "", other, "tun0 50", "tun0 10.8.0.6", ""},
		{second, "", other, "eth1 50", "tun0 10.8.0.6", "eth1"},
		{second, own, other, "eth0 100", "eth0 192.168.1.5", ""},
		{second, vip, other, "tun0 50", "!", ""},
		{30 * second, vip, other, "tun0 50", "tun0 10.8.0.6", ""},
		{second, own, other, "tun0 50", "eth0 192.168.1.5", "tun0"},
		// While the route leads to the interface, its source counts.
		{second, "192.168.1.4/24," + own + " secondary", other, "eth0 100", "eth0 192.168.1.4", ""},
	})
	// An interface that --iface names is before it.
	chooseInSteps(t, Options{Iface: []string{"10.1.0.5"}, CanReach: ip("9.9.9.9")}, []step{
		{0, own, "", "eth0 100", "eth0 192.168.1.5", ""},
		{second, own, other, "eth0 100", "eth1 10.1.0.5", ""},
	})
}

// The interface that a pattern has selected is not left because another one matches.
func TestChooserStaysWithPattern(t *testing.T) {
	const route, other, docker = "tun0 100", "192.168.2.5/24", "192.168.17.1/24"
	chooseInSteps(t, Options{IfaceRegex: re(`^192\.`)}, []step{
		{0, "10.1.0.5/16", other, route, "eth1 192.168.2.5", ""},
		{second, "10.1.0.5/16," + vip, other, route, "eth1 192.168.2.5", "eth0"},
		{2 * time.Minute, "10.1.0.5/16," + vip, other, route, "eth1 192.168.2.5", "eth0"},
		{second, own, other, route, "eth1 192.168.2.5", "eth0"},
		{second, own, "10.1.0.5/16", route, "!", ""},
		{30 * second, own, "10.1.0.5/16", route, "eth0 192.168.1.5", ""},
		{second, own, other, route, "eth1 192.168.2.5", "eth0"}, // that of the start
		{second, own, "", route, "!", ""},
		{30 * second, own, "", route, "eth0 192.168.1.5", ""},
		{second, own, other, route, "eth1 192.168.2.5", "eth0"},
	})
	chooseInSteps(t, Options{IfaceRegex: re("^eth")}, []step{ // by the name
		{0, "", other, route, "eth1 192.168.2.5", ""},
		{second, own, other, route, "eth1 192.168.2.5", "eth0"},
		{second, own, "", route, "!", ""},
		{30 * second, own, "", route, "eth0 192.168.1.5", ""},
	})
	// A former pattern is before a later one, whatever is in use. A later one waits, also if it selects the interface of the start.
	chooseInSteps(t, Options{IfaceRegex: re("^192", "^eth")}, []step{
		{0, "", "10.1.0.5/16", route, "eth1 10.1.0.5", ""},
		{second, own, "10.1.0.5/16", route, "eth0 192.168.1.5", ""},
		{second, "", "10.1.0.5/16", route, "!", ""},
		{30 * second, "", "10.1.0.5/16", route, "eth1 10.1.0.5", ""},
	})
	// An interface is found again by its name, with another index.
	var c Chooser
	for i, st := range []struct{ bond, want string }{{"before", "bond0"}, {"after", "bond0"}, {"", ""}, {"after", "bond0"}, {"", ""}, {"", "docker0"}, {"after", "bond0"}} {
		s := Snapshot{Interfaces: []Interface{dev(3, "docker0", docker)}}
		switch st.bond {
		case "before":
			s.Interfaces = []Interface{dev(2, "bond0", own), dev(3, "docker0", docker)}
		case "after":
			s.Interfaces = append(s.Interfaces, dev(4, "bond0", own))
		}
		now := time.Unix(1e9, 0).Add(time.Duration(i) * leaveAfter)
		if d, err := c.Choose(now, s, Options{IfaceRegex: re("^192")}, true, false); d.Link.Name != st.want {
			t.Errorf("step %d: chosen is %q, want %q; %v", i, d.Link.Name, st.want, err)
		}
	}
}

// DHCP gives the interface another address than the one that --iface names.
func TestChooserFollowsDHCP(t *testing.T) {
	const (
		route    = "eth0 100"
		byDHCP   = own + " dhcp"
		next     = "192.168.1.7/24 dhcp"
		replaced = "eth0 192.168.1.7"
	)
	named := Options{Iface: []string{"192.168.1.5"}}
	chooseInSteps(t, named, []step{
		{0, byDHCP, "10.1.0.5/16 dhcp", route, "eth0 192.168.1.5", ""},
		{second, next, "10.1.0.5/16 dhcp", route, replaced, ""},
		{second, "192.168.1.8/24 dhcp", "", route, "eth0 192.168.1.8", ""},
		// An address that somebody has set, or that is not of IPv4, is not by DHCP.
		{second, "192.168.1.9/24", "", route, "!", ""},
		{second, "192.168.1.9/24,fd00::9/64 dynamic", "", route, "!", ""},
		{second, "192.168.1.7/24 dhcp tentative,192.168.1.9/24", "", route, "!", ""},
		{second, "", "10.1.0.5/16 dhcp", route, "!", ""},
		{second, "192.168.1.9/24," + next, "", route, replaced, ""},
		{second, next + "," + byDHCP, "", route, "eth0 192.168.1.5", ""},
		{second, next, "", route, replaced, ""},
		// Another interface has the address.
		{second, next, own, route, "eth1 192.168.1.5", ""},
		{second, next, "10.1.0.5/16 dhcp", route, "!", ""},
		// The address was not by DHCP when it was chosen last.
		{second, byDHCP, "", route, "eth0 192.168.1.5", ""},
		{second, own, "", route, "eth0 192.168.1.5", ""},
		{second, next, "", route, "!", ""},
	})
	chooseInSteps(t, named, []step{{0, next, "", route, "!", ""}}) // at a start
	// Another flag matches an interface, even if that is down.
	chooseInSteps(t, Options{Iface: []string{"192.168.1.5", "eth1"}}, []step{
		{0, byDHCP, "10.1.0.5/16", route, "eth0 192.168.1.5", ""},
		{second, next, "", route, "!", ""},
		{second, next, "10.1.0.5/16", route, "!", ""},
		{30 * second, next, "10.1.0.5/16", route, "eth1 10.1.0.5", ""},
	})
}

// The interface of an earlier flag is used at once, that of a later one, or the default route, when the one in use has been away.
func TestChooserWaitsForFlags(t *testing.T) {
	const route, other = "eth0 100", "10.1.0.5/16"
	chooseInSteps(t, Options{Iface: []string{"eth0", "eth1"}}, []step{
		{0, "", other, route, "eth1 10.1.0.5", ""},
		{second, own, other, route, "eth0 192.168.1.5", ""},
		{second, "", other, route, "!", ""},
		{29 * second, "", other, route, "!", ""},
		{second, "", other, route, "eth1 10.1.0.5", ""},
	})
	for flag, o := range map[string]Options{"--iface": {Iface: []string{"10.1.0.5"}}, "--public-ip": {PublicV4: ip("10.1.0.5")}} {
		t.Run(flag, func(t *testing.T) { // the address moves, as to a bridge
			chooseInSteps(t, o, []step{{0, own, other, route, "eth1 10.1.0.5", ""}, {second, other, "", route, "eth0 10.1.0.5", ""}})
		})
	}
	chooseInSteps(t, Options{PublicV4: ip("10.1.0.5")}, []step{
		{0, own, other, route, "eth1 10.1.0.5", ""},
		{second, own, "", route, "!", ""},
		{second, own, other, route, "eth1 10.1.0.5", ""},
		{second, own, "", route, "!", ""},
		{30 * second, own, "", route, "eth0 192.168.1.5", ""},
		{second, own, other, route, "eth1 10.1.0.5", ""},
	})
	var c Chooser // an operator sets an annotation, and removes it: nothing is awaited
	s := machineOf(step{eth0: own, eth1: other, defaults: route})
	for _, st := range []struct {
		public netip.Addr
		want   string
	}{{netip.Addr{}, "eth0"}, {ip("10.1.0.5"), "eth1"}, {netip.Addr{}, "eth0"}} {
		if d, err := c.Choose(time.Unix(1e9, 0), s, Options{PublicV4: st.public}, true, false); d.Link.Name != st.want {
			t.Errorf("chosen is %q, want %q; %v", d.Link.Name, st.want, err)
		}
	}
}

// At a start, an interface that is being set up is waited for, unless the other one lacks as much. When the
// daemon runs, one that lacks an address for a moment is not left.
func TestChooserWaitsForAddresses(t *testing.T) {
	const both0, both1 = own + ",fd00::5/64", "10.1.0.5/16,fd01::5/64"
	for name, c := range map[string]struct {
		v4       bool
		defaults string
		steps    []step
	}{
		"duplicate address detection": {true, "eth0 100,eth1 200", []step{
			{0, own + ",fd00::5/64 tentative", both1, "", "!", ""}, {second, both0, both1, "", "eth0", ""}}},
		"router advertisement": {true, "eth0 100,eth1 200", []step{
			{0, own, both1, "", "!", ""}, {9 * second, own, both1, "", "!", ""}, {second, own, both1, "", "eth1", ""}}},
		"IPv4 address":             {true, "eth0 100,eth1 200", []step{{0, "fd00::5/64", both1, "", "!", ""}, {second, both0, both1, "", "eth0", ""}}},
		"down":                     {true, "eth0 100,eth1 200", []step{{0, "", both1, "", "eth1", ""}}},
		"no address":               {true, "eth0 100,eth1 200", []step{{0, "169.254.7.7/16", both1, "", "eth1", ""}}},
		"it is not the better one": {true, "eth0 100,eth1 50", []step{{0, own, both1, "", "eth1", ""}}},
		"IPv6 alone": {false, "eth0 100,eth1 200", []step{
			{0, own + ",fd00::5/64 tentative", both1, "", "!", ""}, {second, both0, both1, "", "eth0", ""}}},
		"IPv6 alone, DHCPv6": {false, "eth0 100,eth1 200", []step{
			{0, "fe80::5/64", both1, "", "!", ""}, {second, both0, both1, "", "eth0", ""}}},
		"router advertisement, and a floating address": {true, "eth0 100,eth1 200", []step{
			{0, own + ",fd00::50/128", both1, "", "!", ""}, {second, both0 + ",fd00::50/128", both1, "", "eth0", ""}}},
		"a floating address, and another interface": {true, "eth0 100,eth1 200", []step{{0, own + ",fd00::50/128", both1, "", "!", ""},
			{10 * second, own + ",fd00::50/128", both1, "", "eth1", ""}, {120 * second, own + ",fd00::50/128", both1, "", "eth1", ""}}},
		"the address moves": {true, "eth0 100,eth1 200", []step{
			{0, both0, both1, "", "eth0", ""}, {second, "", own + ",fd02::7/64", "", "eth1", ""}}},
		"IPv4 does not count": {false, "eth0 100,eth1 200", []step{{0, own, both1, "", "eth1", ""}}},
		"for a moment": {true, "eth0 100,eth1 200", []step{{0, both0, both1, "", "eth0", ""}, {second, own, both1, "", "!", ""},
			{second, both0, both1, "", "eth0", ""}, {second, own, both1, "", "!", ""}, {30 * second, own, both1, "", "eth1", ""}}},
	} {
		t.Run(name, func(t *testing.T) {
			var chooser Chooser
			now := time.Unix(1e9, 0)
			for i, st := range c.steps {
				now, st.defaults = now.Add(st.after), c.defaults
				s := machineOf(st)
				for j := range s.Defaults {
					s.Defaults[j].V6 = !c.v4
				}
				d, err := chooser.Choose(now, s, Options{}, c.v4, true)
				if got := cmp.Or(d.Link.Name, "!"); got != st.want {
					t.Errorf("step %d: chosen is %s, want %s; %v", i, got, st.want, err)
				}
			}
		})
	}
}

func TestFloats(t *testing.T) {
	for _, c := range []struct {
		name   string
		addrs  string
		onLink string
		route  Default
		want   bool
	}{
		{"a route names it", "10.128.0.2/32", "", Default{Gateway: ip("10.128.0.1"), Source: ip("10.128.0.2")}, false},
		{"the gateway is on the link", "10.128.0.2/32", "10.128.0.1/32", Default{Gateway: ip("10.128.0.1")}, false},
		{"the route says so", "10.128.0.2/32", "", Default{Gateway: ip("10.128.0.1"), OnLink: true}, false},
		{"no gateway", "10.128.0.2/32", "", Default{}, false},
		{"in a network of the link", "10.10.0.1/32", "10.10.0.0/24", Default{Gateway: ip("192.168.1.1")}, false},
		{"the network of the gateway is gone", "192.168.1.50/32", "", Default{Gateway: ip("192.168.1.1")}, true},
		{"beside one with a network", "192.168.1.50/32, 192.168.1.5/24", "192.168.1.0/24", Default{Gateway: ip("192.168.1.1")}, true},
		{"beside one that cannot be used", "192.168.1.50/32, 169.254.7.7/16", "169.254.0.0/16", Default{Gateway: ip("192.168.1.1")}, true},
		{"by DHCP", "10.128.0.2/32 dynamic", "", Default{Gateway: ip("192.168.1.1")}, false},
		{"with a network", "192.168.1.5/24", "192.168.1.0/24", Default{Gateway: ip("192.168.1.1")}, false},
		{"IPv6", "2001:db8::50/128, fe80::5/64", "fe80::/64", Default{V6: true, Gateway: ip("fe80::1")}, true},
		{"IPv6 in a network of the link", "2001:db8::50/128", "2001:db8::/64", Default{V6: true, Gateway: ip("fe80::1")}, true},
		{"a route names it, IPv6", "2001:db8::50/128", "", Default{V6: true, Gateway: ip("fe80::1"), Source: ip("2001:db8::50")}, false},
		{"IPv6 by DHCP", "2001:db8::50/128 dynamic", "", Default{V6: true, Gateway: ip("fe80::1")}, false},
	} {
		in := dev(2, "eth0", strings.Split(c.addrs, ",")...)
		if c.onLink != "" {
			in.OnLink = []netip.Prefix{pfx(c.onLink)}
		}
		c.route.Index = 2
		s := Snapshot{Interfaces: []Interface{in}, Defaults: []Default{c.route}}
		v6 := in.Addrs[0].IP.Is6()
		if got := s.floats(byDefaultRoute(s, !v6, v6, past{})[0], in.Addrs[0]); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
		// A start waits for such an address if it is the only one, and for no other.
		var chooser Chooser
		_, err := chooser.Choose(time.Unix(1e9, 0), s, Options{}, !v6, v6)
		if waits := err != nil; waits != (c.want && !strings.Contains(c.addrs, "/24")) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
