//go:build linux

package linux

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"flannel/internal/test/eventually"
	"flannel/internal/test/logtest"
	"flannel/internal/test/nstest"
)

// advertise sends a router advertisement (RFC 4861, section 4.2) out of an interface: a default router for half an hour.
func advertise(t *testing.T, from string) {
	t.Helper()
	i, err := net.InterfaceByName(from)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
	if err != nil {
		t.Fatal(os.NewSyscallError("socket", err))
	}
	defer unix.Close(fd)
	for option, value := range map[int]int{unix.IPV6_MULTICAST_IF: i.Index, unix.IPV6_MULTICAST_HOPS: 255} { // RFC 4861: 255, else ignored
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, option, value); err != nil {
			t.Fatal(os.NewSyscallError("setsockopt", err))
		}
	}
	// Type 134, code 0, checksum by the kernel, hop limit 64, no flags, lifetime 1800 s, reachable and retransmission time unsaid.
	message := []byte{134, 0, 0, 0, 64, 0, 1800 >> 8, 1800 & 255, 0, 0, 0, 0, 0, 0, 0, 0}
	all := &unix.SockaddrInet6{ZoneId: uint32(i.Index), Addr: [16]byte{0: 0xff, 1: 0x02, 15: 1}}
	// EADDRNOTAVAIL and ENETUNREACH: the kernel has not added the link-local address or the route of multicasts yet. The
	// caller sends again.
	if err := unix.Sendto(fd, message, 0, all); err != nil && err != unix.EADDRNOTAVAIL && err != unix.ENETUNREACH {
		t.Fatal(os.NewSyscallError("sendto", err))
	}
}

// learn sends advertisements until the interface has a default route by one.
func learn(t *testing.T, from, to string) {
	t.Helper()
	eventually.True(t, to+" has a default route by a router advertisement", func() bool {
		advertise(t, from)
		return strings.Contains(run(t, "ip -6 route show default dev %s", to), "proto ra")
	})
}

// The host keeps every default route that it has by router advertisements, not only that of the underlay.
func TestForwardingKeepsDefaultRoutes(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		run(t, "sysctl -qw net.ipv6.conf.all.forwarding=0")
		for _, pair := range [][2]string{{"eth1", "far1"}, {"eth2", "far2"}} {
			run(t, `ip link add %[1]s type veth peer name %[2]s
				sysctl -qw net.ipv6.conf.%[1]s.accept_ra=1 net.ipv6.conf.%[2]s.accept_ra=0
				sysctl -qw net.ipv6.conf.%[1]s.accept_ra_from_local=1 net.ipv6.conf.%[1]s.accept_dad=0 net.ipv6.conf.%[2]s.accept_dad=0
				ip link set %[1]s up; ip link set %[2]s up`, pair[0], pair[1])
		}
		learn(t, "far1", "eth1")
		m.mustPass()
		if out := run(t, "ip -6 route show default dev eth1"); !strings.Contains(out, "proto ra") {
			t.Errorf("the default route of eth1 is gone: %q", out)
		}
		if got := run(t, "cat /proc/sys/net/ipv6/conf/all/forwarding /proc/sys/net/ipv6/conf/eth1/accept_ra /proc/sys/net/ipv6/conf/eth2/accept_ra"); got != "1\n2\n1\n" {
			t.Errorf("forwarding, accept_ra of eth1 and of eth2, which no router advertised to, are %q", got)
		}
		// It goes on: a route that was deleted comes back with the next advertisement.
		if out, err := exec.Command("ip", "-6", "route", "del", "default", "dev", "eth1").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		learn(t, "far1", "eth1")
	})
}

// An underlay that is made anew accepts router advertisements if the former one did, although the host forwards.
func TestNewUnderlayAcceptsAdvertisements(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		run(t, "sysctl -qw net.ipv6.conf.all.forwarding=0 net.ipv6.conf.default.accept_ra=1 net.ipv6.conf.eth0.accept_ra=1")
		m.mustPass()
		accepts := func(when, want string) {
			t.Helper()
			if got := strings.TrimSpace(run(t, "cat /proc/sys/net/ipv6/conf/eth0/accept_ra")); got != want {
				t.Fatalf("%s, accept_ra is %s, want %s", when, got, want)
			}
		}
		anew := func(when string) {
			t.Helper()
			run(t, "ip link del eth0")
			if m.pass() == nil {
				t.Errorf("%s, a pass without the underlay succeeds", when)
			}
			// Without addresses, which only an advertisement will give it.
			run(t, `ip link add eth0 type veth peer name far; ip link set eth0 up; ip link set far up
				sysctl -qw net.ipv6.conf.far.accept_ra=0 net.ipv6.conf.eth0.accept_ra_from_local=1`)
			accepts("a new device", "1")
			m.pass() //nolint:errcheck // peers cannot be reached yet
			accepts(when, "2")
		}
		accepts("before forwarding", "2")
		anew("an underlay made anew")
		learn(t, "far", "eth0")
		m.restart()
		m.pass() //nolint:errcheck // likewise
		anew("after a restart")
		// A host that forwarded before flanneld did, and ignored advertisements, goes on to do so.
		run(t, "sysctl -qw net.ipv6.conf.eth0.accept_ra=1")
		m.restart()
		m.pass() //nolint:errcheck // likewise
		accepts("on a router", "1")
	})
}

// In a container that may not set accept_ra of a new underlay, the pass succeeds.
func TestNewUnderlayInContainer(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		m.mustPass()
		run(t, `sysctl -qw net.ipv6.conf.eth0.accept_ra=1
			mount --bind /proc/sys /proc/sys
			mount -o remount,bind,ro /proc/sys`)
		var log logtest.Log
		m.opts.Log = log.Logger()
		for range 2 {
			m.QueueResync()
			m.mustPass()
		}
		if n := log.Count("level=WARN", "device=eth0"); n != 1 {
			t.Errorf("%d warnings of the underlay, want 1: %s", n, &log)
		}
	})
}

// A route of somebody else that the netlink library cannot read (segment routing with a key) does not keep the kernel
// from forwarding, and a multipath route by advertisements counts for each of its devices.
func TestForwardingBesideRoutesOfOthers(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		run(t, `sysctl -qw net.ipv6.conf.all.forwarding=0 net.ipv6.conf.all.seg6_enabled=1
			for n in 1 2 3; do
				ip link add eth$n type veth peer name far$n; sysctl -qw net.ipv6.conf.eth$n.accept_ra=1
				ip link set eth$n up; ip link set far$n up; ip address add fd00:$n::1/64 dev eth$n nodad
			done
			printf 'secret\nsecret\n' | ip sr hmac set 17 sha256
			ip -6 route add fd01::/64 encap seg6 mode encap segs fd00:1::5 hmac 17 dev eth1
			ip -6 route add fd02::/64 proto ra nexthop via fd00:1::2 dev eth1 nexthop via fd00:2::2 dev eth2`)
		m.mustPass()
		const want = "1\n2\n2\n1\n"
		if got := run(t, "cd /proc/sys/net/ipv6/conf; cat all/forwarding eth1/accept_ra eth2/accept_ra eth3/accept_ra"); got != want {
			t.Errorf("forwarding, and accept_ra of eth1 to eth3, are %q, want %q", got, want)
		}
	})
}
