package guard

import (
	"fmt"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flannel/internal/test/eventually"
	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
)

// A trial waits for what claims to be from a pod of a peer. A node whose lease is gone and
// that still probes, and a pod of this node with a former address or that of a peer's pod,
// are no reason to wait: they would delay it for ever.
func TestTrialWaitsForPeers(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		l := newLink(t)
		setup := `ip link add cni0 type veth peer name pod; ip link set cni0 up; ip link set pod up
			ip addr add 10.5.1.1/24 dev cni0; ip addr add 2001:cafe:42:1::1/64 dev cni0 nodad; sysctl -qw net.ipv4.conf.cni0.rp_filter=0`
		if out, err := exec.CommandContext(t.Context(), "sh", "-ec", setup).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		l.bridge = "cni0"
		pod := &link{t: t, fd: l.fd, to: unix.SockaddrLinklayer{Ifindex: index(t, "pod").Index, Halen: 6, Addr: [8]byte(append(index(t, "cni0").HardwareAddr, 0, 0))}}
		c := Config{Outer: overVXLAN}
		departed, departed6 := path("10.5.9.0/24", "192.0.2.77"), path("2001:cafe:42:9::/64", "2001:db8::77")
		g := l.guard(append(paths, departed, departed6)...)
		l.apply(g, c)
		g.Put(dataplane.Drop, departed)
		g.Put(dataplane.Drop, departed6)
		l.apply(g, c)
		if err := g.Prune(t.Context(), dataplane.Options{}); err != nil {
			t.Fatal(err)
		}
		outer := func(from, inside string) []byte { return c.outer(said{from: from, inside: inside})[0] }
		plain := func(from, to string) []byte {
			return ipPacket(netip.MustParseAddr(from), netip.MustParseAddr(to), unix.IPPROTO_UDP, make([]byte, 8), 0)
		}
		for _, test := range []struct {
			what   string
			by     *link
			packet []byte
			rule   string
			claims uint64
		}{
			{"a departed node probes", l, outer("192.0.2.77", "10.5.9.0"), outsider, 0},
			{"a departed node probes by IPv6", l, outer("2001:db8::77", "2001:cafe:42:9::"), outsider, 0},
			{"a departed node, directly", l, plain("10.5.9.7", "10.5.1.7"), spoofed, 0},
			{"nobody's pod, by a peer", l, outer("192.0.2.2", "10.5.77.7"), impostor, 0},
			{"a pod of a former subnet", pod, plain("10.5.9.7", "10.5.2.7"), spoofed, 0},
			{"a pod with the address of a peer's", pod, plain("10.5.2.7", "10.5.3.7"), spoofed, 0},
			{"a peer behind NAT", l, outer("192.0.2.78", "10.5.2.0"), outsider, 1},
			{"a peer behind NAT, the half of a subnet", l, outer("192.0.2.78", "10.5.4.200"), outsider, 1},
			{"a peer behind NAT by IPv6", l, outer("2001:db8::78", "2001:cafe:42:4:8000::7"), outsider, 1},
			{"a peer with another's packet", l, outer("192.0.2.2", "10.5.3.7"), impostor, 1},
			{"a peer, directly", l, plain("10.5.3.7", "10.5.1.7"), spoofed, 1},
			{"a peer, directly by IPv6", l, plain("2001:cafe:42:3::7", "2001:cafe:42:1::7"), spoofed, 1},
		} {
			before, err := g.counts.read(g.table)
			if err != nil {
				t.Fatal(err)
			}
			read := func() (found, claims uint64) {
				after, _ := g.counts.read(g.table)
				return after[countedBy(test.rule)] - before[countedBy(test.rule)], after[claimed] - before[claimed]
			}
			eventually.True(t, test.what, func() bool {
				test.by.send(test.packet)
				found, _ := read()
				return found > 0
			})
			eventually.Nil(t, test.what, func() error { // a packet may be counted between the two counters
				if found, claims := read(); claims != found*test.claims {
					return fmt.Errorf("of %d packets, %d claim to be a peer's", found, claims)
				}
				return nil
			})
		}
		eventually.True(t, "a description", func() bool { return g.FoundOfPeer(time.Now()) != "" })
	})
}
