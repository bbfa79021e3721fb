package path

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flannel/internal/test/eventually"
	"flannel/internal/test/nstest"
	"flannel/pkg/reconcile"
)

func sh(t *testing.T, script string) {
	t.Helper()
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// awaitLocal is a function of the shell that waits until packets to IPv6 addresses of this host arrive: the kernel adds
// their routes in a work queue.
const awaitLocal = `await_local() { for a; do until ip -6 route show table local | grep -q "^local $a "; do sleep 0.01; done; done; }; `

type received struct {
	from  netip.Addr
	reply bool
	body  string
}

// listener is a Socket that is listened to.
type listener struct {
	*Socket
	arrived chan struct{} // has a value when there may be messages
}

func listen(t *testing.T) listener {
	t.Helper()
	s, err := OpenSocket([4]byte{'T', 'E', 'S', 'T'})
	if err != nil {
		t.Fatal(err)
	}
	l := listener{s, make(chan struct{}, 1)}
	s.Await(func() (more bool) { reconcile.Notify(l.arrived); return false })
	return l
}

// receive waits for that many messages.
func receive(t *testing.T, s listener, count int) (all []received) {
	t.Helper()
	deadline := time.After(time.Minute)
	for len(all) < count {
		from, reply, _, body, ok := s.Receive()
		if ok {
			all = append(all, received{from, reply, string(body)})
			continue
		}
		select {
		case <-s.arrived:
		case <-deadline:
			t.Fatalf("received %v, want %d messages", all, count)
		}
	}
	return all
}

// waitForUp waits until Up gives what is wanted: the kernel changes the state of a
// carrier in a work queue, after the command that causes the change has ended.
func waitForUp(t *testing.T, s *Socket, device string, want bool) {
	t.Helper()
	eventually.True(t, fmt.Sprintf("%s is up: %t", device, want), func() bool { return s.Up(device) == want })
}

func TestSocket(t *testing.T) { nstest.Run(t, testSocket) }

func testSocket(t *testing.T) {
	sh(t, awaitLocal+`ip link add d0 mtu 1400 type veth peer name d1; ip link set d0 up; ip link set d1 up
		ip addr add 10.9.0.1/24 dev d0; ip addr add 10.9.0.7/32 dev d0
		ip -6 addr add fd09::1/64 dev d0 nodad; ip -6 addr add fd09::7/128 dev d0 nodad; await_local fd09::1 fd09::7`)
	s := listen(t)
	for _, family := range [][2]string{{"10.9.0.1", "10.9.0.7"}, {"fd09::1", "fd09::7"}} {
		to, from := netip.MustParseAddr(family[0]), netip.MustParseAddr(family[1])
		// Somebody else's messages do not arrive.
		sh(t, "ping -q -c 2 -i 0.2 "+family[0])
		if err := Echo(t.Context(), netip.Addr{}, to); err != nil {
			t.Fatal(err)
		}
		for _, body := range []string{"TEST odd", "TEST even", "TEST" + string(bytes.Repeat([]byte{1}, 3000))} {
			if err := s.Send(from, to, 0, []byte(body)); err != nil {
				t.Fatal(err)
			}
			got := receive(t, s, 2)
			if got[0] != (received{from, false, body}) || got[1] != (received{to, true, body}) {
				t.Errorf("received %+.200v", got)
			}
		}
		if _, _, _, body, ok := s.Receive(); ok {
			t.Errorf("received %q", body)
		}
		if err := s.Send(to.Next().Next(), to, 0, []byte("TEST")); err == nil {
			t.Errorf("sent from an address that is not of this host")
		}
	}
	// To another host, nothing is fragmented.
	sh(t, `ip neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 dev d0; ip neigh add fd09::2 lladdr 02:00:00:00:00:02 dev d0`)
	for addr, header := range map[string]int{"10.9.0.2": 28, "fd09::2": 48} {
		to := netip.MustParseAddr(addr)
		if err := s.Send(netip.Addr{}, to, 0, make([]byte, 1400-header)); err != nil {
			t.Errorf("a packet of the MTU: %v", err)
		}
		if err := s.Send(netip.Addr{}, to, 0, make([]byte, 1401-header)); !errors.Is(err, unix.EMSGSIZE) {
			t.Errorf("a packet above the MTU: %v", err)
		}
	}
	waitForUp(t, s.Socket, "d0", true)
	if s.Up("none") {
		t.Error("a device that does not exist is up")
	}
	sh(t, "ip link set d1 down")
	waitForUp(t, s.Socket, "d0", false)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Send(netip.Addr{}, netip.MustParseAddr("127.0.0.1"), 0, nil); err == nil {
		t.Errorf("sent after the end")
	}
}

// Who takes one message at a time gets all that have arrived, without another one.
func TestSocketHasMore(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		s, err := OpenSocket([4]byte{'T', 'E', 'S', 'T'})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close() //nolint:errcheck // the test is over
		to := netip.MustParseAddr("127.0.0.1")
		for range 10 {
			if err := s.Send(netip.Addr{}, to, 0, []byte("TEST")); err != nil {
				t.Fatal(err)
			}
		}
		var count atomic.Int64
		s.Await(func() (more bool) {
			_, _, _, _, more = s.Receive()
			if more {
				count.Add(1)
			}
			return more
		})
		eventually.True(t, "requests and answers arrive", func() bool { return count.Load() == 20 })
	})
}

// A flood of messages does not keep the socket from being closed.
func TestSocketClosesDuringFlood(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		sh(t, "ip link set lo up")
		s, err := OpenSocket([4]byte{'T', 'E', 'S', 'T'})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Send(netip.Addr{}, netip.MustParseAddr("127.0.0.1"), 0, []byte("TEST")); err != nil {
			t.Fatal(err)
		}
		var count atomic.Int64
		s.Await(func() (more bool) { count.Add(1); return true })
		eventually.True(t, "there is always one more", func() bool { return count.Load() > 1 })
		closed := make(chan error, 1)
		go func() { closed <- s.Close() }()
		select {
		case err := <-closed:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Error("it is not closed")
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("\x45\x00\x00\x1c0123456789abcdef\x08\x00\x00\x00\x00\x00\x00\x00TEST"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, sender := range []unix.Sockaddr{&unix.SockaddrInet4{}, &unix.SockaddrInet6{}, nil} {
			if _, _, _, body, ok := parse(b, sender); ok && len(body)+headerLen > len(b) {
				t.Errorf("%x: the body is %x", b, body)
			}
		}
	})
}
