package linux

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"flannel/internal/test/eventually"
	"flannel/internal/test/logtest"
	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
	"flannel/pkg/linux/udptunnel"
	"flannel/pkg/reconcile"
)

// newUDPMachine is a machine with the udp backend, whose peers are 10.5.<i>.0/24 at 192.168.100.<i>.
func newUDPMachine(t *testing.T, peers int) *machine {
	t.Helper()
	m := newMachine(t)
	m.useUDP("flannel0", 8285, peers)
	return m
}

func (m *machine) useUDP(device string, port uint16, peers int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.devices = []dataplane.Device{
		{Name: "eth0", Kind: dataplane.Existing{}},
		{Name: device, Kind: dataplane.TUN{Port: port, Tunnel: dataplane.Tunnel{MTU: 1472, Parent: "eth0",
			Local: netip.MustParseAddr("192.168.100.1"), Addr: []netip.Prefix{netip.MustParsePrefix("10.5.1.0/32")}}}},
	}
	m.state = dataplane.State{Networks: []netip.Prefix{v4Network, v6Network}, Subnets: ownSubnets}
	for i := range peers {
		m.state.Paths = append(m.state.Paths, &dataplane.Path{Dst: netip.MustParsePrefix(fmt.Sprintf("10.5.%d.0/24", i+2)),
			Via: netip.MustParseAddr(fmt.Sprintf("192.168.100.%d", i+2)), Device: device, Encap: dataplane.Datagram{}})
	}
}

// tunState is what the kernel has, without the index of the device, and the forwarder's entries. It is an error if flanneld
// deletes a device meanwhile.
func (m *machine) tunState() (string, error) {
	out, err := exec.Command("sh", "-ec", `ip -br link show type tun | sed "s/UNKNOWN/UP/"; ip -br -4 addr show type tun | sed "s/UNKNOWN/UP/"; ip route show root 10.5.0.0/16
		for d in $(ls /sys/class/net | grep "^flannel[0-9]"); do cat /sys/class/net/$d/mtu /proc/sys/net/ipv4/conf/$d/accept_local; ip -d link show $d | grep -o "gso_max_segs [0-9]*"; done`).CombinedOutput()
	return string(out) + fmt.Sprint(kindIn[*tun](m.Driver).peers.All()), err
}

const tunWant = `flannel0 UP <POINTOPOINT,MULTICAST,NOARP,UP,LOWER_UP>
flannel0 UP 10.5.1.0/32
10.5.0.0/16 dev flannel0 proto 70 scope link
1472
1
gso_max_segs 128
map[10.5.2.0/24:192.168.100.2:8285 10.5.3.0/24:192.168.100.3:8285]`

// squeezed returns text with single spaces.
func squeezed(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}

func (m *machine) hasTUN(what, want string) {
	m.t.Helper()
	eventually.Nil(m.t, what, func() error {
		state, err := m.tunState()
		if got := squeezed(state); err != nil || got != want {
			return fmt.Errorf("the machine has (%v)\n%s\nwant\n%s", err, got, want)
		}
		return nil
	})
}

// In a container, /proc/sys is read-only. The operator sets forwarding on the host; what concerns the device alone, nobody
// can set before it exists.
func TestTUNInContainer(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newUDPMachine(t, 2)
		run(t, `sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
			mount --bind /proc/sys /proc/sys
			mount -o remount,bind,ro /proc/sys`)
		m.mustPass()
		m.hasTUN("with a read-only /proc/sys", strings.Replace(tunWant, "1472\n1\n", "1472\n0\n", 1))
	})
}

func TestTUNDriftIsRepaired(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newUDPMachine(t, 2)
		m.mustPass()
		m.serve()
		m.hasTUN("at first", tunWant)
		for _, drift := range []string{
			"ip link del flannel0", "ip link set flannel0 down", "ip link set flannel0 down; ip link set flannel0 up", "ip addr del 10.5.1.0/32 dev flannel0", "ip addr add 10.5.77.1/32 dev flannel0",
			"ip link set flannel0 mtu 1400", "ip route del 10.5.0.0/16", "ip route replace 10.5.0.0/16 via 192.168.100.77 dev eth0",
			"ip route add 10.5.9.0/24 via 192.168.100.9 dev eth0", "ip route add 10.5.9.0/24 dev flannel0 proto 70",
			// Before Linux 6.2, only a device that is down can be renamed, and flanneld sets it up at once.
			"until printf 'link set flannel0 down\nlink set flannel0 name other\n' | ip -batch - 2>/dev/null; do :; done",
			"ip tuntap add flannel3 mode tun; ip addr add 10.5.1.0/32 dev flannel3", // left by another run
		} {
			run(t, "%s", drift)
			m.hasTUN(drift, tunWant)
		}
		if out := run(t, "ip -br link"); strings.Contains(out, "other") {
			t.Errorf("the renamed device is left:\n%s", out)
		}
	})
}

func TestTUNOfAnotherNetwork(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newUDPMachine(t, 0)
		second := newSecond(t, dataplane.Device{Name: "eth0", Kind: dataplane.Existing{}},
			dataplane.Device{Name: "flannel0", Kind: dataplane.TUN{Port: 8285, Tunnel: dataplane.Tunnel{MTU: 1400, Parent: "eth0",
				Local: netip.MustParseAddr("192.168.100.1"), Addr: []netip.Prefix{netip.MustParsePrefix("10.9.1.0/32")}}}})
		checkOtherNetwork(t, m, second, "flannel0", "ip -o -4 addr show dev flannel0; ip route show root 10.0.0.0/8 | sed 's/ linkdown//'; cat /sys/class/net/flannel0/ifindex /sys/class/net/flannel0/mtu")
	})
}

func TestTUNRestart(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newUDPMachine(t, 2)
		m.mustPass()
		const identity = "cat /sys/class/net/flannel0/ifindex"
		before := run(t, identity)
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		if out := run(t, "ip route get 10.5.2.2"); !strings.Contains(out, "dev flannel0") {
			t.Errorf("packets of pods leave the network while flanneld does not run: %s", out)
		}
		m.Driver = nil
		m.restart()
		m.mustPass()
		m.hasTUN("after a restart", tunWant)
		if after := run(t, identity); after != before {
			t.Errorf("the device has the index %s, had %s", after, before)
		}
		if m.done != (reconcile.Result{Set: 2}) { // the entries of the forwarder
			t.Errorf("a restart writes %+v", m.done)
		}
		// Another process has the device, as flannel's daemon during a takeover.
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		other, err := udptunnel.Open(udptunnel.Options{Device: "flannel0", Local: netip.MustParseAddrPort("192.168.100.1:9000"), Peers: &udptunnel.Peers{}, Counters: &udptunnel.Counters{}})
		if err != nil {
			t.Fatal(err)
		}
		m.Driver = nil
		m.restart()
		if err := m.pass(); err == nil || !strings.Contains(err.Error(), udptunnel.ErrBusy.Error()) {
			t.Errorf("a device of another process: %v", err)
		}
		if err := other.Close(); err != nil {
			t.Fatal(err)
		}
		m.mustPass()
		m.hasTUN("after the other process has ended", tunWant)
	})
}

// Backends and ports change while the node runs, and nothing is left of the former one.
func TestTUNAndOthers(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		m.mustPass()
		vxlan, devices, state := kernel(t), m.devices, m.state
		m.useUDP("flannel0", 8285, 2)
		m.mustPass()
		m.hasTUN("udp after vxlan", tunWant)
		if out := run(t, "ip -br link show type vxlan; ip nexthop show proto 70"); out != "" {
			t.Errorf("left of vxlan:\n%s", out)
		}
		m.useUDP("flannel9000", 9000, 2)
		m.mustPass()
		m.hasTUN("another port", strings.NewReplacer("flannel0", "flannel9000", ":8285", ":9000").Replace(tunWant))
		if m.Forwarded() == nil {
			t.Error("udp reports nothing that it forwarded")
		}
		m.devices, m.state = devices, state
		m.mustPass()
		if f := m.Forwarded(); f != nil {
			t.Errorf("vxlan after udp reports %+v", f)
		}
		if now := kernel(t); now != vxlan || len(kindIn[*tun](m.Driver).peers.All()) > 0 || len(kindIn[*tun](m.Driver).forwarders) > 0 {
			t.Errorf("vxlan after udp:\n%s\nwant\n%s\n%v %v", now, vxlan, kindIn[*tun](m.Driver).peers.All(), kindIn[*tun](m.Driver).forwarders)
		}
		if out := run(t, "ip -br link show type tun; ss -Hlun sport = :9000"); out != "" {
			t.Errorf("left of udp:\n%s", out)
		}
		// What is not ours stays.
		run(t, "ip tuntap add flannel0 mode tap; ip addr add 172.30.0.1/32 dev flannel0")
		m.useUDP("flannel0", 8285, 2)
		if err := m.pass(); err == nil || !logtest.Names(err.Error(), "flannel0", "tuntap", "Backend.Port") {
			t.Errorf("a device of somebody else: %v", err)
		}
		run(t, "ip link show flannel0 | grep -q BROADCAST; ip tuntap del flannel0 mode tap")
		m.mustPass()
		m.hasTUN("after it is gone", tunWant)
		if m.Forwarded() == nil {
			t.Error("udp reports nothing that it forwarded, after vxlan")
		}
	})
}

// The log says that a device was deleted only if it was: somebody else may have done so just before.
func TestTUNDeletedByOthers(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newUDPMachine(t, 2)
		others := m.devices[:1]
		for _, deleted := range []bool{false, true} {
			m.useUDP("flannel0", 8285, 2)
			m.mustPass()
			if deleted {
				run(t, "ip link del flannel0")
				<-kindIn[*tun](m.Driver).forwarders["flannel0"].Done()
			}
			var log logtest.Log
			m.log = log.Logger()
			m.devices, m.state = others, dataplane.State{}
			m.mustPass()
			if said := log.Count("device=flannel0") > 0; said == deleted || len(kindIn[*tun](m.Driver).forwarders) > 0 {
				t.Errorf("deleted by somebody else: %t; the log is\n%s", deleted, &log)
			}
		}
	})
}

// A node's commands find the device that outlived its daemon.
func TestTUNCleanupAndHandback(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newUDPMachine(t, 2)
		opts := dataplane.Options{Log: slog.New(slog.DiscardHandler)}
		left := func() string {
			return run(t, "ip -br link show type tun; ip route show root 10.5.0.0/16; ip nexthop show proto 70")
		}
		for name, command := range map[string]func(dryRun bool) ([]string, error){
			"cleanup":  func(dry bool) ([]string, error) { return Cleanup(t.Context(), opts, m.state, dry) },
			"handback": func(dry bool) ([]string, error) { return Handback(t.Context(), opts, m.state, dry) },
		} {
			m.mustPass()
			if err := m.Close(); err != nil {
				t.Fatal(err)
			}
			m.Driver = nil
			for _, dry := range []bool{true, false} {
				done, err := command(dry)
				if err != nil || !strings.Contains(strings.Join(done, "\n"), "device flannel0") || (left() == "") == dry {
					t.Errorf("%s (dry %t) did %q, %v; left are\n%s", name, dry, done, err, left())
				}
			}
			m.restart()
		}
	})
}

// Devices of others under our names are left alone, and a forwarder follows the name and not the device.
func TestTUNDevicesOfOthers(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newUDPMachine(t, 2)
		run(t, "ip tuntap add flannel5 mode tap; ip addr add 10.5.1.5/32 dev flannel5")
		m.mustPass()
		// Renamed, and replaced by one that no process has.
		run(t, "until printf 'link set flannel0 down\nlink set flannel0 name other\n' | ip -batch - 2>/dev/null; do :; done; ip tuntap add flannel0 mode tun")
		m.QueueResync()
		m.mustPass()
		if out := run(t, "ip -br link"); strings.Contains(out, "other") || !strings.Contains(run(t, "ip -br link show flannel0"), "LOWER_UP") {
			t.Errorf("a device that was renamed and replaced:\n%s", out)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		m.Driver = nil
		// wireguard-go forwards without flanneld.
		run(t, "ip tuntap add flannel-wg mode tun; ip addr add 10.5.1.6/32 dev flannel-wg")
		if done, err := Handback(t.Context(), dataplane.Options{Log: slog.New(slog.DiscardHandler)}, m.state, false); err != nil || strings.Contains(strings.Join(done, "\n"), "flannel-wg") {
			t.Errorf("handback did %q, %v", done, err)
		}
		m.restart()
		m.mustPass()
		if out := run(t, "ip -br link"); !strings.Contains(out, "flannel5") || strings.Contains(out, "flannel-wg") {
			t.Errorf("a TAP device is not ours, and a stray TUN device is:\n%s", out)
		}
	})
}

// Until the peers are known, packets to them wait and are not answered with ICMP errors.
func TestTUNWaitsForPeers(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newUDPMachine(t, 2)
		if _, err := m.Ensure(t.Context(), m.devices); err != nil {
			t.Fatal(err)
		}
		run(t, "ip route add 10.5.0.0/16 dev flannel0 proto 70; ping -c 1 -W 1 10.5.2.2 || true")
		m.mustPass()
		eventually.True(t, "packets are counted", func() bool { return kindIn[*tun](m.Driver).counters.Get().Sent.Packets > 0 })
		if c := kindIn[*tun](m.Driver).counters.Get(); c.Dropped["unreachable"] > 0 {
			t.Errorf("counted %+v", c)
		}
	})
}

// A route of others to a peer's subnet, to a part of it or to several stays and is reported, because the one to the whole
// network comes after it; one of others elsewhere, and that of the pods' bridge, are not.
func TestTUNDiverted(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newUDPMachine(t, 3) // 10.5.2.0/24 to 10.5.4.0/24
		run(t, "ip link add cni0 type bridge; ip addr add 10.5.1.1/24 dev cni0; ip link set cni0 up")
		m.mustPass()
		for route, want := range map[string]string{
			"10.5.2.0/24 via 192.168.100.7 proto static": "10.5.2.0/24", "10.5.3.128/25 via 192.168.100.7 proto static metric 50": "10.5.3.0/24",
			"10.5.2.0/23 via 192.168.100.7 proto static": "10.5.2.0/24 10.5.3.0/24", "10.5.9.0/24 via 192.168.100.7 proto static": "",
			"10.6.2.0/24 via 192.168.100.7 proto static": "", "blackhole 10.5.4.7 proto static": "10.5.4.0/24",
		} {
			reported := func() string {
				err := m.pass()
				if fmt.Sprint(err) != fmt.Sprint(refusals(m.refused)) {
					t.Errorf("%s: %v", route, err)
				}
				var got []string
				for _, r := range m.refused {
					got = append(got, r.Dst.String())
					if dst := strings.Fields(strings.TrimPrefix(route, "blackhole "))[0]; !strings.Contains(r.Err.Error(), dst) {
						t.Errorf("%s: the reason is %v", route, r.Err)
					}
				}
				return strings.Join(got, " ")
			}
			run(t, "ip route add %s", route)
			if want == "" {
				m.QueueResync() // reads the route
				if got := reported(); got != "" {
					t.Errorf("%s: reported %s", route, got)
				}
			}
			for got := ""; got != want; got = reported() {
				select {
				case <-m.Changes(): // perhaps of what was done before
				case <-time.After(5 * time.Minute):
					t.Fatalf("%s: reported %q, want %s", route, got, want)
				}
			}
			run(t, "ip route del %s", route) // it is still there
			m.QueueResync()
			m.mustPass()
		}
	})
}

// Ten thousand peers are entries of one table in this process; one change does not look at the others.
func TestTUNWithManyPeers(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newUDPMachine(t, 0)
		m.state.Networks = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
		for i := range 10_000 {
			m.state.Paths = append(m.state.Paths, &dataplane.Path{Dst: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(64 + i>>8), byte(i), 0}), 24),
				Via: netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)}), Device: "flannel0", Encap: dataplane.Datagram{}})
		}
		began := time.Now()
		m.mustPass()
		t.Logf("10,000 peers after %v", time.Since(began))
		if n := len(kindIn[*tun](m.Driver).peers.All()); n != 10_000 {
			t.Errorf("%d peers", n)
		}
		began = time.Now()
		m.state.Paths = m.state.Paths[:9_999]
		m.mustPass()
		t.Logf("one change after %v", time.Since(began))
		if n := len(kindIn[*tun](m.Driver).peers.All()); n != 9_999 || m.done != (reconcile.Result{Deleted: 1}) {
			t.Errorf("%d peers after %+v", n, m.done)
		}
	})
}

// The cause of a missing device file reaches the daemon, which logs it; once the file is
// there, the next pass creates the device.
func TestTUNWithoutDeviceFile(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newUDPMachine(t, 1)
		run(t, "head -c0 /dev/net/tun; mount -t tmpfs -o mode=0755 tmpfs /dev/net") // the first command loads the module
		caused := (interface{ Cause() string })(nil)
		if err := m.pass(); !errors.As(err, &caused) || caused.Cause() != "no-tun-device" {
			t.Errorf("without the file: %v", err)
		}
		run(t, "umount /dev/net")
		m.mustPass()
	})
}
