package linux

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flannel/internal/test/logtest"
	"flannel/internal/test/nstest"
	"flannel/pkg/conf"
	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
)

// The tests of this file use the kernel's WireGuard where it has one, else wireguard-go.

func TestWireGuard(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newWGMachine(t)
		m.mustPass()
		m.wantWG(t, "after the first pass", wgSynced)
		key, err := os.ReadFile(wgKeyFile)
		info, _ := os.Stat(wgKeyFile)
		if raw, err2 := base64.StdEncoding.DecodeString(string(key)); errors.Join(err, err2) != nil || len(raw) != 32 || info.Mode().Perm() != 0o400 {
			t.Errorf("the file of the private key: %v, %d bytes", errors.Join(err, err2), len(key))
		}
		before := identity(t)
		if public := strings.Fields(before)[2]; m.ensured["flannel-wg"].Key.Base64() != public || m.ensured["flannel-wg-v6"].Key.Base64() != public {
			t.Errorf("the links have the keys %v, the devices %s", m.ensured, before)
		}
		m.mustPass()
		if m.done != (reconcile.Result{}) {
			t.Errorf("a pass with nothing to do did %+v", m.done)
		}
		m.restart()
		m.mustPass()
		if after := identity(t); m.done != (reconcile.Result{}) || after != before {
			t.Errorf("after a restart, the pass did %+v; the devices were\n%s and are\n%s", m.done, before, after)
		}
		// One changed peer is one entry of each table.
		m.state.Paths = append([]*dataplane.Path{wgPath(2, "10.5.2.0/24", "192.168.100.22", "flannel-wg", 4500)}, m.state.Paths[1:]...)
		m.mustPass()
		m.wantWG(t, "after a changed address", strings.Replace(wgSynced, "192.168.100.2:51820", "192.168.100.22:4500", 1))
		if want := (reconcile.Result{Set: 1}); m.done != want {
			t.Errorf("it took %+v, want %+v", m.done, want)
		}
		m.state.Paths = m.state.Paths[2:]
		m.mustPass()
		if want := (reconcile.Result{Deleted: 4}); m.done != want {
			t.Errorf("a peer that left took %+v, want %+v", m.done, want)
		}
	})
}

// Whatever is changed on a device is restored, also by a run that begins later.
func TestWireGuardDrift(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newWGMachine(t)
		m.mustPass()
		before, key := identity(t), run(t, "cat %s", wgKeyFile)
		public := strings.Fields(before)[2]
		// Without a gateway, the object is superfluous.
		run(t, "ip nexthop add id %[1]d dev flannel-wg proto 70; ip route replace 10.5.2.0/24 nhid %[1]d scope link proto 70", usualNexthop+5)
		m.restart()
		m.mustPass()
		m.wantWG(t, "after a restart, with a route that was moved to an object of ours", wgSynced)
		m.serve()
		for _, drift := range []string{
			"wg set flannel-wg peer $peer remove",
			"wg set flannel-wg peer $peer endpoint 192.168.100.99:9",
			"wg set flannel-wg peer $peer allowed-ips 10.5.77.0/24,10.5.78.0/24,10.5.79.0/24",
			"wg set flannel-wg peer $peer allowed-ips 10.5.3.0/24", // which the kernel takes from another
			"wg set flannel-wg peer $peer persistent-keepalive 5",
			"wg genpsk > /run/psk; wg set flannel-wg peer $peer preshared-key /run/psk",
			"wg set flannel-wg peer $(wg genkey | wg pubkey) allowed-ips 10.5.2.0/24",
			"wg set flannel-wg listen-port 999",
			"wg genkey > /run/other; wg set flannel-wg private-key /run/other",
			"rm " + wgKeyFile,
			"ip route del 10.5.2.0/24",
			"ip nexthop add id 7 dev flannel-wg; ip route replace 10.5.2.0/24 nhid 7 scope link proto 70; ip nexthop del id 7",
			"ip route del 10.5.0.0/16; ip -6 route del 2001:cafe:42:1::/64",
			"ip link set flannel-wg down",
			"ip link set flannel-wg mtu 1300",
			"ip addr del 10.5.1.0/32 dev flannel-wg",
			"ip link del flannel-wg; ip link del flannel-wg-v6",
			"pkill -9 -x wireguard-go || true",     // nothing with the kernel's WireGuard
			"rm -f /run/wireguard/flannel-wg.sock", // which ends the process
		} {
			began := time.Now()
			run(t, "peer=%s; %s", peerKey(2).Base64(), drift)
			if err := settles(t, func() bool {
				keyNow, _ := os.ReadFile(wgKeyFile)
				return wgKernel(t) == wgSynced && strings.Fields(identity(t))[2] == public && string(keyNow) == key
			}); err != nil {
				t.Fatalf("%s: %v\n%s", drift, err, wgKernel(t))
			}
			t.Logf("%-60.60s repaired after %v", drift, time.Since(began).Round(time.Millisecond))
		}
	})
}

// A flannel's device, its key and its peers are used as they are. Its route goes when
// ours are there.
func TestWireGuardAdoption(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newWGMachine(t)
		m.mustPass() // creates the devices by whatever this machine has
		run(t, `wg set flannel-wg peer %[1]s remove; wg set flannel-wg peer %[2]s allowed-ips 10.5.99.0/24 endpoint 192.168.100.99:51820
			ip route flush proto 70; ip -6 route flush proto 70
			ip route add 10.5.0.0/16 dev flannel-wg scope link proto boot; ip -6 route add 2001:cafe:42::/56 dev flannel-wg-v6 proto boot
			ip route add 10.9.0.0/16 dev flannel-wg; ip route add 10.5.0.0/16 dev eth0 metric 7`, peerKey(4).Base64(), peerKey(99).Base64())
		before := identity(t)
		m.restart()
		m.mustPass()
		want := strings.Replace(wgSynced, "10.5.0.0/16 dev", "10.5.0.0/16 dev eth0 scope link metric 7\n10.5.0.0/16 dev", 1)
		m.wantWG(t, "after the adoption", want)
		if after := identity(t); after != before {
			t.Errorf("the devices were\n%s and are\n%s", before, after)
		}
		if out := run(t, "ip -6 route show 2001:cafe:42::/56 metric 1024; ip route show 10.9.0.0/16"); strings.TrimSpace(out) != "10.9.0.0/16 dev flannel-wg scope link" {
			t.Errorf("flannel's IPv6 route, or somebody else's: %s", out)
		}
		// The file is lost: the key of the device is the node's.
		run(t, "rm "+wgKeyFile)
		m.restart()
		m.mustPass()
		if after := identity(t); after != before || run(t, "wg pubkey < %s", wgKeyFile) != strings.Fields(before)[2]+"\n" {
			t.Errorf("without the file, the devices were\n%s and are\n%s", before, after)
		}
		found, err := m.Found(t.Context(), m.ensured, m.state)
		if err != nil || len(found) != len(m.state.Paths) {
			t.Fatalf("found %d paths, %v", len(found), err)
		}
		for i, p := range byDst(m.state.Paths) {
			if *found[i] != *p {
				t.Errorf("found %+v, want %+v", *found[i], *p)
			}
		}
	})
}

// One device carries both families; PSK, keepalive and key follow their settings.
func TestWireGuardSettings(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newWGMachine(t)
		m.mustPass()
		before := identity(t)
		both := [2]netip.Prefix{netip.MustParsePrefix("10.5.2.0/24"), netip.MustParsePrefix("2001:cafe:42:2::/64")}
		encap := dataplane.WireGuardPeer{Key: peerKey(2), Endpoint: netip.MustParseAddrPort("[fd00:100::2]:7"), Allowed: both}
		m.devices = wgDevices(dataplane.WireGuard{PSK: conf.NewSecret(strings.Repeat("\x01", 32)), Keepalive: 25 * time.Second})[:2]
		kind := m.devices[1].Kind.(dataplane.WireGuard)
		kind.Addr = append(kind.Addr, netip.MustParsePrefix("2001:cafe:42:1::/128"))
		kind.Port, kind.MTU = 4500, 1400
		m.devices[1].Kind = kind
		m.state.Paths = []*dataplane.Path{{Dst: both[0], Via: encap.Endpoint.Addr(), Device: "flannel-wg", Encap: encap},
			{Dst: both[1], Via: encap.Endpoint.Addr(), Device: "flannel-wg", Encap: encap}}
		m.mustPass()
		m.wantWG(t, "with one device", `flannel-wg 10.5.1.0/32 2001:cafe:42:1::/128 mtu 1400 port 4500
peer CQIA psk [fd00:100::2]:7 10.5.2.0/24,2001:cafe:42:2::/64 25
10.5.0.0/16 dev flannel-wg scope link metric 65536
10.5.1.0/24 dev flannel-wg scope link metric 65536
10.5.2.0/24 dev flannel-wg scope link
2001:cafe:42:1::/64 dev flannel-wg metric 65536
2001:cafe:42:2::/64 dev flannel-wg metric 1024
2001:cafe:42::/56 dev flannel-wg metric 65536
`)
		m.devices[1].Readdress = true // another node has the same key
		dir := filepath.Dir(wgKeyFile)
		run(t, "mount --bind %[1]s %[1]s; mount -o remount,bind,ro %[1]s", dir)
		for range 2 {
			if err := m.pass(); !errors.Is(err, unix.EROFS) || !strings.Contains(before, m.ensured["flannel-wg"].Key.Base64()) {
				t.Errorf("the file of the key cannot be written: %v, and the key is %s, it was %s", err, m.ensured["flannel-wg"].Key.Base64(), before)
			}
		}
		run(t, "umount %s", dir)
		m.mustPass()
		replaced := run(t, "wg show flannel-wg public-key")
		if strings.Contains(before, replaced) || run(t, "wg pubkey < %s", wgKeyFile) != replaced || m.ensured["flannel-wg"].Key.Base64()+"\n" != replaced {
			t.Errorf("the key is %s, it was %s", replaced, before)
		}
		m.QueueResync()
		m.mustPass()
		if again := run(t, "wg show flannel-wg public-key"); again != replaced {
			t.Error("the key was replaced twice")
		}
		// An operator replaces the key.
		run(t, "umask 377; rm %[1]s; wg genkey > %[1]s", wgKeyFile)
		m.QueueResync()
		m.mustPass()
		if now := run(t, "wg show flannel-wg public-key"); now != run(t, "wg pubkey < %s", wgKeyFile) || now == replaced {
			t.Error("the device does not have the key in the file")
		}
		run(t, "rm -f %[1]s; echo secret > %[1]s", wgKeyFile)
		m.QueueResync()
		if err := m.pass(); err == nil || !strings.Contains(err.Error(), wgKeyFile) || strings.Contains(err.Error(), "secret") {
			t.Errorf("a file without a key: %v", err)
		}
	})
}

// After WireGuard, nothing of it is left, with either way out.
func TestWireGuardLeaves(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newWGMachine(t)
		devices, paths := m.devices, m.state.Paths
		m.mustPass()
		m.devices = []dataplane.Device{{Name: "eth0", Kind: dataplane.Existing{}}}
		m.state.Paths = []*dataplane.Path{{Dst: netip.MustParsePrefix("10.5.2.0/24"), Via: netip.MustParseAddr("192.168.100.2"), Device: "eth0", Encap: dataplane.Direct{}}}
		m.mustPass()
		gone := func() {
			t.Helper()
			if err := settles(t, func() bool {
				return run(t, "ps -C wireguard-go -o stat=,args= | grep -v ^Z || true; ls /run/wireguard 2>/dev/null || true") == ""
			}); err != nil {
				t.Error("a process of wireguard-go, or its socket, is left")
			}
		}
		m.wantWG(t, "with host-gw", "10.5.2.0/24 via 192.168.100.2 dev eth0\n")
		gone()
		m.devices, m.state.Paths = devices, paths
		m.mustPass()
		m.wantWG(t, "with WireGuard again", wgSynced)
		if _, err := Cleanup(t.Context(), dataplane.Options{Log: m.opts.Log}, m.state, false); err != nil {
			t.Error(err)
		}
		m.wantWG(t, "after the cleanup", "")
		gone()
	})
}

// Without WireGuard in the kernel or as a program there is one error, which names the
// module. Devices of others are not touched.
func TestWireGuardMissing(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newWGMachine(t)
		run(t, "ip link add flannel-wg type bridge")
		if err := m.pass(); err == nil || !strings.Contains(err.Error(), "bridge") {
			t.Errorf("a device of another type: %v", err)
		}
		run(t, "ip link show type bridge dev flannel-wg; ip link del flannel-wg")
		if exec.Command("ip", "link", "add", "probe", "type", "wireguard").Run() == nil {
			return // the rest needs a kernel without it
		}
		t.Setenv("PATH", "")
		err := m.pass()
		missing := (*noModuleError)(nil)
		if !errors.As(err, &missing) || missing.Module != "wireguard" || missing.Cause() != "no-kernel-module" || !logtest.Names(err.Error(), "modprobe wireguard", "wireguard-go") {
			t.Errorf("got %v", err)
		}
	})
}

// remote is the other end of a tunnel, in a network namespace of its own.
const remote = `umask 077; ip netns add far; ip link set far netns far
	in_far() { ip netns exec far "$@"; }
	in_far ip link set lo up; in_far ip addr add 192.168.100.2/24 dev far; in_far ip addr add 192.168.100.77/24 dev far; in_far ip link set far up
	in_far ip link add wgfar type wireguard 2>/dev/null || in_far wireguard-go wgfar >/dev/null 2>&1
	wg genkey > /run/farkey; in_far wg set wgfar listen-port 51820 private-key /run/farkey
	in_far ip addr add 10.5.2.1/24 dev wgfar; in_far ip link set wgfar up; in_far ip route add 10.5.1.0/32 dev wgfar
	wg pubkey < /run/farkey`

// A peer that sends from elsewhere is answered there, also after a restart. A changed
// lease counts.
func TestWireGuardRoaming(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newWGMachine(t)
		key, err := dataplane.ParsePublicKey(strings.TrimSpace(run(t, "%s", remote)))
		if err != nil {
			t.Fatal(err)
		}
		path := func(at string) []*dataplane.Path {
			p := wgPath(2, "10.5.2.0/24", at, "flannel-wg", 51820)
			encap := p.Encap.(dataplane.WireGuardPeer)
			encap.Key = key
			p.Encap = encap
			return []*dataplane.Path{p}
		}
		m.devices = m.devices[:2]
		m.state.Paths = path("192.168.100.99") // where nobody is, as of a peer behind NAT
		m.mustPass()
		endpoint := func() string { return strings.Fields(run(t, "wg show flannel-wg endpoints"))[1] }
		if got := endpoint(); got != "192.168.100.99:51820" {
			t.Fatalf("the endpoint is %s", got)
		}
		run(t, `ip netns exec far wg set wgfar peer $(wg show flannel-wg public-key) endpoint 192.168.100.1:51820 allowed-ips 10.5.1.0/24
			ip netns exec far ping -q -c 1 -w 60 -I 10.5.2.1 10.5.1.0`)
		learned := endpoint()
		if learned == "192.168.100.99:51820" {
			t.Fatal("WireGuard has not learned the endpoint")
		}
		for _, restart := range []bool{false, true} {
			if restart {
				m.restart()
			}
			m.QueueResync()
			m.mustPass()
			if got := endpoint(); got != learned || m.done != (reconcile.Result{}) {
				t.Fatalf("restart %t: the endpoint is %s, want %s; the pass did %+v", restart, got, learned, m.done)
			}
		}
		traffic := m.Traffic()[netip.MustParsePrefix("10.5.2.0/24")]
		if traffic.Endpoint.String() != learned || traffic.Handshake.IsZero() || traffic.Received == 0 || traffic.Sent == 0 {
			t.Errorf("traffic: %+v", traffic)
		}
		m.state.Paths = path("192.168.100.77") // the node moved
		m.mustPass()
		if got := endpoint(); got != "192.168.100.77:51820" {
			t.Errorf("after a changed lease the endpoint is %s", got)
		}
		// Another property of the peer changes: the endpoint that was learned stays.
		run(t, "ip netns exec far ping -q -c 1 -w 60 -I 10.5.2.1 10.5.1.0")
		learned = endpoint()
		m.devices[1].Kind = func() dataplane.Kind {
			k := m.devices[1].Kind.(dataplane.WireGuard)
			k.Keepalive = 7 * time.Second
			return k
		}()
		m.state.Paths = path("192.168.100.77")
		m.mustPass()
		if out := run(t, "wg show flannel-wg persistent-keepalive"); endpoint() != learned || strings.Fields(out)[1] != "7" {
			t.Errorf("the endpoint is %s, want %s; keepalive %s", endpoint(), learned, out)
		}
		m.QueueResync() // the daemon lists every few seconds, and so sees the endpoint while the session lasts
		m.mustPass()
		// The session is over: the endpoint is that of the lease. That is a repair only if somebody else has set another one.
		for _, c := range []struct {
			by      string
			repairs int
		}{{"", 0}, {"wg set flannel-wg peer " + key.Base64() + " endpoint 192.168.100.99:9", 1}} {
			for _, state := range kindIn[*wireguard](m.Driver).wg.states {
				state.changed = time.Now().Add(-sessionLasts)
			}
			run(t, "%s", c.by)
			m.repaired = map[string]int{}
			m.QueueResync()
			m.mustPass()
			if got := endpoint(); got != "192.168.100.77:51820" || m.repaired["wireguard"] != c.repairs {
				t.Errorf("%q: the endpoint is %s, repaired %v", c.by, got, m.repaired)
			}
		}
	})
}

// What a pass costs with many peers: the log has the figures. One changed peer is one
// message, whatever the number of the others.
func TestWireGuardCost(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newWGMachine(t)
		m.devices = m.devices[:2]
		peers := func(n int) (paths []*dataplane.Path) {
			for i := range n {
				host := netip.AddrFrom4([4]byte{192, 168, byte(i >> 8), byte(i)})
				paths = append(paths, wgPath(i, fmt.Sprintf("10.%d.%d.0/24", 100+i>>8, i&255), host.String(), "flannel-wg", 51820))
			}
			return paths
		}
		m.state.Networks = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
		took := func(want reconcile.Result, what string) {
			t.Helper()
			began := time.Now()
			m.mustPass()
			t.Logf("%5d peers: %s took %v", len(m.state.Paths), what, time.Since(began).Round(10*time.Microsecond))
			if m.done != want {
				t.Errorf("%d peers, %s: %+v, want %+v", len(m.state.Paths), what, m.done, want)
			}
		}
		count := []int{0, 250, 1000}
		if os.Getenv("FLANNEL_WG_PEERS") != "" { // for figures with the kernel's WireGuard
			count = []int{0, 1000, 10_000}
		}
		m.state.Paths = nil
		m.mustPass() // the device, and the routes that belong to no peer
		for step, n := range count[1:] {
			m.state.Paths = peers(n)
			if step > 0 {
				m.restart()
			}
			// All paths are new to the driver; the kernel has those of the step before.
			took(reconcile.Result{Set: 2 * (n - count[step])}, "the first pass")
			m.QueueResync()
			took(reconcile.Result{}, "a list of all")
			m.state.Paths = append([]*dataplane.Path{wgPath(0, "10.100.0.0/24", "192.168.255.1", "flannel-wg", 51820)}, m.state.Paths[1:]...)
			took(reconcile.Result{Set: 1}, "one changed peer")
			m.state.Paths = append(peers(1), m.state.Paths[1:]...)
			took(reconcile.Result{Set: 1}, "changing it back")
		}
	})
}
