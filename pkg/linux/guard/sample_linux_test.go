package guard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flannel/internal/test/eventually"
	"flannel/internal/test/logtest"
	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
	"flannel/pkg/linux/rtnetlink"
)

// logging returns a guard and what it logs.
func logging(t *testing.T) (*Guard, *logtest.Log) {
	t.Helper()
	log := &logtest.Log{}
	g, err := New(log.Logger(), "", func() {})
	if err != nil {
		t.Fatal(err)
	}
	return g, log
}

// The log says what a packet is: of a node whose lease is gone and that still probes, or
// forged. The device from which a packet with a peer's address came is named.
func TestSampleIsDescribed(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		g, log := logging(t)
		l := newLink(t)
		c := Config{Outer: overVXLAN}
		former := path("10.5.2.0/24", "192.0.2.2")
		g.Put(dataplane.Want, former)
		g.Put(dataplane.Want, path("10.5.3.0/24", "192.0.2.3"))
		g.Put(dataplane.Drop, former)
		l.apply(g, c)
		for cause, s := range map[string]said{
			causeDeparted: {from: "192.0.2.2", inside: "10.5.2.0"}, causeForged: {from: "192.0.2.2", inside: "10.5.77.1"},
		} {
			l.send(c.outer(s)[0])
			eventually.True(t, cause, func() bool {
				return log.Count("cause="+cause, "from="+s.from, "inside_from="+s.inside, "device=eth0") == 1
			})
		}
		// Between pods, on a wrong way.
		l.send(ipPacket(netip.MustParseAddr("10.5.3.7"), netip.MustParseAddr("10.5.1.7"), 17, make([]byte, 8), 0))
		eventually.True(t, "the device", func() bool { return strings.Contains(g.FoundOfPeer(time.Now()), "device eth0") })
	})
}

// Whatever a program sends to the socket of the samples, further ones are received.
func TestSamplesGoOn(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		g, log := logging(t)
		l := newLink(t)
		c := Config{Outer: overVXLAN}
		l.apply(g, c)
		groups, err := os.ReadFile("/proc/thread-self/net/netfilter/nfnetlink_log")
		var group, port uint32
		if err == nil {
			_, err = fmt.Sscan(string(groups), &group, &port)
		}
		if err != nil {
			t.Fatal(err)
		}
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		refused := rtnetlink.Message(nil).Begin(unix.NLMSG_ERROR, 0, binary.NativeEndian.AppendUint32(nil, math.MaxUint32)) // -EPERM
		for _, message := range []rtnetlink.Message{make([]byte, unix.NLMSG_HDRLEN), finish(refused, 0)} {
			if err := unix.Sendto(fd, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: port}); err != nil {
				t.Fatal(err)
			}
		}
		l.send(c.outer(said{from: "192.0.2.2", inside: "10.5.77.1"})[0])
		eventually.True(t, "the sample", func() bool { return log.Count("cause="+causeForged) == 1 })
	})
}

// While another process has the NFLOG group, the guard works without samples, says so once, and tries again.
func TestGroupIsTaken(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		g, log := logging(t)
		other := newSampler(slog.New(slog.DiscardHandler), func() {})
		if err := other.bind(groupOf(g.table.Name)); err != nil {
			t.Fatal(err)
		}
		l := newLink(t)
		for range 3 {
			l.apply(g, Config{Outer: overVXLAN})
		}
		if !errors.Is(g.retry.Err(), unix.EPERM) || log.Count("level=WARN", "cause="+causeIncomplete) != 1 || log.Count("level=WARN") != 1 {
			t.Errorf("the guard tries again after %v, and has logged\n%s", g.retry.Err(), log)
		}
		if err := other.close(); err != nil {
			t.Fatal(err)
		}
		if l.apply(g, Config{Outer: overVXLAN}); g.retry.Err() != nil {
			t.Errorf("the group is free, and the error is %v", g.retry.Err())
		}
	})
}

// The log has no line that the guard works without samples before its table can be written.
func TestGroupAndTableAreTaken(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		g, log := logging(t)
		other := newSampler(slog.New(slog.DiscardHandler), func() {})
		if err := other.bind(groupOf(g.table.Name)); err != nil {
			t.Fatal(err)
		}
		defer other.close() //nolint:errcheck // not what is tested
		for _, p := range paths {
			g.Put(dataplane.Want, p)
		}
		release := nstest.OwnTable(t, "inet", "flannel-guard", "")
		c := Config{Outer: overVXLAN}
		err := g.Apply(t.Context(), dataplane.Options{}, completed(c), func() ([]string, error) { return nil, nil })
		if !errors.Is(err, unix.EPERM) || log.Count("cause="+causeIncomplete) != 0 {
			t.Errorf("another program owns the table, the error is %v, and the guard has logged\n%s", err, log)
		}
		release()
		g.Relist()
		if (&link{t: t}).apply(g, c); log.Count("cause="+causeIncomplete) != 1 {
			t.Errorf("the guard works without samples, and has logged\n%s", log)
		}
	})
}

// Another process is a reason only for a refusal.
func TestGroupIsNotBound(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		faults := nstest.NewFaults(t)
		for _, errno := range []unix.Errno{unix.EPERM, unix.ENOBUFS} {
			faults.Fail(1, errno)
			err := newSampler(slog.New(slog.DiscardHandler), func() {}).bind(1)
			faults.Fail(0, 0)
			if !errors.Is(err, errno) || strings.Contains(err.Error(), "process") != (errno == unix.EPERM) {
				t.Errorf("%v: the error is %v", errno, err)
			}
		}
	})
}

// A peer whose path is held back for a pass has not departed.
func TestHeldPeerHasNotDeparted(t *testing.T) {
	s := newSampler(slog.New(slog.DiscardHandler), func() {})
	peer := path("10.5.2.0/24", "192.0.2.2")
	p := sample{rule: outsider, from: peer.Via, inner: peer.Dst.Addr().Next()}
	for i, present := range []bool{true, false, true, false} {
		s.put(peer, present)
		if s.isDeparted(p) == present {
			t.Errorf("step %d: it is a peer: %t, and has departed: %t", i, present, present)
		}
	}
}

// The log has a burst of different packets, then one a minute, and the same packet once an hour.
func TestSamplesInLog(t *testing.T) {
	var log logtest.Log
	s := newSampler(log.Logger(), func() {})
	began := time.Now()
	for _, step := range []struct {
		after   time.Duration
		packets int
		want    int // lines until then
	}{
		{0, 2 * maxSampleLog, maxSampleLog},
		{sampleLogRate, 2 * maxSampleLog, maxSampleLog + 1},
		{sampleRepeat - 1, maxSampleLog, maxSampleLog + 1},
		{sampleRepeat, maxSampleLog, 2*maxSampleLog + 1},
	} {
		for i := range step.packets {
			s.report(sample{from: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})}, began.Add(step.after))
		}
		if lines := log.Count(); lines != step.want {
			t.Errorf("after %v: %d lines, want %d", step.after, lines, step.want)
		}
	}
}
