package daemon

import (
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"flannel/backend"
	"flannel/pkg/conf"
	"flannel/pkg/daemon/rollout"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

// That a start would choose another interface is a part of the state, also if nothing else changes, and logged once for each
// such interface, although a VPN comes and goes.
func TestKeptUnderlayIsLoggedOnce(t *testing.T) {
	d, u, log := newDaemon(t)
	in, n := newInbox(), &node{}
	in.setConfig([]byte("one 10.5.0.0/16"))
	if err := d.prepare(t.Context(), n, in); err != nil {
		t.Fatal(err)
	}
	n.lease.V4.Subnet = netip.MustParsePrefix("10.5.1.0/24")
	l := d.newLoop(n, in)
	for i, step := range []struct {
		atStart string
		mtu     int
		lines   int
	}{{"", 1500, 0}, {"tun0", 1500, 1}, {"", 1500, 1}, {"tun0", 1400, 1}, {"eth1", 1400, 2}, {"eth1", 1500, 2}} {
		u.link.AtStart, u.link.MTU = step.atStart, step.mtu
		if err := l.reconfigured(t, true); err != nil {
			t.Fatal(err)
		}
		if lines := log.With("cause=" + causeUnderlayKept); len(lines) != step.lines || n.host.link.AtStart != step.atStart || n.host.link.MTU != step.mtu {
			t.Errorf("step %d: logged %d times, want %d; the state is %+v", i, len(lines), step.lines, n.host.link)
		}
	}
	if len(log.With("cause="+causeUnderlayKept, "interface=eth0", "at_start=tun0")) != 1 {
		t.Errorf("the log is\n%s", log)
	}
}

// A public IP with which peers reject this node is published, with one warning, unless an operator overwrites it. A warning
// about something else is not repeated.
func TestUselessPublicIPIsLoggedOnce(t *testing.T) {
	const useless = "169.254.1.1"
	d, u, log := newDaemon(t)
	m := &addressed{}
	d.Manager = m
	u.link.V4, u.link.PublicV4 = netip.MustParseAddr("10.5.3.3"), netip.MustParseAddr(useless) // V4 is in the pod network
	in, n := newInbox(), &node{}
	in.setConfig([]byte("one 10.5.0.0/16"))
	for range 2 { // join retries
		if err := d.prepare(t.Context(), n, in); err != nil {
			t.Fatal(err)
		}
	}
	n.lease.V4.Subnet = netip.MustParsePrefix("10.5.1.0/24")
	l := d.newLoop(n, in)
	for i, step := range []struct {
		link     string
		operator subnet.PublicIPs
		lines    int
	}{
		{useless, subnet.PublicIPs{}, 1},
		{"203.0.113.1", subnet.PublicIPs{}, 1},
		{"203.0.113.1", subnet.PublicIPs{V4: netip.MustParseAddr(useless)}, 2},
		{useless, subnet.PublicIPs{}, 2}, // the same address from elsewhere
		{useless, subnet.PublicIPs{Overwritten4: true}, 2},
		{useless, subnet.PublicIPs{}, 3},
	} {
		u.link.PublicV4, m.public = netip.MustParseAddr(step.link), step.operator
		for range 2 {
			if err := l.reconfigured(t, true); err != nil {
				t.Fatal(err)
			}
		}
		if lines := log.With("cause="+causeConfigWarning).Naming("msg", useless, "--public-ip"); len(lines) != step.lines {
			t.Errorf("step %d: logged %d times, want %d\n%s", i, len(lines), step.lines, log)
		}
		if lines := log.With("cause="+causeConfigWarning).Naming("msg", "10.5.3.3"); len(lines) != 1 {
			t.Errorf("step %d: the address in the pod network is logged %d times\n%s", i, len(lines), log)
		}
	}
}

// A pass that something else causes does not forget that the configuration does not fit the underlay.
func TestUnfitUnderlayIsNotForgotten(t *testing.T) {
	d, u, _ := newDaemon(t)
	in, n := newInbox(), &node{}
	in.setConfig([]byte("one 10.5.0.0/16"))
	if err := d.prepare(t.Context(), n, in); err != nil {
		t.Fatal(err)
	}
	n.lease.V4.Subnet = netip.MustParsePrefix("10.5.1.0/24")
	l, usual := d.newLoop(n, in), u.link.V4
	u.link.V4 = netip.MustParseAddr("10.5.1.7") // inside this node's subnet
	for _, again := range []bool{true, false, false} {
		if l.reconfigured(t, again) == nil || n.host.link.V4 != usual {
			t.Errorf("again %t: there is no error, and the address is %s", again, n.host.link.V4)
		}
	}
	u.link.V4 = netip.MustParseAddr("192.168.0.2")
	if err := l.reconfigured(t, false); err != nil || n.host.link.V4 != u.link.V4 {
		t.Errorf("with an address that fits: %v, the address is %s", err, n.host.link.V4)
	}
}

// A configuration that was refused because of the underlay is tried again with another one.
func TestRefusedByTheUnderlay(t *testing.T) {
	d, u, log := newDaemon(t)
	d.Parse = func(raw []byte) (subnet.Config, backend.Maker, []string, error) {
		o := conf.Parse(raw)
		config := subnet.Config{V4: subnet.Network{Prefix: netip.MustParsePrefix("10.5.0.0/16"), SubnetLen: 24},
			V6: subnet.Network{Prefix: netip.MustParsePrefix("fd05::/48"), SubnetLen: 64}}
		return config, backend.KindOf("wireguard").Parse(o, "linux"), nil, o.Err()
	}
	in, n := newInbox(), &node{}
	in.setConfig([]byte(`{"Mode": "ipv4"}`))
	if err := d.prepare(t.Context(), n, in); err != nil {
		t.Fatal(err)
	}
	n.lease.V4.Subnet = netip.MustParsePrefix("10.5.1.0/24")
	l := d.newLoop(n, in)
	in.setConfig([]byte(`{"Mode": "ipv6"}`))
	v6 := netip.MustParseAddr("2001:db8::1")
	for i, step := range []struct {
		mtu     int
		v6      netip.Addr
		refused bool
		lines   int // in the log, in all
	}{{1500, netip.Addr{}, true, 1}, {1500, netip.Addr{}, true, 1}, {1400, netip.Addr{}, true, 2}, {1400, v6, false, 2}, {1500, v6, false, 2}} {
		u.link.MTU, u.link.V6, u.link.PublicV6 = step.mtu, step.v6, step.v6
		if err := l.reconfigured(t, true); err != nil {
			t.Error(err)
		}
		reason, _ := d.adoption.pendingReason()
		if lines := log.Count("cause=" + causeConfigRefused); (reason != "") != step.refused || lines != step.lines {
			t.Errorf("step %d: pending is %q, refused %d times, want %t, %d\n%s", i, reason, lines, step.refused, step.lines, log)
		}
	}
}

// A configuration in the place of one on trial is refused while this node cannot return to the former one, because of its
// underlay, and offered as soon as it can, or need not any more, because another node has answered, or there is none.
func TestReplacedTrialCannotEnd(t *testing.T) {
	other := netip.MustParseAddr("192.168.0.200")
	// replaced returns a node that has refused a configuration, and its underlay.
	replaced := func(t *testing.T) (*adopting, *underlay.Link) {
		a := newAdopting(t, 1)
		a.Parse = func(raw []byte) (subnet.Config, backend.Maker, []string, error) {
			c, maker, warnings, err := parseText(raw)
			return c, func(n backend.Node) (backend.Backend, []string, error) {
				if c.Backend == "one" && n.Underlay.V4 == other {
					return nil, nil, errors.New("not on this underlay")
				}
				return maker(n)
			}, warnings, err
		}
		a.in.setConfig([]byte("one 10.5.0.0/16"))
		if err := a.prepare(t.Context(), a.n, a.in); err != nil {
			t.Fatal(err)
		}
		a.in.setConfig([]byte("two 10.5.0.0/16"))
		a.run(untilTrial)
		a.has("on trial", "two", rollout.Trying, true)
		a.in.setConfig([]byte("three 10.5.0.0/16"))
		link := &a.Underlay.(*fixedUnderlay).link
		link.V4 = other
		a.becomes("with another underlay", "two", rollout.Trying, true)
		return a, link
	}
	synctest.Test(t, func(t *testing.T) {
		a, link := replaced(t)
		link.V4 = netip.MustParseAddr("192.168.0.1")
		a.becomes("with the usual underlay", "one", rollout.Waiting, false)
	})
	synctest.Test(t, func(t *testing.T) {
		a, _ := replaced(t)
		a.adoption.trial.answered.Store(new("peer0"))
		if p := a.becomes("with an answer", "two", rollout.Settled, true); p.due.IsZero() {
			t.Error("with an answer, no pass is due")
		}
		a.becomes("after an answer", "two", rollout.Waiting, false)
	})
	synctest.Test(t, func(t *testing.T) {
		a, _ := replaced(t)
		time.Sleep(adoptStagger)
		for range 3 {
			_ = a.reconfigured(t, true) // its error: it cannot return
		}
		a.has("without an answer", "two", rollout.Refused, true)
		if a.log.Count("cause="+causeConfigRefused) != 1 {
			t.Errorf("refused more than once, although the cause is the same:\n%s", a.log)
		}
		a.peers(0, "", "")
		if p := a.becomes("alone", "two", rollout.Settled, true); p.due.IsZero() {
			t.Error("alone, no pass is due")
		}
		a.run(time.Second)
		a.has("alone, and a pass later", "three", rollout.Settled, false)
	})
}

// becomes does a pass, and says what the node is then.
func (a *adopting) becomes(when, backend string, state rollout.State, refused bool) *pass {
	a.t.Helper()
	p := a.newPass()
	p.again = true
	if err := a.only(a.t, p, partConfig); err != nil {
		a.t.Error(err)
	}
	a.has(when, backend, state, true)
	if _, is := a.adoption.pendingReason(); is != refused {
		a.t.Errorf("%s, the configuration is refused: %t", when, is)
	}
	return p
}
