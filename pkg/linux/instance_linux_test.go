//go:build linux

package linux

import (
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
)

// second is another flanneld on the same machine: its own network, VNI and name, and a peer that is on the same host as one
// of the first's.
func (m *machine) second(vni uint32) *machine {
	m.t.Helper()
	name := map[uint32]string{2: "flannel.2", 3: "flannel.3"}[vni]
	s := &machine{t: m.t}
	d, err := New(dataplane.Options{Log: slog.New(slog.NewTextHandler(testWriter{m.t}, nil)), Instance: "b0b0b0b"})
	if err != nil {
		m.t.Fatal(err)
	}
	s.Driver = d
	s.devices = []dataplane.Device{{Name: "eth0", Kind: dataplane.Existing{}},
		{Name: name, MAC: dataplane.MAC{2, 0, 0, 0, 0, 9}, Kind: dataplane.VXLAN{VNI: vni, Tunnel: dataplane.Tunnel{MTU: 1450, Parent: "eth0",
			Local: netip.MustParseAddr("192.168.100.1"), Addr: []netip.Prefix{netip.MustParsePrefix("10.9.1.0/32")}}}}}
	s.state = dataplane.State{Networks: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")}, Blackholes: []netip.Prefix{netip.MustParsePrefix("10.9.1.0/24")},
		Paths: []*dataplane.Path{
			{Dst: netip.MustParsePrefix("10.9.2.0/24"), Via: netip.MustParseAddr("192.168.100.2"), Device: name, Encap: dataplane.VTEP{MAC: dataplane.MAC{2, 0, 0, 0, 2, 2}}},
			{Dst: netip.MustParsePrefix("10.9.3.0/24"), Via: netip.MustParseAddr("192.168.100.3"), Device: "eth0", Encap: dataplane.Direct{}},
		}}
	return s
}

const everyEntry = `ip -o link show type vxlan | sed 's/ qdisc.*//'; ip -d route show; ip -6 -d route show | grep -v fe80; ip nexthop
	for dev in flannel.1 flannel-v6.1 flannel.2; do bridge fdb show dev $dev; ip neigh show nud permanent dev $dev; done 2>/dev/null || true`

// Whatever one of two flannelds on a host does, the other's part of the kernel stays as it is.
func TestTwoOnOneMachine(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		// Both have the same gateway on the underlay.
		m.state.Paths = append(m.state.Paths, &dataplane.Path{Dst: netip.MustParsePrefix("10.5.7.0/24"), Via: netip.MustParseAddr("192.168.100.3"), Device: "eth0", Encap: dataplane.Direct{}})
		m.mustPass()
		alone := run(t, everyEntry)
		b := m.second(2)
		b.mustPass()
		both := run(t, everyEntry)
		for name, step := range map[string]func(){
			"the first again":  m.mustPass,
			"the second again": func() { b.mustPass() },
			"the first anew":   func() { m.restart(); m.mustPass() },
			"the second anew":  func() { b.Close(); b = m.second(2); b.mustPass() }, //nolint:errcheck // nothing is lost with it
			"both look at all": func() { m.QueueResync(); b.QueueResync(); m.mustPass(); b.mustPass() },
			"a cleanup's plan": func() { b.cleanup(true) },
			"a cleanup and a handback without a subnet file": func() {
				if _, err := Cleanup(t.Context(), b.opts, dataplane.State{}, false); !errors.Is(err, errNoNetwork) {
					t.Errorf("a cleanup that does not know its network: %v", err)
				}
				if _, err := Handback(t.Context(), b.opts, dataplane.State{}, false); !errors.Is(err, errNoNetwork) {
					t.Errorf("a handback that does not know its network: %v", err)
				}
			},
			"a third's new device": func() {
				run(t, "ip link add flannel.8 type vxlan id 8 dstport 8480 dev eth0")
				m.QueueResync()
				m.mustPass()
				run(t, "ip link del flannel.8")
			},
		} {
			if step(); run(t, everyEntry) != both {
				t.Errorf("%s: the kernel holds\n%s\nand held\n%s", name, run(t, everyEntry), both)
			}
		}
		b.Close() //nolint:errcheck // nothing is lost with it
		b = m.second(3)
		b.mustPass()
		if now := run(t, everyEntry); strings.Contains(now, "flannel.2") || !strings.Contains(now, "flannel.3") || !strings.Contains(now, "dev flannel.1 ") {
			t.Errorf("after the second's change of VNI the kernel holds\n%s", now)
		}
		b.cleanup(false)
		if now := run(t, everyEntry); now != alone {
			t.Errorf("after the second's cleanup the kernel holds\n%s\nand before the second it held\n%s", now, alone)
		}
		b.Close() //nolint:errcheck // nothing is lost with it
	})
}

func (m *machine) cleanup(dryRun bool) {
	m.t.Helper()
	removed, err := Cleanup(m.t.Context(), m.opts, m.state, dryRun)
	if text := strings.Join(removed, "\n"); err != nil || !strings.Contains(text, "10.9.") || strings.Contains(text, "10.5.") {
		m.t.Errorf("cleanup (%v) tells\n%s", err, text)
	}
}

// What a node left of the network that it was in before goes, and so does what a former backend of ours left where the
// present one routes nothing; but nobody else's routes do then.
func TestFormerNetworks(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		b := m.second(2)
		b.mustPass()
		b.Close() //nolint:errcheck // nothing is lost with it
		m.state.Former = b.state.Networks
		m.opts.Instance = "b0b0b0b" // the same flanneld
		again, err := New(m.opts)
		if err != nil {
			t.Fatal(err)
		}
		m.Driver = again
		m.mustPass()
		if now := run(t, everyEntry); strings.Contains(now, "10.9.") || strings.Contains(now, "flannel.2") {
			t.Errorf("of the former network there is left\n%s", now)
		}

		const others = "10.5.50.0/24 via 192.168.100.50 dev eth0 \n10.5.51.0/24 via 192.168.100.51 dev eth0 \n"
		run(t, "ip route add 10.5.50.0/24 via 192.168.100.50; ip route add 10.5.51.0/24 via 192.168.100.51")
		m.devices, m.state.Paths, m.state.Unrouted = nil, nil, true
		m.QueueResync()
		m.mustPass()
		if now := run(t, "ip route show root 10.5.0.0/16; ip nexthop; ip link show type vxlan"); now != others {
			t.Errorf("of a backend that routes nothing the kernel holds\n%s\nwant\n%s", now, others)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
}
