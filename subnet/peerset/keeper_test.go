package peerset

import (
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"flannel/internal/test/logtest"
	"flannel/subnet"
)

// recorder is a Keeper with the sets that it has handed over.
type recorder struct {
	*Keeper
	logs *logtest.Log

	mu   sync.Mutex
	sets []subnet.Set
}

// newRecorder returns a Keeper with peers 1 to n.
func newRecorder(n int) *recorder {
	k := &recorder{logs: &logtest.Log{}}
	k.Keeper = NewKeeper(name(0), window, false, k.logs.Logger(), func(s subnet.Set) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.sets = append(k.sets, s)
	})
	var list []Change
	for _, i := range span(1, n) {
		list = append(list, has(lease(i)))
	}
	k.ApplyAll(list, false)
	return k
}

// check checks the last set and the number of sets.
func (k *recorder) check(t *testing.T, when string, sets, leases, retained int) {
	t.Helper()
	synctest.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	if last := k.sets[len(k.sets)-1]; len(k.sets) != sets || len(last.Leases) != leases || len(last.Retained) != retained {
		t.Errorf("%s: %d sets, the last with %d leases, %d retained; want %d, %d, %d", when, len(k.sets), len(last.Leases), len(last.Retained), sets, leases, retained)
	}
}

// Retained peers expire by a timer, without another call. That peers are retained is
// logged once, also if more follow.
func TestKeeperExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newRecorder(10)
		defer k.Close()
		k.check(t, "first list", 1, 10, 0)
		k.Apply(gone(1, 2, 3, 4), false)
		k.check(t, "four withdrawn", 2, 10, 4)
		time.Sleep(time.Minute)
		k.Apply(gone(5), false)
		k.Apply([]Change{has(lease(6))}, false)
		k.check(t, "one more withdrawn", 3, 10, 5)
		time.Sleep(window - time.Minute - time.Nanosecond)
		k.check(t, "just before the expiry", 3, 10, 5)
		time.Sleep(time.Nanosecond)
		k.check(t, "four expired", 4, 6, 1)
		time.Sleep(time.Minute)
		k.check(t, "the fifth expired", 5, 5, 0)
		if k.logs.Count("level=ERROR") != 1 || k.logs.Count("cause="+string(subnet.MassWithdrawal)) != 1 || k.logs.Count() != 2 {
			t.Errorf("the log is:\n%s", k.logs)
		}
		k.Apply(gone(6, 7, 8, 9), false)
		k.check(t, "four more withdrawn", 6, 5, 4)
		if k.logs.Count("level=ERROR") != 2 {
			t.Errorf("the log is:\n%s", k.logs)
		}
	})
}

func TestKeeperAccepts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newRecorder(10)
		k.Apply(gone(span(1, 9)...), false)
		k.SetOwnWithdrawn(true)
		if !k.MassRetained() || !k.Claimed(lease(10)) || k.Claimed(lease(9)) || !k.sets[2].OwnWithdrawn {
			t.Errorf("in force %t; 10 is claimed %t, 9 %t; our own withdrawn %t", k.MassRetained(), k.Claimed(lease(10)), k.Claimed(lease(9)), k.sets[2].OwnWithdrawn)
		}
		k.check(t, "before Accept", 3, 10, 9)
		if count := k.Accept(); count != 9 {
			t.Errorf("Accept removed %d", count)
		}
		k.check(t, "after Accept", 4, 1, 0)
		if count := k.Accept(); count != 0 || k.MassRetained() {
			t.Errorf("the second Accept removed %d; in force %t", count, k.MassRetained())
		}
		k.Apply(gone(10), false)
		k.check(t, "the last peer withdrawn", 5, 0, 0)
		k.Close()
		k.Apply([]Change{has(lease(1))}, false)
		time.Sleep(2 * window)
		k.check(t, "closed", 5, 0, 0)
	})
}

// No set is handed over before the first list; an empty list is one.
func TestKeeperWaitsForTheFirstList(t *testing.T) {
	sets := 0
	k := NewKeeper(name(0), window, false, (&logtest.Log{}).Logger(), func(subnet.Set) { sets++ })
	k.SetOwn(name(1))
	k.SetOwnWithdrawn(true)
	if sets != 0 {
		t.Error("handed over before the first list")
	}
	k.ApplyAll(nil, false)
	k.ApplyAll(nil, false)
	if sets != 1 {
		t.Errorf("%d sets, want one", sets)
	}
}

// A lease that is gone does not stay in memory with the changes that were handed over.
func TestKeeperForgetsChanges(t *testing.T) {
	k := NewKeeper(name(0), 0, false, slog.New(slog.DiscardHandler), func(subnet.Set) {})
	defer k.Close()
	l := lease(1)
	former := weak.Make(l)
	k.ApplyAll([]Change{has(l), has(lease(2))}, false)
	k.Apply(gone(1), false)
	l = nil
	if runtime.GC(); former.Value() != nil {
		t.Error("the lease is in memory")
	}
	runtime.KeepAlive(k)
}

// Peers that came, were retained and are gone leave no memory behind.
func TestKeeperReturnsMemory(t *testing.T) {
	const many = 10_000
	var numbers = span(11, 10+many)
	inUse := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	k := NewKeeper(name(0), window, false, slog.New(slog.DiscardHandler), func(subnet.Set) {})
	defer k.Close()
	k.ApplyAll([]Change{has(lease(1))}, false)
	before := inUse()
	func() {
		var added []Change
		for _, i := range numbers {
			added = append(added, has(lease(i)))
		}
		k.Apply(added, false)
		k.Apply(gone(numbers...), false)
	}()
	if retained := k.Accept(); retained != many {
		t.Fatalf("%d peers were retained, want %d", retained, many)
	}
	if left := inUse() - before; left > 50<<10 {
		t.Errorf("%d bytes are left of %d peers", left, many)
	}
	runtime.KeepAlive(numbers)
}
