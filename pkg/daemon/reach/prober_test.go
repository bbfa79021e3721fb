package reach

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"flannel/internal/test/logtest"
	"flannel/pkg/status"
)

// wire is a Conn to peers that answer.
type wire struct {
	cut     bool
	refuses error
	down    bool // the underlay
	sent    int
	sentAt  []time.Time
	waiting []packet
	arrived func() bool
}

func (w *wire) Send(from, to netip.Addr, hops int, body []byte) error {
	if w.refuses != nil {
		return w.refuses
	}
	w.sent++
	w.sentAt = append(w.sentAt, time.Now())
	if !w.cut {
		w.waiting = append(w.waiting, packet{from: to, answer: hops == 0, expired: hops > 0, body: slices.Clone(body)})
		go w.arrived() // Send is called with the Prober's lock held
	}
	return nil
}

func (w *wire) Receive() (netip.Addr, bool, bool, []byte, bool) {
	if len(w.waiting) == 0 {
		return netip.Addr{}, false, false, nil, false
	}
	p := w.waiting[0]
	w.waiting = w.waiting[1:]
	return p.from, p.answer, p.expired, p.body, true
}

func (w *wire) Await(arrived func() bool) { w.arrived = arrived }
func (w *wire) Up(string) bool            { return !w.down }

func TestProber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &logtest.Log{}
		conn := &wire{}
		answers := 0
		var lasted []string
		p := New(conn, Options{Log: log.Logger(), RTT: func(time.Duration) { answers++ }})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			done <- p.Run(ctx, func(names []string) { lasted = append(lasted, strings.Join(names, " ")) })
		}()
		w := newWorld(t, 41, false)
		n := w.network(w.nodes[0], Tunnels)
		n.Link = "eth0"
		p.Update(n)
		state := func() map[status.ReachState]int {
			synctest.Wait()
			return p.Summary().Peers
		}
		// What Run uses, it uses with the lock.
		locked := func(f func()) {
			p.mu.Lock()
			defer p.mu.Unlock()
			f()
		}
		time.Sleep(100 * time.Second)
		s := state()
		locked(func() {
			if s[status.Reachable] != 40 || answers == 0 {
				t.Errorf("after 100 seconds: %v, %d answers", s, answers)
			}
			if conn.sent < 80 || conn.sent > 120 {
				t.Errorf("%d packets were sent in 100 seconds", conn.sent)
			}
			conn.down = true
		})
		time.Sleep(time.Minute)
		if s := state(); s[status.UnknownReach] != 40 {
			t.Errorf("the underlay is down: %v", s)
		}
		locked(func() { conn.down = false })
		time.Sleep(30 * time.Second)
		locked(func() { conn.refuses = errors.New("refused") })
		time.Sleep(time.Minute)
		if s := state(); s[status.Reachable] != 40 {
			t.Errorf("nothing can be sent: %v", s)
		}
		if log.Count() > 0 {
			t.Errorf("logged: %v", log)
		}
		locked(func() { conn.refuses, conn.cut = nil, true })
		time.Sleep(20 * time.Minute)
		if s := state(); s[status.Unreachable] != 40 {
			t.Errorf("after the outage: %v", s)
		}
		if lines := log.Count(); lines < maxLines || lines > 45 {
			t.Errorf("%d lines about 40 peers", lines)
		}
		locked(func() {
			if len(lasted) == 0 || len(strings.Fields(lasted[len(lasted)-1])) != 40 {
				t.Errorf("lasting: %v", lasted)
			}
			conn.cut = false
		})
		time.Sleep(5 * time.Minute)
		s = state()
		locked(func() {
			if s[status.Reachable] != 40 || lasted[len(lasted)-1] != "" {
				t.Errorf("after its end: %v, lasting: %v", s, lasted)
			}
			conn.refuses = &net.OpError{Op: "write", Err: os.NewSyscallError("sendto", syscall.EHOSTUNREACH)}
		})
		time.Sleep(20 * time.Minute)
		if s := state(); s[status.Unreachable] != 40 {
			t.Errorf("there is no route: %v", s)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Among many peers, requests are sent by two, until one of them is not answered.
func TestPairs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &logtest.Log{}
		conn := &wire{}
		p := New(conn, Options{Log: log.Logger(), RTT: func(time.Duration) {}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.Run(ctx, func([]string) {}) }()
		w := newWorld(t, manyTargets+1, false)
		p.Update(w.network(w.nodes[0], Tunnels))
		// inSeconds returns how many requests are sent in the next seconds, and in how many moments.
		inSeconds := func(n int) (requests, moments int) {
			p.mu.Lock()
			conn.sentAt = nil
			p.mu.Unlock()
			time.Sleep(time.Duration(n) * time.Second)
			synctest.Wait()
			p.mu.Lock()
			defer p.mu.Unlock()
			return len(conn.sentAt), len(slices.Compact(slices.Clone(conn.sentAt)))
		}
		time.Sleep(5 * time.Second)
		if requests, moments := inSeconds(20); requests != 20 || moments != 10 {
			t.Errorf("%d requests in %d moments, want 20 in 10", requests, moments)
		}
		p.mu.Lock()
		conn.cut = true
		p.mu.Unlock()
		time.Sleep(6 * time.Second)
		if requests, moments := inSeconds(20); requests != 20 || moments != 20 {
			t.Errorf("with suspects, %d requests in %d moments, want 20 in 20", requests, moments)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A sender without pauses keeps a Prober from nothing else, and all that it sends is taken.
func TestFlood(t *testing.T) {
	conn := &wire{waiting: make([]packet, 2*maxReceived+1)}
	p := New(conn, Options{Log: (&logtest.Log{}).Logger(), RTT: func(time.Duration) {}})
	for _, want := range []int{maxReceived + 1, 1, 0} {
		if more := p.receive(); more != (want > 0) || len(conn.waiting) != want {
			t.Errorf("%d messages are left, want %d; there may be more: %t", len(conn.waiting), want, more)
		}
	}
}
