package path

import (
	"context"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"flannel/internal/test/nstest"
)

func TestEcho(t *testing.T) { nstest.Run(t, testEcho) }

func testEcho(t *testing.T) {
	const setup = awaitLocal + `ip link set lo up; ip link add d0 type veth peer name d1; ip link set d0 up; ip link set d1 up
		ip addr add 10.9.0.1/24 dev d0; ip -6 addr add fd09::1/64 dev d0 nodad; await_local fd09::1`
	if out, err := exec.Command("sh", "-ec", setup).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, addr := range []string{"127.0.0.1", "10.9.0.1", "::1", "fd09::1"} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if err := Echo(ctx, netip.Addr{}, netip.MustParseAddr(addr)); err != nil {
			t.Errorf("%s: %v", addr, err)
		}
		cancel()
	}
	for _, addr := range []string{"10.9.0.2", "fd09::2", "10.10.0.1"} { // no host, no host, no route
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond) // nobody answers
		if err := Echo(ctx, netip.Addr{}, netip.MustParseAddr(addr)); err == nil {
			t.Errorf("%s answers", addr)
		}
		cancel()
	}
	// The source is the one that was given, and must be of this host.
	for from, to := range map[string]string{"10.9.0.1": "127.0.0.1", "fd09::1": "::1"} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if err := Echo(ctx, netip.MustParseAddr(from), netip.MustParseAddr(to)); err != nil {
			t.Errorf("from %s: %v", from, err)
		}
		cancel()
	}
	for from, to := range map[string]string{"10.9.0.3": "10.9.0.1", "fd09::3": "fd09::1"} {
		if err := Echo(t.Context(), netip.MustParseAddr(from), netip.MustParseAddr(to)); err == nil {
			t.Errorf("sent from %s, which this host does not have", from)
		}
	}
}
