package linux

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"flannel/internal/test/eventually"
	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
)

// The device has one name, so a second flanneld on the host leaves that of the first
// alone, also while the first is down.
func TestWireGuardOfAnotherNetwork(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newWGMachine(t)
		m.inNetworks(m.state.Networks...)
		m.mustPass()
		before := identity(t)
		b := newSecondWG(t)
		for _, when := range []string{"beside the first", "while the first is down"} {
			var other *otherNetworkError
			if err := b.pass(); !errors.As(err, &other) || other.Device != "flannel-wg" || other.Addr != netip.MustParseAddr("10.5.1.0") {
				t.Errorf("%s, the second pass returned %v", when, err)
			}
			b.QueueResync()
			m.wantWG(t, when, wgSynced)
			if m.Driver != nil {
				if err := m.Close(); err != nil {
					t.Fatal(err)
				}
				m.Driver = nil
			}
		}
		m.restart()
		m.mustPass()
		if after := identity(t); m.done != (reconcile.Result{}) || after != before {
			t.Errorf("the first does %+v; the devices were\n%s and are\n%s", m.done, before, after)
		}
		// Another address on the device of this run is drift.
		run(t, "ip addr add 10.9.9.9/32 dev flannel-wg; ip addr del 10.5.1.0/32 dev flannel-wg")
		m.QueueResync()
		m.mustPass()
		m.wantWG(t, "after drift", wgSynced)
		m.devices, m.state.Paths = m.devices[:1], nil
		m.mustPass()
		// wireguard-go keeps its socket for a moment after its device was deleted, and another one cannot start meanwhile.
		eventually.Nil(t, "the second with the device", func() error {
			b.QueueResync()
			return b.pass()
		})
		if out := run(t, "ip -o -4 addr show dev flannel-wg"); !strings.Contains(out, "10.9.1.0/32") {
			t.Errorf("the second does not get the device when the first has left it: %s", out)
		}
	})
}

// inNetworks sets the networks of the devices.
func (m *machine) inNetworks(networks ...netip.Prefix) {
	for i := range m.devices {
		m.devices[i].Networks = networks
	}
}

// newSecondWG returns another flanneld of this machine that uses WireGuard.
func newSecondWG(t *testing.T) *machine {
	devices := wgDevices(dataplane.WireGuard{})[:2]
	kind := devices[1].Kind.(dataplane.WireGuard)
	kind.Addr, kind.Port = []netip.Prefix{netip.MustParsePrefix("10.9.1.0/32")}, 7777
	devices[1].Kind = kind
	return newSecond(t, devices...)
}

// newSecond returns another flanneld of this machine, with the network 10.9.0.0/16.
func newSecond(t *testing.T, devices ...dataplane.Device) *machine {
	d, err := New(dataplane.Options{Log: slog.New(slog.NewTextHandler(testWriter{t}, nil)), Instance: "b0b0b0b"})
	if err != nil {
		t.Fatal(err)
	}
	network := netip.MustParsePrefix("10.9.0.0/16")
	b := &machine{t: t, Driver: d, state: dataplane.State{Networks: []netip.Prefix{network}}}
	b.devices = devices
	b.inNetworks(network)
	return b
}

// checkOtherNetwork checks that a second flanneld, which has the same device in its
// network, leaves that of m alone, also while m is down. state describes the device.
func checkOtherNetwork(t *testing.T, m, second *machine, device, state string) {
	t.Helper()
	m.inNetworks(m.state.Networks...)
	m.mustPass()
	before := run(t, "%s", state)
	for _, when := range []string{"beside the first", "while the first is down"} {
		var other *otherNetworkError
		if err := second.pass(); !errors.As(err, &other) || other.Device != device || other.Addr != netip.MustParseAddr("10.5.1.0") {
			t.Errorf("%s, the second pass returned %v", when, err)
		}
		if after := run(t, "%s", state); after != before {
			t.Errorf("%s, the second changed the device from\n%s\nto\n%s", when, before, after)
		}
		second.QueueResync()
		if m.Driver != nil {
			if err := m.Close(); err != nil {
				t.Fatal(err)
			}
			m.Driver = nil
		}
	}
	m.restart()
	m.mustPass()
	if after := run(t, "%s", state); after != before {
		t.Errorf("the first changed the device from\n%s\nto\n%s", before, after)
	}
}

// Handback leaves device, key and peers, whoever made the device, and the routes in
// plain form.
func TestWireGuardHandback(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newWGMachine(t)
		m.mustPass()
		before := identity(t)
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := Handback(t.Context(), m.opts, m.state, false); err != nil {
			t.Fatal(err)
		}
		if after := identity(t); after != before {
			t.Errorf("the devices were\n%s and are\n%s", before, after)
		}
		if out := run(t, "ip route show 10.5.2.0/24 proto boot; ip -6 route show 2001:cafe:42:2::/64 proto boot; ip route show proto 70; ip -6 route show proto 70"); strings.Count(out, "flannel-wg") != 2 {
			t.Errorf("the routes are %s", out)
		}
		m.Driver = nil
	})
}

// A run that begins trusts an endpoint that is not the lease's only if the session lasts.
func TestWireGuardSessionAtStart(t *testing.T) {
	desired := netip.MustParseAddrPort("192.168.100.2:51820")
	for name, test := range map[string]struct {
		age   time.Duration
		trust bool
	}{
		"fresh": {10 * time.Second, true}, "over": {time.Hour, false}, "by a clock that was set back": {-time.Hour, true},
	} {
		s := newWGStore(slog.New(slog.DiscardHandler), "", nil)
		s.desired = func(wgKey) (wgPeer, bool) { return wgPeer{Endpoint: desired}, true }
		state := s.observe(wgKey{}, wgtypes.Peer{LastHandshakeTime: time.Now().Add(-test.age)})
		state.actual.Endpoint = netip.MustParseAddrPort("192.168.100.77:9")
		if got := s.adoptAndReport(wgKey{}, state).Endpoint == desired; got != test.trust {
			t.Errorf("%s: the learned endpoint stays: %t", name, got)
		}
	}
}

// An endpoint that a run has found stays once the peer answers. If nothing comes back, it was that of a former lease.
// Nothing has to come back for keepalives.
func TestWireGuardAnswersAtStart(t *testing.T) {
	desired, found := netip.MustParseAddrPort("192.168.100.2:51820"), netip.MustParseAddrPort("192.168.100.77:9")
	const smallest = 96 // bytes of a message with the first packet of a TCP connection
	for name, test := range map[string]struct {
		keepalive    time.Duration
		answersAfter time.Duration // the start; 0: never
		sends, stays bool
	}{
		"silent": {0, 0, true, false}, "silent, with keepalives": {25 * time.Second, 0, true, false},
		"answers": {0, 10 * time.Second, true, true}, "answers the second handshake": {0, pollInterval + 20*time.Second, true, true}, "is not asked": {0, 0, false, true},
		"only keepalives": {25 * time.Second, 0, false, true}, "only frequent keepalives": {time.Second, 0, false, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newWGStore(slog.New(slog.DiscardHandler), "", nil)
			s.desired = func(wgKey) (wgPeer, bool) { return wgPeer{Endpoint: desired}, true }
			began := time.Now()
			for time.Since(began) <= time.Minute {
				peer := wgtypes.Peer{LastHandshakeTime: began.Add(-time.Second), Endpoint: net.UDPAddrFromAddrPort(found), PersistentKeepaliveInterval: test.keepalive}
				switch { // after the first list
				case time.Since(began) > 0 && test.sends:
					peer.TransmitBytes = smallest
				case time.Since(began) > 0:
					peer.TransmitBytes = keepaliveSize // it confirms what the peer sent before the start
				}
				if test.keepalive > 0 {
					peer.TransmitBytes += keepaliveSize * int64(time.Since(began)/test.keepalive)
				}
				if test.answersAfter > 0 && time.Since(began) >= test.answersAfter {
					peer.ReceiveBytes = 100
				}
				state := s.observe(wgKey{}, peer)
				s.states[wgKey{}] = state
				early := time.Since(began) < pollInterval+answersWithin // the second list sees that something was sent
				if stays := s.adoptAndReport(wgKey{}, state).Endpoint == desired; stays != (test.stays || early) {
					t.Errorf("%s, after %v: the learned endpoint stays: %t", name, time.Since(began), stays)
				}
				time.Sleep(pollInterval)
			}
		})
	}
}

// A peer without an endpoint, which we never make, is not found: WireGuard may learn an endpoint, and no write removes it.
func TestWireGuardWithoutEndpoint(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newWGMachine(t)
		m.mustPass()
		run(t, "wg set flannel-wg peer %[1]s remove; wg set flannel-wg peer %[1]s allowed-ips 10.5.4.0/24", peerKey(4).Base64())
		m.restart()
		links, err := m.Ensure(t.Context(), m.devices)
		if err != nil {
			t.Fatal(err)
		}
		if m.state.Paths, err = m.Found(t.Context(), links, m.state); err != nil {
			t.Fatal(err)
		}
		if got := pathsText(m.state.Paths); strings.Contains(got, "10.5.4.0/24") || len(m.state.Paths) != 5 {
			t.Errorf("it finds\n%s", got)
		}
		run(t, "wg set flannel-wg peer %s endpoint 192.168.100.4:51820", peerKey(4).Base64()) // as WireGuard does when the peer sends
		m.QueueResync()
		m.mustPass()
	})
}
