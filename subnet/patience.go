package subnet

// Pause and Conflict, here, and Outage and Conns help a lease manager to live with a store that
// does not answer, or to which others write: pauses between attempts, a log of outages, and
// the connections to drop.

import (
	"context"
	"math/rand/v2"
	"time"

	"flannel/pkg/reconcile"
)

// Pause waits after a try that failed, or until ctx ends: for 0.1 s to 2 s, with jitter so
// that nodes do not try again together. tries is the number of failed tries before it.
func Pause(ctx context.Context, tries int) {
	reconcile.Pause(ctx, DoublePause(100*time.Millisecond, 1600*time.Millisecond, tries))
}

// DoublePause returns the pause after a try that failed: it doubles from low to high with
// tries, the number of failed tries before it. Jitter changes it by up to a quarter.
func DoublePause(low, high time.Duration, tries int) time.Duration {
	d := min(low<<min(tries, 16), high) // 16: more bits could overflow
	return d*3/4 + rand.N(d/2)
}

// Conflict paces how often we restore our lease after someone else changed it, because two
// nodes with the same address would otherwise write without end. heldKey (etcd) and ownNode
// (kube) each have one, guard it with their locks, and do the actions. kube.Manager paces
// likewise how often it follows an operator's annotations.
//
//	state     cause                            action                       next state
//	calm      someone else changes the lease   restore it now               pending
//	pending   someone else changes it again    none: the pause goes on      pending
//	pending   we or others restore it          none                         restored
//	restored  someone else changes it          restore it after a pause     pending
//	restored  nothing happens, see below       none                         calm
//
// Calm returns if nobody changes the lease for conflictOver after pending began. Pauses
// are 1, 2, 4, 8 and then always 10 s, less up to a quarter. Peers use a wrong lease during
// each pause, so a pause takes conflictMax at most. Each Conflict also limits our
// writes to 8 a minute, and 13 in the first one; a caller that sets it to zero begins anew.
// The zero Conflict is calm.
type Conflict struct {
	rounds int       // how often we entered pending since calm
	last   time.Time // when we entered it last
	due    time.Time // when to restore the lease; zero: not pending
}

const (
	// conflictMax bounds how long our lease stays wrong in each round of a
	// conflict, not counting the write itself.
	conflictMax = 10 * time.Second
	// conflictOver is how long nothing must happen for the next change to count
	// as the first.
	conflictOver = 2 * time.Minute
)

// Changed records that the lease is not as it should be, and returns when to restore
// it. round is the number of the round that begins with this call, from 1; 0: the present
// one goes on. The caller logs the first one, and the third as a conflict. random is
// rand.N, or that of a test, which repeats what happened.
func (c *Conflict) Changed(now time.Time, random func(n time.Duration) time.Duration) (due time.Time, round int) {
	if !c.due.IsZero() {
		return c.due, 0
	}
	if now.Sub(c.last) > conflictOver {
		c.rounds = 0
	}
	c.rounds++
	c.last, c.due = now, now
	if c.rounds > 1 {
		d := min(time.Second<<min(c.rounds-2, 4), conflictMax)
		c.due = now.Add(d*3/4 + random(d/4))
	}
	return c.due, c.rounds
}

// Restored records that the lease is as it should be.
func (c *Conflict) Restored() { c.due = time.Time{} }
