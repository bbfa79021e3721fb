package linux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flannel/internal/test/eventually"
	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
)

// guarded returns a machine with a guard and the bridge of its pods.
func guarded(t *testing.T, g *dataplane.Guard) *machine {
	t.Helper()
	m := newMachine(t)
	run(t, "ip link add cni0 type bridge; ip addr add 10.5.1.1/24 dev cni0; ip link set cni0 up")
	m.state.Subnets = []netip.Prefix{netip.MustParsePrefix("10.5.1.0/24"), netip.MustParsePrefix("2001:cafe:42:1::/64")}
	m.state.Guard = g
	return m
}

// elements prints a set of the guard's table.
func elements(t *testing.T, set string) string {
	t.Helper()
	_, list, _ := strings.Cut(strings.Join(strings.Fields(run(t, "nft list set inet flannel-guard %s", set)), " "), "elements = { ")
	list, _, _ = strings.Cut(list, " }")
	names := strings.Split(list, ", ")
	slices.Sort(names)
	return strings.Join(names, " ")
}

// The sets follow the paths and the addresses of interfaces.
func TestGuardSets(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := guarded(t, &dataplane.Guard{})
		check := func(what, peers4, peers6, pods string) {
			t.Helper()
			m.mustPass()
			for set, want := range map[string]string{"peers4": peers4, "peers6": peers6, "pods": pods} {
				if got := elements(t, set); got != want {
					t.Errorf("%s: %s is %q, want %q", what, set, got, want)
				}
			}
		}
		all := m.state.Paths
		check("at first", "192.168.100.2 192.168.100.3 192.168.100.4", "fd00:100::2 fd00:100::3 fd00:100::4", `"cni0"`)
		// A former lease of a node beside its new one: the address stays until both are gone.
		second := *all[0]
		second.Dst = netip.MustParsePrefix("10.5.9.0/24")
		m.state.Paths = append(slices.Clone(all[2:]), &second)
		check("another lease", "192.168.100.2 192.168.100.3 192.168.100.4", "fd00:100::3 fd00:100::4", `"cni0"`)
		m.state.Paths = all[2:]
		check("no lease", "192.168.100.3 192.168.100.4", "fd00:100::3 fd00:100::4", `"cni0"`)
		m.state.Keep = true
		run(t, "ip link add veth7 type veth peer name pod7; ip addr add 10.5.1.1/32 dev veth7; ip link set veth7 up")
		waitFor(t, m, "a new interface of a pod", func() bool { return elements(t, "pods") == `"cni0" "veth7"` })
		run(t, "ip link del cni0")
		waitFor(t, m, "an interface that is gone", func() bool { return elements(t, "pods") == `"veth7"` })
		m.restart()
		check("after a restart", "192.168.100.3 192.168.100.4", "fd00:100::3 fd00:100::4", `"veth7"`)
		if m.done.Set+m.done.Deleted != 0 {
			t.Errorf("the restart wrote entries: %+v", m.done)
		}
		m.state.Guard = nil
		m.mustPass()
		if tables := run(t, "nft list tables"); strings.Contains(tables, "flannel-guard") {
			t.Errorf("the guard is off, and its table there: %s", tables)
		}
	})
}

// waitFor makes passes when the dataplane asks for them, until a condition holds.
func waitFor(t *testing.T, m *machine, what string, holds func() bool) {
	t.Helper()
	eventually.True(t, what, func() bool {
		select {
		case <-m.Changes():
			m.mustPass()
		default:
		}
		return holds()
	})
}

// A guard that should enforce counts first. What it found before a restart stays, and
// the restart neither begins a trial nor ends one.
func TestGuardTrial(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := guarded(t, &dataplane.Guard{Enforce: true, Trial: time.Hour})
		// What is dropped is counted apart; the counter is there in each mode.
		drops := func() bool { return strings.Contains(run(t, "nft list table inet flannel-guard"), `name "dropped-`) }
		state := func() *dataplane.GuardReport {
			t.Helper()
			g := m.Guarded()
			if g == nil || g.Problem != "" {
				t.Fatalf("the guard does not work: %+v", g)
			}
			return g
		}
		m.mustPass()
		if g := state(); g.Enforce || g.Waiting == "" || drops() {
			t.Errorf("it enforces without a trial: %+v", g)
		}
		m.state.Guard = &dataplane.Guard{Enforce: true}
		m.mustPass()
		if g := state(); !g.Enforce || g.Waiting != "" || !drops() {
			t.Errorf("it does not enforce: %+v", g)
		}
		// Somebody on the link, who is no peer.
		if err := injector(t, "far", "eth0", netip.MustParseAddr("192.168.200.7"), netip.MustParseAddr("192.168.100.1"), 8472)(); err != nil {
			t.Fatal(err)
		}
		eventually.Nil(t, "the packet is counted", func() error {
			if g := state(); g.Packets["outsider"] != 1 {
				return fmt.Errorf("%+v", g)
			}
			return nil
		})
		m.state.Guard = &dataplane.Guard{Enforce: true, Trial: time.Hour}
		m.restart()
		m.mustPass()
		if g := state(); !g.Enforce || g.Waiting != "" || !drops() || g.Packets["outsider"] != 1 {
			t.Errorf("a restart began a trial, or lost the counts: %+v", g)
		}
		run(t, "nft delete table inet flannel-guard")
		waitFor(t, m, "the table", func() bool { return strings.Contains(run(t, "nft list ruleset"), `name "dropped-`) })
		m.state.Guard = &dataplane.Guard{}
		m.mustPass()
		if g := state(); g.Enforce || drops() {
			t.Errorf("it still enforces: %+v", g)
		}
	})
}

// While packets arrive and are dropped, no report has one of them as only counted, and none has fewer
// than the report before.
func TestGuardReportsBesideFlood(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := guarded(t, &dataplane.Guard{})
		send := injector(t, "far", "eth0", netip.MustParseAddr("192.168.200.7"), netip.MustParseAddr("192.168.100.1"), 8472)
		m.mustPass()
		if err := send(); err != nil {
			t.Fatal(err)
		}
		eventually.True(t, "the packet is counted", func() bool { return m.Guarded().Packets["outsider"] == 1 })
		m.state.Guard = &dataplane.Guard{Enforce: true}
		m.mustPass()
		stop, ended := make(chan struct{}), make(chan error, 1)
		go func() {
			var err error
			for err == nil || errors.Is(err, unix.ENOBUFS) { // no buffer is free until packets have arrived
				select {
				case <-stop:
					ended <- nil
					return
				default:
					err = send()
				}
			}
			ended <- err
		}()
		defer func() {
			close(stop)
			if err := <-ended; err != nil {
				t.Errorf("send: %v", err)
			}
		}()
		eventually.True(t, "a packet is dropped", func() bool { return m.Guarded().Dropped["outsider"] > 0 })
		last := uint64(0)
		for range 1000 {
			g := m.Guarded()
			packets, dropped := g.Packets["outsider"], g.Dropped["outsider"]
			if packets != dropped+1 || dropped < last {
				t.Fatalf("after %d dropped packets: %d were found, and %d of them dropped", last, packets, dropped)
			}
			last = dropped
		}
	})
}

// The table is removed together with the rest.
func TestGuardCleanup(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for name, remove := range map[string]func(*machine, bool) ([]string, error){
			"cleanup": func(m *machine, dry bool) ([]string, error) {
				return Cleanup(t.Context(), m.opts, m.state, dry)
			},
			"handback": func(m *machine, dry bool) ([]string, error) {
				return Handback(t.Context(), m.opts, m.state, dry)
			},
		} {
			m := guarded(t, &dataplane.Guard{Enforce: true})
			m.mustPass()
			run(t, "nft add table inet flannel-guard-of-others")
			for _, dry := range []bool{true, false} {
				done, err := remove(m, dry)
				if err != nil || !slices.ContainsFunc(done, func(s string) bool { return strings.HasSuffix(s, " flannel-guard") }) {
					t.Errorf("%s (dry: %t): %v %q", name, dry, err, done)
				}
				if there := strings.Contains(run(t, "nft list tables"), "flannel-guard\n"); there != dry {
					t.Errorf("%s (dry: %t): the table is there: %t", name, dry, there)
				}
			}
			if !strings.Contains(run(t, "nft list tables"), "flannel-guard-of-others") {
				t.Errorf("%s removed a table of others", name)
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
			run(t, "nft delete table inet flannel-guard-of-others; ip link del cni0; ip link del eth0; ip link del flannel.1 || true; ip link del flannel-v6.1 || true")
		}
	})
}

// injector returns what sends a header of VXLAN from one end of a veth pair to the other, with any
// source. Any goroutine may call it.
func injector(t *testing.T, from, to string, source, dest netip.Addr, port uint16) (send func() error) {
	t.Helper()
	out, err := net.InterfaceByName(from)
	if err != nil {
		t.Fatal(err)
	}
	in, err := net.InterfaceByName(to)
	if err != nil {
		t.Fatal(err)
	}
	const header, udp, vxlan = 20, 8, 8
	p := make([]byte, header+udp, header+udp+vxlan)
	p[0], p[3], p[8], p[9] = 0x45, header+udp+vxlan, 64, unix.IPPROTO_UDP
	copy(p[12:], source.AsSlice())
	copy(p[16:], dest.AsSlice())
	binary.BigEndian.PutUint16(p[10:], dataplane.Checksum(p[:header]))
	binary.BigEndian.PutUint16(p[header+2:], port)
	binary.BigEndian.PutUint16(p[header+4:], udp+vxlan)
	p = append(p, 8, 0, 0, 0, 0, 0, 1, 0) // VNI 1
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })         //nolint:errcheck // it is not used any more
	addr := &unix.SockaddrLinklayer{Protocol: 8, // ETH_P_IP in network order
		Ifindex: out.Index, Halen: 6, Addr: [8]byte(append(in.HardwareAddr, 0, 0))}
	return func() error { return unix.Sendto(fd, p, 0, addr) }
}
