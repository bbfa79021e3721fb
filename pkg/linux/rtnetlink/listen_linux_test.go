package rtnetlink

import (
	"errors"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flannel/internal/test/nstest"
)

// A Listener says that notifications were lost, and receives those that follow. It closes while it waits.
func TestListener(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		sh := func(script string) {
			t.Helper()
			if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", script, err, out)
			}
		}
		heard, release, lost := make(chan uint16, 1<<16), make(chan struct{}), make(chan error, 1<<16)
		l, err := Listen(Notifications{Protocol: unix.NETLINK_ROUTE, Groups: []int{unix.RTNLGRP_LINK, 1 << 10},
			Each: func(h Header, _ []byte) error { heard <- h.Kind; <-release; return nil },
			Lost: func(err error) { lost <- err }})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.SetBuffer(1); err != nil { // the kernel's minimum
			t.Fatal(err)
		}
		wait := func(what string, got func() bool) {
			t.Helper()
			for end := time.After(2 * time.Minute); !got(); {
				select {
				case <-end:
					t.Fatal("not told of " + what)
				case <-time.After(time.Millisecond):
				}
			}
		}
		sh("ip link add far type veth peer name eth0; for i in $(seq 50); do ip link set eth0 mtu $((1300 + i)); done")
		close(release)
		wait("the loss", func() bool { return len(lost) > 0 })
		if err := <-lost; !errors.Is(err, unix.ENOBUFS) {
			t.Errorf("lost: %v", err)
		}
		if err := l.SetBuffer(receiveBytes); err != nil {
			t.Fatal(err)
		}
		wait("a deletion after it", func() bool { // one at once may be lost, too
			sh("ip link add eth1 type veth peer name far1; ip link del eth1")
			for len(heard) > 0 {
				if <-heard == unix.RTM_DELLINK {
					return true
				}
			}
			return false
		})
		closed := make(chan error, 1)
		go func() { closed <- l.Close() }()
		select {
		case err := <-closed:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(2 * time.Minute):
			t.Fatal("closing waits for a notification")
		}
	})
}
