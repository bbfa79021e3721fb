package udptunnel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flannel/internal/test/eventually"
	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
)

func TestForwards(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		a, b := twoHosts(t)
		a.sh("ping -c 3 -i 0.01 -W 60 10.5.2.0")
		b.sh("ping -c 1 -s 1444 -M do -W 60 10.5.1.0") // as large as the MTU
		took := a.transfer(b, "10.5.2.0:5001", 64<<20)
		t.Logf("64 MiB of one TCP connection in %v", took)
		if c := a.counters.Get(); c.Sent.Bytes < 64<<20 || c.Sent.Packets < 64<<20/1472 || c.Received.Packets == 0 || c.Dropped[dropForeign.String()]+c.Dropped[dropMalformed.String()] > 0 {
			t.Errorf("counted %+v", c)
		}
		// UDP datagrams of all sizes, as fragments, too.
		b.sh("ping -c 1 -s 30000 -W 60 10.5.1.0")

		// Both ends decrement the TTL: 64 - 1 - 1.
		if out := a.sh("ping -c 1 -W 60 10.5.2.0"); !strings.Contains(out, "ttl=62") {
			t.Errorf("the TTL is not decremented twice:\n%s", out)
		}
		// The tunnel's two ends are hops that answer.
		for ttl, hop := range map[int]string{1: "10.5.1.0", 2: "10.5.2.0"} {
			out, err := exec.Command("ip", "netns", "exec", "h1", "ping", "-c", "1", "-W", "60", "-t", fmt.Sprint(ttl), "10.5.2.0").CombinedOutput()
			if err == nil || !strings.Contains(string(out), "From "+hop) || !strings.Contains(string(out), "exceeded") {
				t.Errorf("TTL %d: %v\n%s", ttl, err, out)
			}
		}
		if a.dropped(dropExpired) != 1 || b.dropped(dropExpired) != 1 {
			t.Errorf("dropped because of the TTL: %d and %d", a.dropped(dropExpired), b.dropped(dropExpired))
		}
		out, err := exec.Command("ip", "netns", "exec", "h1", "ping", "-c", "1", "-W", "60", "10.5.77.1").CombinedOutput()
		if err == nil || !strings.Contains(string(out), "Unreachable") || a.dropped(dropUnreachable) != 1 {
			t.Errorf("a subnet that nobody has: %v, %d dropped\n%s", err, a.dropped(dropUnreachable), out)
		}
	})
}

// A foreign flannel is a plain UDP socket: it sends one IP packet in each datagram, and receives them likewise.
func TestWireFormatAndSourceCheck(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		a, b := twoHosts(t)
		if err := b.tunnel.Close(); err != nil {
			t.Fatal(err)
		}
		b.sh("ip link del flannel0; ip addr add 192.168.0.3/24 dev eth0")
		var peer, wrongPort, wrongHost *net.UDPConn
		b.in(func() {
			for conn, at := range map[**net.UDPConn]string{&peer: "192.168.0.2:8285", &wrongPort: "192.168.0.2:9999", &wrongHost: "192.168.0.3:8285"} {
				var err error
				if *conn, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(at))); err != nil {
					t.Fatal(err)
				}
			}
		})
		to := net.UDPAddrFromAddrPort(a.local())
		echo := func(source [4]byte) packet {
			icmp := []byte{8, 0, 0, 0, 0x12, 0x34, 0, 1, 'p', 'i', 'n', 'g'}
			sum := dataplane.Checksum(icmp)
			icmp[2], icmp[3] = byte(sum>>8), byte(sum)
			return with(with(ipPacket(1, 64, 0, icmp...), sourceAt, source[:]...), destAt, 10, 5, 1, 0)
		}
		send := func(from *net.UDPConn, p []byte) {
			t.Helper()
			if _, err := from.WriteToUDP(p, to); err != nil {
				t.Fatal(err)
			}
		}
		good := echo([4]byte{10, 5, 2, 7})
		send(peer, good)
		reply := make([]byte, 2000)
		if err := peer.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		n, from, err := peer.ReadFromUDPAddrPort(reply)
		if p := parse(reply[:max(n, 0)]); err != nil || from != a.local() || p == nil || p.source() != good.dest() || p.dest() != good.source() || p[p.header()] != 0 || p[ttlAt] != 63 {
			t.Fatalf("the reply %x from %v: %v", reply[:max(n, 0)], from, err)
		}
		eventually.True(t, "the packet is counted", func() bool { return a.counters.Get().Received.Packets == 1 })
		for _, c := range []struct {
			what string
			from *net.UDPConn
			p    []byte
			want dropReason
		}{
			{"another port", wrongPort, good, dropForeign}, {"another host", wrongHost, good, dropForeign},
			{"a source of somebody else's", peer, echo([4]byte{10, 64, 7, 1}), dropForeign}, {"a source of ours", peer, echo([4]byte{10, 5, 1, 0}), dropForeign},
			{"a source outside of the network", peer, echo([4]byte{8, 8, 8, 8}), dropForeign},
			{"nothing", peer, nil, dropMalformed}, {"garbage", peer, []byte("garbage"), dropMalformed}, {"a packet that is cut off", peer, good[:len(good)-1], dropMalformed},
			{"a packet and more", peer, append(append([]byte{}, good...), 0), dropMalformed}, {"IPv6", peer, append([]byte{0x60}, good[1:]...), dropMalformed},
			{"an old packet", peer, with(append(packet{}, good...), ttlAt, 1), dropExpired},
		} {
			before, received := a.dropped(c.want), a.counters.Get().Received.Packets
			send(c.from, c.p)
			eventually.True(t, c.what+" is counted as "+c.want.String(), func() bool { return a.dropped(c.want) == before+1 })
			if after := a.counters.Get().Received.Packets; after != received {
				t.Errorf("%s was received", c.what)
			}
		}
		send(peer, good) // all is well after these
		for {
			n, _, err := peer.ReadFromUDPAddrPort(reply)
			if err != nil {
				t.Fatal(err)
			}
			if p := parse(reply[:n]); p != nil && p[p.header()] == 0 {
				break
			}
		}
	})
}

// The device outlives the process, with its address and routes, and goes only when it is destroyed.
func TestDeviceStaysAndIsAttachedAgain(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		a, b := twoHosts(t)
		// Without "linkdown", which the kernel sets and removes a moment after the carrier has changed.
		device := func() string {
			return strings.ReplaceAll(a.sh("cat /sys/class/net/flannel0/ifindex; ip route show dev flannel0"), " linkdown", "")
		}
		before := device()
		err := func() error {
			var err error
			a.in(func() {
				_, err = Open(Options{Device: "flannel0", Local: netip.MustParseAddrPort("192.168.0.1:9000"), Peers: &a.peers, Counters: &a.counters})
			})
			return err
		}()
		if !errors.Is(err, ErrBusy) {
			t.Errorf("a device that is open: %v", err)
		}
		if err := a.open2("flannel1"); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("a port that is in use: %v", err)
		}
		if err := a.tunnel.Close(); err != nil {
			t.Fatal(err)
		}
		if err := a.open(); err != nil {
			t.Fatal(err)
		}
		if after := device(); after != before {
			t.Errorf("the device was\n%s\nand is\n%s", before, after)
		}
		a.active()
		b.sh("ping -c 1 -W 60 10.5.1.0")
		// Somebody deletes the device: the tunnel ends by itself.
		a.sh("ip link del flannel0")
		select {
		case <-a.tunnel.Done():
		case <-time.After(time.Minute):
			t.Fatal("the tunnel goes on without its device")
		}
		if a.tunnel.Err() == nil {
			t.Error("the tunnel does not say why it ended")
		}
		if err := a.open(); err != nil {
			t.Fatal(err)
		}
		a.configure()
		a.active()
		b.sh("ping -c 1 -W 60 10.5.1.0")
		a.sh("ip link set flannel0 down; ip link set flannel0 name other")
		if err := a.tunnel.Destroy(); err != nil {
			t.Fatal(err)
		}
		if out := a.sh("ip -br link"); strings.Contains(out, "other") {
			t.Errorf("a destroyed device is left:\n%s", out)
		}
	})
}

// Without the kernel's help everything works as well.
func TestWithoutSegmentation(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		a, b := twoHosts(t)
		a.sh("ethtool -K eth0 tx off >/dev/null 2>&1 || true")
		a.transfer(b, "10.5.2.0:5001", 8<<20)
		if failed := a.dropped(dropFailed); failed > 0 {
			t.Errorf("%d datagrams were refused", failed)
		}
	})
}

// Packets that the kernel does not take, because the device is down, are not received ones.
func TestDeviceDown(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		a, b := twoHosts(t)
		a.sh("ip link set flannel0 down")
		received := a.counters.Get().Received.Packets
		b.sh("ping -c 5 -i 0.01 -W 1 10.5.1.0 || true")
		eventually.True(t, "all five have failed", func() bool { return a.dropped(dropFailed) == 5 })
		if n := a.counters.Get().Received.Packets - received; n != 0 {
			t.Errorf("%d packets were received", n)
		}
	})
}

// Connections with tiny segments, more of which come at once than one read of the device returns.
func TestTinySegments(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		a, b := twoHosts(t)
		a.sh("ip route change 10.5.0.0/16 dev flannel0 advmss 100")
		b.sh("ip route change 10.5.0.0/16 dev flannel0 advmss 100")
		a.transfer(b, "10.5.2.0:5001", 8<<20)
		if n := a.tunnel.device.BatchSize(); n != MaxSegments || a.dropped(dropFailed) > 0 {
			t.Errorf("reads return up to %d packets; %d dropped", n, a.dropped(dropFailed))
		}
	})
}

// Without the capability in the initial user namespace the buffers have the size that the host allows.
func TestWithoutPrivilege(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		err := make(chan error)
		go func() {
			runtime.LockOSThread() // the thread ends with this goroutine
			var none [2]unix.CapUserData
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			if e := unix.Capset(&header, &none[0]); e != nil {
				err <- e
				return
			}
			s, e := openSocket(netip.MustParseAddrPort("127.0.0.1:8285"))
			if e == nil {
				e = s.Close()
			}
			err <- e
		}()
		if e := <-err; e != nil {
			t.Error(e)
		}
	})
}

// Closing a tunnel ends both loops, each of which closes what the other one uses. That is no error.
func TestCloseWithoutError(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		a, _ := twoHosts(t)
		for i := range 50 {
			if err := a.tunnel.Close(); err != nil {
				t.Fatal(err)
			}
			err := a.openOnly()
			if err != nil {
				t.Fatal(err)
			}
			if i%2 == 0 { // the others are closed before they have started
				a.tunnel.Start()
			}
		}
	})
}

// What arrives between Open and Start, when the peers are not known yet, is neither answered nor lost.
func TestPacketsWaitForStart(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		a, b := twoHosts(t)
		if err := a.tunnel.Close(); err != nil {
			t.Fatal(err)
		}
		a.peers.Delete([]netip.Prefix{prefix("10.5.2.0/24")})
		if err := a.openOnly(); err != nil {
			t.Fatal(err)
		}
		a.active()
		sent := b.counters.Get().Sent.Packets
		replies := make(chan error, 2)
		for n, to := range map[int]string{1: "10.5.2.0", 2: "10.5.1.0"} {
			go func() {
				out, err := exec.Command("ip", "netns", "exec", fmt.Sprintf("h%d", n), "ping", "-c", "1", "-W", "60", to).CombinedOutput()
				if err != nil {
					err = fmt.Errorf("ping from host %d: %w\n%s", n, err, out)
				}
				replies <- err
			}()
		}
		eventually.True(t, "both have sent", func() bool {
			return b.counters.Get().Sent.Packets > sent && strings.Contains(a.sh("cat /proc/net/snmp"), "OutType8")
		})
		a.peers.Set(map[netip.Prefix]netip.AddrPort{prefix("10.5.2.0/24"): b.local()})
		a.tunnel.Start()
		for range 2 {
			if err := <-replies; err != nil {
				t.Error(err)
			}
		}
		if c := a.counters.Get(); c.Dropped[dropForeign.String()]+c.Dropped[dropUnreachable.String()] > 0 {
			t.Errorf("counted %+v", c)
		}
	})
}
