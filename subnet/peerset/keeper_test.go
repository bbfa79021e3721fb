package peerset

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"flannel/pkg/logtest"
	"flannel/subnet"
)

// told is a Keeper and what it has handed on.
type told struct {
	*Keeper
	logs *logtest.Log

	mu   sync.Mutex
	sets []subnet.Set
}

func keeper(peers int) *told {
	k := &told{logs: &logtest.Log{}}
	k.Keeper = NewKeeper(name(0), window, k.logs.Logger(), func(s subnet.Set) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.sets = append(k.sets, s)
	})
	var all []Change
	for _, i := range span(1, peers) {
		all = append(all, has(lease(i)))
	}
	k.ApplyAll(all, false)
	return k
}

// is checks the last set, and how many there were.
func (k *told) is(t *testing.T, when string, sets, leases, retained int) {
	t.Helper()
	synctest.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	if last := k.sets[len(k.sets)-1]; len(k.sets) != sets || len(last.Leases) != leases || len(last.Retained) != retained {
		t.Errorf("%s: %d sets, the last with %d leases, %d retained; want %d, %d, %d", when, len(k.sets), len(last.Leases), len(last.Retained), sets, leases, retained)
	}
}

// Nothing else needs to happen for the time of retained peers to end; an episode is logged once.
func TestKeeperEndsTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := keeper(10)
		defer k.Close()
		k.is(t, "at first", 1, 10, 0)
		k.Apply(gone(1, 2, 3, 4), false)
		k.is(t, "many go", 2, 10, 4)
		time.Sleep(time.Minute)
		k.Apply(gone(5), false)
		k.Apply([]Change{has(lease(6))}, false)
		k.is(t, "one more", 3, 10, 5)
		time.Sleep(window - time.Minute - time.Nanosecond)
		k.is(t, "just before their time is over", 3, 10, 5)
		time.Sleep(time.Nanosecond)
		k.is(t, "over", 4, 6, 1)
		time.Sleep(time.Minute)
		k.is(t, "for the last, too", 5, 5, 0)
		if k.logs.Count("level=ERROR") != 1 || k.logs.Count("cause="+string(subnet.MassWithdrawal)) != 1 || k.logs.Count() != 2 {
			t.Errorf("it logs:\n%s", k.logs)
		}
		k.Apply(gone(6, 7, 8, 9), false)
		k.is(t, "another episode", 6, 5, 4)
		if k.logs.Count("level=ERROR") != 2 {
			t.Errorf("it logs:\n%s", k.logs)
		}
	})
}

func TestKeeperAccepts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := keeper(10)
		k.Apply(gone(span(1, 9)...), false)
		k.SetOwnWithdrawn(true)
		if !k.InForce() || !k.Claimed(lease(10)) || k.Claimed(lease(9)) || !k.sets[2].OwnWithdrawn {
			t.Errorf("in force %t; 10 is claimed %t, 9 %t; our own withdrawn %t", k.InForce(), k.Claimed(lease(10)), k.Claimed(lease(9)), k.sets[2].OwnWithdrawn)
		}
		k.is(t, "before", 3, 10, 9)
		if count := k.Accept(); count != 9 {
			t.Errorf("%d were let go", count)
		}
		k.is(t, "after", 4, 1, 0)
		if count := k.Accept(); count != 0 || k.InForce() {
			t.Errorf("%d were let go the second time; in force %t", count, k.InForce())
		}
		k.Apply(gone(10), false)
		k.is(t, "the last", 5, 0, 0)
		k.Close()
		k.Apply([]Change{has(lease(1))}, false)
		time.Sleep(2 * window)
		k.is(t, "closed", 5, 0, 0)
	})
}

// Before the first list there is nothing to hand on, and an empty one is.
func TestKeeperWaitsForTheFirstList(t *testing.T) {
	sets := 0
	k := NewKeeper(name(0), window, (&logtest.Log{}).Logger(), func(subnet.Set) { sets++ })
	k.SetOwn(name(1))
	k.SetOwnWithdrawn(true)
	if sets != 0 {
		t.Error("handed on before the first list")
	}
	k.ApplyAll(nil, false)
	k.ApplyAll(nil, false)
	if sets != 1 {
		t.Errorf("%d sets, want one", sets)
	}
}
