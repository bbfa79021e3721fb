package udptunnel

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flannel/internal/test/eventually"
)

// host is a network namespace with an end of a cable, 192.168.0.<n>, and a tunnel with the subnet 10.5.<n>.0/24.
type host struct {
	t        *testing.T
	n        int
	peers    Peers
	counters Counters
	tunnel   *Tunnel
}

func sh(t *testing.T, format string, args ...any) string {
	t.Helper()
	out, err := exec.Command("sh", "-ec", fmt.Sprintf(format, args...)).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", fmt.Sprintf(format, args...), err, out)
	}
	return string(out)
}

func (h *host) sh(format string, args ...any) string {
	h.t.Helper()
	return sh(h.t, "ip netns exec h%d sh -ec '%s'", h.n, fmt.Sprintf(format, args...))
}

// in calls f on a thread in the host's namespace, which ends with it.
func (h *host) in(f func()) {
	h.t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		file, err := os.Open(fmt.Sprintf("/run/netns/h%d", h.n))
		if err == nil {
			err = unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
		}
		if err == nil {
			f()
		}
		done <- errors.Join(err, file.Close())
	}()
	if err := <-done; err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) local() netip.AddrPort {
	return netip.MustParseAddrPort(fmt.Sprintf("192.168.0.%d:8285", h.n))
}

// open opens and starts the tunnel.
func (h *host) open() error {
	err := h.openOnly()
	if err == nil {
		h.tunnel.Start()
	}
	return err
}

// openOnly opens the tunnel, which does not forward yet.
func (h *host) openOnly() (err error) {
	h.in(func() {
		h.tunnel, err = Open(Options{Device: "flannel0", Local: h.local(), Source: netip.MustParseAddr(fmt.Sprintf("10.5.%d.0", h.n)), Peers: &h.peers, Counters: &h.counters})
	})
	return err
}

func twoHosts(t *testing.T) (a, b *host) {
	t.Helper()
	a, b = &host{t: t, n: 1}, &host{t: t, n: 2}
	sh(t, `ip netns add h1; ip netns add h2
		ip link add eth0 netns h1 type veth peer name eth0 netns h2`)
	for _, h := range []*host{a, b} {
		h.sh("ip link set lo up; ip addr add %s/24 dev eth0; ip link set eth0 up", h.local().Addr())
		h.peers.Set(manyPeers(1000))
		other := 3 - h.n
		h.peers.Set(map[netip.Prefix]netip.AddrPort{prefix(fmt.Sprintf("10.5.%d.0/24", other)): netip.MustParseAddrPort(fmt.Sprintf("192.168.0.%d:8285", other))})
		if err := h.open(); err != nil {
			t.Fatal(err)
		}
		h.configure()
	}
	a.active()
	b.active()
	return a, b
}

// active waits until the kernel sends through all devices of h that are up. It notices a carrier in a work queue, and
// drops packets until then.
func (h *host) active() {
	h.t.Helper()
	eventually.True(h.t, "the devices are active", func() bool { return !strings.Contains(h.sh("ip -o link show up"), "DOWN mode") })
}

// configure does what the driver does: address, MTU, offloads, route.
func (h *host) configure() {
	h.t.Helper()
	h.sh("ip addr add 10.5.%d.0/32 dev flannel0; ip link set flannel0 mtu 1472 gso_max_segs %d up; ip route add 10.5.0.0/16 dev flannel0; echo 1 > /proc/sys/net/ipv4/conf/flannel0/accept_local", h.n, MaxSegments)
}

func (h *host) dropped(d dropReason) uint64 { return h.counters.Get().Dropped[d.String()] }

// transfer sends n bytes over one TCP connection from h to a listener of another host, and checks that all arrive.
func (h *host) transfer(to *host, at string, n int64) time.Duration {
	h.t.Helper()
	var listener net.Listener
	var conn net.Conn
	var err error
	to.in(func() { listener, err = net.Listen("tcp4", at) })
	if err != nil {
		h.t.Fatal(err)
	}
	defer listener.Close()
	received := make(chan int64, 1)
	go func() {
		total := int64(-1)
		if conn, err := listener.Accept(); err == nil {
			total, _ = io.Copy(io.Discard, conn)
			_ = conn.Close()
		}
		received <- total
	}()
	began := time.Now()
	h.in(func() { conn, err = net.DialTimeout("tcp4", at, time.Minute) })
	if err != nil {
		h.t.Fatal(err)
	}
	block := make([]byte, 1<<20)
	for sent := int64(0); sent < n; sent += int64(len(block)) {
		if _, err := conn.Write(block); err != nil {
			h.t.Fatal(err)
		}
	}
	if err := conn.Close(); err != nil {
		h.t.Fatal(err)
	}
	if got := <-received; got != n {
		h.t.Fatalf("%d of %d bytes arrived", got, n)
	}
	return time.Since(began)
}

// open2 opens another device with the same port.
func (h *host) open2(device string) (err error) {
	h.in(func() {
		_, err = Open(Options{Device: device, Local: h.local(), Peers: &h.peers, Counters: &h.counters})
	})
	return err
}
