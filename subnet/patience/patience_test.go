package patience

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"flannel/pkg/logtest"
)

func TestConflictSlowsDown(t *testing.T) {
	var q ConflictBackoff
	now := time.Now()
	for i, most := range []time.Duration{0, 1, 2, 4, 8, 10, 10, 10} {
		most *= time.Second
		if d := q.Next(now); d > most || d < most*3/4 {
			t.Errorf("round %d: %v, want up to %v", i, d, most)
		}
		now = now.Add(most)
	}
	if d := q.Next(now.Add(ConflictOver + time.Second)); d != 0 {
		t.Errorf("long after: %v", d)
	}
}

// Somebody who overwrites our lease the moment it is restored, for ten minutes: each time it is wrong for ten seconds at
// most, and we write 13 times in the first minute and 8 times in any other.
func TestConflictIsBounded(t *testing.T) {
	var q ConflictBackoff
	start := time.Now()
	now := start
	writes := map[int]int{} // by minute
	for now.Sub(start) < 10*time.Minute {
		wrong := q.Next(now)
		if wrong > 10*time.Second {
			t.Fatalf("round %d: wrong for %v", q.Rounds, wrong)
		}
		now = now.Add(wrong)
		writes[int(now.Sub(start)/time.Minute)]++
	}
	for minute, n := range writes {
		if most := map[bool]int{true: 13, false: 8}[minute == 0]; n > most {
			t.Errorf("minute %d: %d writes, want %d at most", minute, n, most)
		}
	}
}

func TestAnOutageIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logtest.Log
		o := NewOutage(log.Logger(), "the store")
		said := func(what string, down, up int) {
			t.Helper()
			time.Sleep(2 * silence)
			synctest.Wait()
			if d, u := log.Count("cause="+causeSilent), log.Count("cause="+causeBack); d != down || u != up {
				t.Errorf("%s: told %d and %d times, want %d and %d:\n%s", what, d, u, down, up, &log)
			}
		}
		o.Failed("one", errors.New("no"))
		o.Over("one")
		said("a hiccup", 0, 0)
		for range 10 {
			o.Failed("one", errors.New("no"))
			o.Failed("two", errors.New("no"))
			time.Sleep(silence)
		}
		said("an outage", 1, 0)
		o.Over("one")
		said("half over", 1, 0)
		o.Over("two")
		said("over", 1, 1)
		o.Failed("one", errors.New("no"))
		said("another", 2, 1)
		o.Forget("one")
		said("given up", 2, 1)
	})
}
