package daemon

import (
	"net/netip"
	"testing"
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
