package rtnetlink

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flannel/internal/test/eventually"
	"flannel/internal/test/logtest"
	"flannel/internal/test/nstest"
)

func sh(t *testing.T, script string) {
	t.Helper()
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", script, err, out)
	}
}

// A change that is made during Lost is received, or Lost is called again.
func TestListenerLoses(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		var lost, deleted atomic.Int64
		full := make(chan struct{})                                                                                        // closed when more was sent than the buffer holds
		l, err := Listen(Notifications{Protocol: unix.NETLINK_ROUTE, Groups: []int{unix.RTNLGRP_LINK, 1 << 10}, Buffer: 1, // the kernel's minimum
			Each: func(h Header, _ []byte) error {
				<-full
				if h.Kind == unix.RTM_DELLINK {
					deleted.Add(1)
				}
				return nil
			},
			Lost: func(err error) {
				<-full
				if !errors.Is(err, unix.ENOBUFS) {
					t.Errorf("lost: %v", err)
				}
				if lost.Add(1) == 1 {
					sh(t, "ip link del eth0")
				}
			}})
		if err != nil {
			t.Fatal(err)
		}
		sh(t, "ip link add far type veth peer name eth0; for i in $(seq 50); do ip link set eth0 mtu $((1300 + i)); done")
		close(full)
		eventually.True(t, "the loss is reported", func() bool { return lost.Load() > 0 })
		eventually.True(t, "the deletion is received or lost", func() bool { return deleted.Load() > 0 || lost.Load() > 1 })
		closes(t, l)
	})
}

// closes closes a Listener, which may wait for a notification.
func closes(t *testing.T, l *Listener) {
	t.Helper()
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
}

// A socket that fails calls Lost each time, with growing pauses, and logs once. Once it works, notifications are received
// again.
func TestListenerFails(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		var lost, received atomic.Int64
		var log logtest.Log
		var at [5]time.Time // of the first calls of Lost
		l, err := Listen(Notifications{Protocol: unix.NETLINK_ROUTE, Groups: []int{unix.RTNLGRP_LINK}, Log: log.Logger(),
			Each: func(Header, []byte) error { received.Add(1); return nil },
			Lost: func(err error) {
				if !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("lost: %v", err)
				}
				if n := lost.Load(); n < int64(len(at)) {
					at[n] = time.Now()
				}
				lost.Add(1)
			}})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.file.SetReadDeadline(time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		eventually.True(t, "Lost is called again and again", func() bool { return lost.Load() >= int64(len(at)) })
		for i, pause := 1, firstLossPause; i < len(at); i, pause = i+1, 2*pause {
			if took := at[i].Sub(at[i-1]); took < pause {
				t.Errorf("pause %d takes %v, want %v", i, took, pause)
			}
		}
		if n := log.Count("level=WARN"); n != 1 {
			t.Errorf("logged %d times:\n%s", n, log.String())
		}
		if err := l.file.SetReadDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		sh(t, "ip link add eth1 type veth peer name far1")
		eventually.True(t, "a notification is received", func() bool { return received.Load() > 0 })
		closes(t, l)
	})
}

// Messages that are not understood call Lost each time, but the pauses do not grow: the socket works, and what each of them
// is about has changed.
func TestListenerDoesNotUnderstand(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		var at [10]time.Time // of the first calls of Lost
		var lost atomic.Int64
		unknown := errors.New("unknown message")
		change := func() { sh(t, fmt.Sprint("ip link set lo mtu ", 1400+lost.Load())) }
		l, err := Listen(Notifications{Protocol: unix.NETLINK_ROUTE, Groups: []int{unix.RTNLGRP_LINK},
			Each: func(Header, []byte) error { return unknown },
			Lost: func(err error) {
				if !errors.Is(err, unknown) {
					t.Errorf("lost: %v", err)
				}
				if n := lost.Load(); n < int64(len(at)) {
					at[n] = time.Now()
					lost.Add(1)
					change()
				}
			}})
		if err != nil {
			t.Fatal(err)
		}
		change()
		eventually.True(t, "Lost is called for each message", func() bool { return lost.Load() == int64(len(at)) })
		// Growing ones would all have the longest duration by the seventh. A busy machine makes some of them long.
		shortest := lastLossPause
		for i := 7; i < len(at); i++ {
			shortest = min(shortest, at[i].Sub(at[i-1]))
		}
		if shortest >= lastLossPause {
			t.Errorf("the last pauses take %v and more: they grow", shortest)
		}
		closes(t, l)
	})
}

// Without any group that the kernel has, nothing would ever be received.
func TestListenToUnknownGroups(t *testing.T) {
	_, err := Listen(Notifications{Protocol: unix.NETLINK_ROUTE, Groups: []int{1 << 10, 1 << 11}})
	if !errors.Is(err, unix.EINVAL) {
		t.Errorf("listening to unknown groups: %v", err)
	}
}
