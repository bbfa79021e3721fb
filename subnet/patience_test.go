package subnet

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"flannel/internal/test/logtest"
)

func TestConflictSlowsDown(t *testing.T) {
	var c Conflict
	now := time.Now()
	pause := func(want int) time.Duration {
		due, round := c.Changed(now, rand.N)
		if again, none := c.Changed(now.Add(time.Second), rand.N); round != want || again != due || none != 0 {
			t.Errorf("round %d, want %d; then round %d at %v instead of %v", round, want, none, again, due)
		}
		c.Restored()
		return due.Sub(now)
	}
	for i, longest := range []time.Duration{0, 1, 2, 4, 8, 10, 10, 10} {
		longest *= time.Second
		if d := pause(i + 1); d > longest || d < longest*3/4 {
			t.Errorf("round %d: %v, want up to %v", i, d, longest)
		}
		now = now.Add(longest)
	}
	now = now.Add(conflictOver + time.Second)
	if d := pause(1); d != 0 {
		t.Errorf("after the end of the conflict: %v", d)
	}
}

// Another node overwrites our lease as soon as it is restored, for ten minutes. Each
// time it is wrong for at most ten seconds, and we write at most 13 times in the first
// minute and 8 times in any other.
func TestConflictIsBounded(t *testing.T) {
	var c Conflict
	start := time.Now()
	now := start
	writes := map[int]int{} // by minute
	for now.Sub(start) < 10*time.Minute {
		due, round := c.Changed(now, rand.N)
		if wrong := due.Sub(now); wrong > 10*time.Second {
			t.Fatalf("round %d: wrong for %v", round, wrong)
		}
		now = due
		c.Restored()
		writes[int(now.Sub(start)/time.Minute)]++
	}
	for minute, n := range writes {
		if limit := map[bool]int{true: 13, false: 8}[minute == 0]; n > limit {
			t.Errorf("minute %d: %d writes, want at most %d", minute, n, limit)
		}
	}
}

func TestOutageIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logtest.Log
		o := NewOutage(log.Logger(), "the store")
		check := func(what string, down, up int) {
			t.Helper()
			time.Sleep(2 * logAfter)
			synctest.Wait()
			if d, u := log.Count("cause="+causeSilent), log.Count("cause="+causeBack); d != down || u != up {
				t.Errorf("%s: logged %d and %d times, want %d and %d:\n%s", what, d, u, down, up, &log)
			}
		}
		o.Failed("one", errors.New("no"))
		o.Over("one")
		check("a hiccup", 0, 0)
		for range 10 {
			o.Failed("one", errors.New("no"))
			o.Failed("two", errors.New("no"))
			time.Sleep(logAfter)
		}
		check("an outage", 1, 0)
		if since := time.Since(o.Since()); since != 12*logAfter {
			t.Errorf("the outage began %v ago, want %v", since, 12*logAfter)
		}
		o.Over("one")
		check("half over", 1, 0)
		o.Over("two")
		check("over", 1, 1)
		if !o.Since().IsZero() {
			t.Errorf("an outage that is over began %v", o.Since())
		}
		o.Failed("one", errors.New("no"))
		check("another", 2, 1)
		o.Forget("one")
		check("given up", 2, 1)
	})
}

// An outage that was logged has an end in the log, too, however the last activity that waits ends: when all of them gave up,
// nobody waits for the store, and nothing says that it answers; the next success does.
func TestOutageEndsByForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logtest.Log
		o := NewOutage(log.Logger(), "the store")
		down := func(activity string) {
			o.Failed(activity, errors.New("no"))
			time.Sleep(2 * logAfter)
			synctest.Wait()
		}
		down("one")
		o.Failed("two", errors.New("no"))
		o.Over("two")
		o.Forget("one") // the store has answered to the other
		if log.Count("cause="+causeBack) != 1 || o.Err() != nil {
			t.Errorf("answered, and the last gave up: %v\n%s", o.Err(), &log)
		}
		down("one")
		o.Forget("one")
		if log.Count("cause="+causeBack) != 1 || o.Err() != nil {
			t.Errorf("nobody knows whether it answers: %v\n%s", o.Err(), &log)
		}
		down("two") // the same outage
		if silent := log.Count("cause=" + causeSilent); silent != 2 || o.Err() == nil {
			t.Errorf("two outages are logged %d times, and another activity fails: %v\n%s", silent, o.Err(), &log)
		}
		for _, request := range []string{"read", "read", "write"} { // each refused one is another problem
			o.Forget("two")
			o.Failed("two", refusal{errors.New(request + ": permission denied")})
			time.Sleep(2 * logAfter)
			synctest.Wait()
		}
		if log.Count("cause="+causeRefuses) != 2 {
			t.Errorf("the store refuses two requests:\n%s", &log)
		}
		o.Forget("two")
		down("two") // silence is another problem, too
		if log.Count("cause="+causeSilent) != 3 {
			t.Errorf("the store no longer refuses requests, and is silent:\n%s", &log)
		}
		o.Over("two")
		o.Over("two")
		if log.Count("cause="+causeBack) != 2 {
			t.Errorf("it answers later:\n%s", &log)
		}
	})
}

// A server that is too busy while it shuts down, and then does not answer, is logged as both, but not anew with each change.
func TestBusyThenSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logtest.Log
		o := NewOutage(log.Logger(), "the store")
		for range 3 {
			o.Failed("one", tooMany{errors.New("too many requests")})
			time.Sleep(2 * logAfter)
			synctest.Wait()
			o.Failed("one", errors.New("connection refused"))
			time.Sleep(2 * logAfter)
			synctest.Wait()
		}
		o.Over("one")
		got := strings.Join(log.With().Values("cause"), " ")
		if want := strings.Join([]string{causeBusy, causeSilent, causeBack}, " "); got != want {
			t.Errorf("logged %s, want %s", got, want)
		}
	})
}

type tooMany struct{ error }

func (tooMany) Busy() {}

type refusal struct{ error }

func (refusal) Refused() {}

// What an outage is about is the failure of an activity that still fails.
func TestOutageReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logtest.Log
		o := NewOutage(log.Logger(), "the store")
		o.Failed("silent", errors.New("timeout"))
		o.Failed("refused", refusal{errors.New("permission denied")})
		if o.Err() == nil || !o.Since().IsZero() {
			t.Errorf("%v since %v", o.Err(), o.Since())
		}
		o.Over("refused")
		if err := o.Err(); err == nil || errors.As(err, new(Refusal)) || o.Since().IsZero() {
			t.Errorf("only the silent one fails: %v since %v", err, o.Since())
		}
		o.Forget("silent")
		if o.Err() != nil {
			t.Error(o.Err())
		}
	})
}

// A denial lasts until its own activity succeeds or gives up. It is not logged here, and is not silence.
func TestOutageDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logtest.Log
		o := NewOutage(log.Logger(), "the store")
		shows := func(what string, want error) {
			t.Helper()
			time.Sleep(2 * logAfter)
			synctest.Wait()
			if err := o.Err(); !errors.Is(err, want) || !o.Since().IsZero() {
				t.Errorf("%s: %v since %v, want %v", what, err, o.Since(), want)
			}
		}
		list, watch, write := errors.New("cannot list"), errors.New("cannot watch"), errors.New("cannot write")
		o.Denied("b", list)
		o.Denied("b", watch)
		shows("the last one of an activity", watch)
		o.Over("a")
		shows("another activity succeeds", watch)
		o.Denied("a", write)
		shows("two", write)
		o.Forget("a")
		shows("one gives up", watch)
		if log.Count() != 0 {
			t.Errorf("the caller logs denials:\n%s", &log)
		}
		o.Failed("b", errors.New("timeout"))
		time.Sleep(2 * logAfter)
		synctest.Wait()
		if err := o.Err(); err == nil || errors.Is(err, watch) || o.Since().IsZero() {
			t.Errorf("silent after a denial: %v since %v", err, o.Since())
		}
		o.Denied("b", list)
		shows("denied after the silence", list)
		if log.Count("cause="+causeBack) != 1 {
			t.Errorf("a store that denies a request answers:\n%s", &log)
		}
		o.Over("b")
		shows("all succeeded", nil)
	})
}
