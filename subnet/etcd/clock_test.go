package etcd

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"flannel/internal/test/etcdtest"
	"flannel/internal/test/nettest"
)

// serverClock is an etcd lease on a server whose clock is not ours.
type serverClock struct {
	ahead    time.Duration
	lost     time.Time // when our clock last lost time
	ends     time.Time // by its clock
	asked    int
	renewed  int
	shortest time.Duration
}

const day = 24 * time.Hour

func (s *serverClock) left() time.Duration {
	left := s.ends.Sub(time.Now().Add(s.ahead))
	s.shortest = min(s.shortest, left)
	return max(left, 0)
}

func (s *serverClock) lifetime() lifetime {
	return lifetime{
		remaining: func(ctx context.Context) (left, whole time.Duration, err error) {
			s.asked++
			return s.left(), day, ctx.Err()
		},
		renew: func(ctx context.Context) (time.Duration, error) {
			if s.left() == 0 {
				return 0, ctx.Err()
			}
			s.renewed++
			s.ends = time.Now().Add(s.ahead + day)
			return day, ctx.Err()
		},
		sleep: func(ctx context.Context, d time.Duration) bool {
			// What a machine sleeps through, or its host keeps from it, is time for the server alone; a clock that is
			// slowed down on purpose goes the other way.
			for ; d > 0 && ctx.Err() == nil; d -= time.Minute {
				time.Sleep(min(d, time.Minute))
				switch rand.IntN(120) {
				case 0: // two in a row could be an hour, which is more than anybody promises
					if time.Since(s.lost) > 2*recheckAfter {
						s.lost = time.Now()
						s.ahead += rand.N(40 * time.Minute)
					}
				case 1:
					s.ahead -= rand.N(10 * time.Minute)
				}
			}
			return ctx.Err() == nil
		},
	}
}

// Two months on a machine whose clock loses some hours a day, half an hour at a time: the lease never ends. (The wall
// clock plays no part: Go's timers and etcd's leases do not read it.)
func TestRenewalOverClockJumps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &serverClock{ends: time.Now().Add(day), shortest: day}
		ctx, cancel := context.WithTimeout(t.Context(), 60*day)
		defer cancel()
		if gone := s.lifetime().keep(ctx, time.Hour); gone || s.shortest <= 0 {
			t.Errorf("the lease ended: %v, %v left", gone, s.shortest)
		}
		if s.renewed < 55 || s.renewed > 100 || s.asked > 60*24*4*2 {
			t.Errorf("asked %d times and renewed %d times in 60 days", s.asked, s.renewed)
		}
		t.Logf("our clock lost %v; asked %d times, renewed %d times, never less than %v left", s.ahead.Round(time.Minute), s.asked, s.renewed, s.shortest.Round(time.Minute))
	})
}

// An etcd that stalls again and again, as one on a slow disk does, far away: the lease is renewed in between.
func TestRenewalAcrossASlowEtcd(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	st := outside(t, srv)
	proxy := nettest.NewProxy(t, srv.Addr(), 300*time.Millisecond)
	n := start(t, "http://"+proxy.Addr(), short)
	l := n.publish(at("192.168.64.3"), mac1)
	raw, id := st.value(l.Name)
	n.Run()
	n.Sees("")
	for renewals, before := 0, st.left(id); renewals < 3; { // the lease would have ended meanwhile
		srv.Pause()
		time.Sleep(3 * time.Second)
		srv.Resume()
		time.Sleep(1500 * time.Millisecond)
		if now, on := st.value(l.Name); now != raw || on != id {
			t.Fatalf("the key was %s on %x and is %q on %x", raw, id, now, on)
		}
		left := st.left(id)
		if left > before {
			renewals++
		}
		before = left
	}
	n.notLost()
	if c := st.etcdLeases(); c != 1 {
		t.Errorf("%d etcd leases, want 1", c)
	}
}
