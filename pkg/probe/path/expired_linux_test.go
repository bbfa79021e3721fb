package path

import (
	"net/netip"
	"testing"
	"time"

	"flannel/internal/test/nstest"
)

// expiry waits for a report that the hop limit of a request has ended.
func expiry(t *testing.T, s listener) (from netip.Addr, body string) {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		from, reply, expired, body, ok := s.Receive()
		if ok && expired && !reply {
			return from, string(body)
		}
		if ok {
			t.Errorf("received %q from %s, which is no report", body, from)
			continue
		}
		select {
		case <-s.arrived:
		case <-deadline:
			t.Fatal("nothing is reported")
		}
	}
}

// A router for which a packet has too few hops left reports that, with the body.
func TestExpired(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		sh(t, awaitLocal+`ip netns add router; ip link add d0 type veth peer name d1 netns router; ip link set d0 up
			sysctl -qw net.ipv6.conf.all.accept_dad=0; ip addr add 10.9.0.1/24 dev d0; ip addr add fd09::1/64 dev d0 nodad
			ip -n router link set d1 up; ip -n router addr add 10.9.0.2/24 dev d1; ip -n router addr add fd09::2/64 dev d1 nodad
			ip -n router link add pods type bridge; ip -n router link set pods up
			ip -n router addr add 10.8.0.1/24 dev pods; ip -n router addr add fd08::1/64 dev pods nodad
			ip netns exec router sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
			ip route add 10.8.0.0/24 via 10.9.0.2; ip route add fd08::/64 via fd09::2; await_local fd09::1`)
		s := listen(t)
		defer s.Close() //nolint:errcheck // the test is over
		for pod, router := range map[string]string{"10.8.0.9": "10.9.0.2", "fd08::9": "fd09::2"} {
			const body = "TEST of a packet that a router does not forward, with a body of several words"
			if err := s.Send(netip.Addr{}, netip.MustParseAddr(pod), 1, []byte("somebody else's")); err != nil {
				t.Fatal(err)
			}
			if err := s.Send(netip.Addr{}, netip.MustParseAddr(pod), 1, []byte(body)); err != nil {
				t.Fatal(err)
			}
			if from, got := expiry(t, s); from.String() != router || got != body {
				t.Errorf("to %s: %s reports %q", pod, from, got)
			}
		}
	})
}
