package linux

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
)

// flannelDeletes deletes a host-gw route as flannel does: destination, gateway and device, by the netlink library.
func flannelDeletes(t *testing.T, dst, gateway string) error {
	t.Helper()
	eth0, err := netlink.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	_, ipnet, err := net.ParseCIDR(dst)
	if err != nil {
		t.Fatal(err)
	}
	return netlink.RouteDel(&netlink.Route{Dst: ipnet, Gw: net.ParseIP(gateway), LinkIndex: eth0.Attrs().Index})
}

func TestHandback(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		m.state.Blackholes = []netip.Prefix{netip.MustParsePrefix("10.5.1.0/24")}
		for dst, via := range map[string]string{"10.5.7.0/24": "192.168.100.7", "10.5.8.0/24": "192.168.100.7", "2001:cafe:42:7::/64": "fd00:100::7"} { // in any order
			m.state.Paths = append(m.state.Paths, &dataplane.Path{Dst: netip.MustParsePrefix(dst), Via: netip.MustParseAddr(via), Device: "eth0", Encap: dataplane.Direct{}})
		}
		m.mustPass()
		b := m.second(2) // another flanneld's routes and objects stay
		b.mustPass()
		b.Close() //nolint:errcheck // nothing is lost with it
		const others = "ip -d route show root 10.9.0.0/16; ip nexthop | grep -w -e 192.168.100.3 -e 10.9.2.0"
		foreign := run(t, others)
		run(t, "ip route add 10.5.60.0/24 via 192.168.100.60 proto static")
		// Of IPv6, the kernel deletes a route by its gateway, whatever its form.
		if err := flannelDeletes(t, "10.5.7.0/24", "192.168.100.7"); !errors.Is(err, unix.ESRCH) {
			t.Errorf("flannel deletes a route through a nexthop object: %v; is handback needed on this kernel?", err)
		}

		before := run(t, everyEntry)
		planned, err := Handback(t.Context(), m.opts, m.state, true)
		if now := run(t, everyEntry); err != nil || now != before {
			t.Errorf("the dry run (%v) changed the kernel from\n%s\nto\n%s", err, before, now)
		}
		done, err := Handback(t.Context(), m.opts, m.state, false)
		if err != nil || strings.Join(done, "\n") != strings.Join(planned, "\n") || len(done) != 9+1+8 {
			t.Errorf("handback (%v) tells\n%s\nthe dry run\n%s", err, strings.Join(done, "\n"), strings.Join(planned, "\n"))
		}
		if own := run(t, "ip -d route show root 10.5.0.0/16 proto 70; ip -6 route show proto 70; ip -d route show root 10.5.0.0/16 | grep nhid || true"); own != "" {
			t.Errorf("still of our form:\n%s", own)
		}
		if now := run(t, others); now != foreign {
			t.Errorf("of another flanneld's there is\n%s\nwant\n%s", now, foreign)
		}
		if own := run(t, "ip nexthop | grep -vw -e 192.168.100.3 -e 10.9.2.0 || true"); own != "" {
			t.Errorf("nexthop objects stay:\n%s", own)
		}
		for _, form := range []string{"10.5.2.0/24 via 10.5.2.0 dev flannel.1 onlink", "10.5.7.0/24 via 192.168.100.7 dev eth0", "10.5.60.0/24 via 192.168.100.60 dev eth0 proto static"} {
			if got := run(t, "ip route show root 10.5.0.0/16"); !strings.Contains(got, form+" \n") {
				t.Errorf("the routes are\n%s\nwithout %s", got, form)
			}
		}
		if again, err := Handback(t.Context(), m.opts, m.state, false); err != nil || len(again) != 0 {
			t.Errorf("a second handback (%v) does %q", err, again)
		}
		// Our own daemon takes them over as they are.
		adopted := run(t, "ip -d route show root 10.5.0.0/16; ip -6 -d route show root 2001:cafe:42::/56")
		m.state.Blackholes = nil
		m.restart()
		m.mustPass()
		if now := run(t, "ip -d route show root 10.5.0.0/16; ip -6 -d route show root 2001:cafe:42::/56"); now != adopted {
			t.Errorf("a flanneld that starts afterwards makes of\n%s\nthis\n%s", adopted, now)
		}
		for dst, via := range map[string]string{"10.5.7.0/24": "192.168.100.7", "2001:cafe:42:7::/64": "fd00:100::7"} {
			if err := flannelDeletes(t, dst, via); err != nil {
				t.Errorf("flannel deletes the route to %s: %v", dst, err)
			}
		}
	})
}

// Whatever call fails while the kernel is read, cleanup and handback change nothing, and do not call a part of it the whole.
func TestNothingIsRemovedUnlessAllIsRead(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := guarded(t, &dataplane.Guard{Enforce: true})
		m.mustPass()
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		faults := nstest.NewFaults(t)
		for name, leave := range map[string]func(context.Context, dataplane.Options, dataplane.State, bool) ([]string, error){"cleanup": Cleanup, "handback": Handback} {
			want, err := leave(t.Context(), m.opts, m.state, true)
			if err != nil || !slices.ContainsFunc(want, func(what string) bool { return strings.HasSuffix(what, " flannel-guard") }) {
				t.Fatalf("%s (%v): %q", name, err, want)
			}
			for n, calls := 0, 0; n <= calls && !t.Failed(); n++ { // at first, none fails
				faults.Fail(n, unix.ENOMEM)
				got, err := leave(t.Context(), m.opts, m.state, true)
				calls = max(calls, faults.Fail(0, 0))
				if err == nil && !slices.Equal(got, want) || err != nil && got != nil || n == 0 && calls == 0 {
					t.Errorf("%s, call %d of %d failed (%v): %q, want %q or nothing", name, n, calls, err, got, want)
				}
			}
		}
	})
}
