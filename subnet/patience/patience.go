// Package patience helps a lease manager to live with a store that does not
// answer, or to which others write: pauses between attempts, a log of outages, and
// the connections to drop.
package patience

import (
	"context"
	"math/rand/v2"
	"time"

	"flannel/pkg/reconcile/runner"
)

// Backoff paces retries: 0.1 s to 2 s, with jitter so that nodes do not retry
// together. The zero Backoff begins with the shortest pause.
type Backoff struct{ Tries int }

// Wait pauses before the next attempt, or until ctx ends.
func (b *Backoff) Wait(ctx context.Context) {
	d := min(100*time.Millisecond<<min(b.Tries, 5), 1600*time.Millisecond)
	b.Tries++
	runner.Pause(ctx, d*3/4+rand.N(d/2))
}

// ConflictBackoff paces how often we restore our lease after someone else changed
// it: immediately the first time, then after growing pauses, because two nodes
// with the same address would otherwise write without end. Peers use a wrong
// lease during each pause, so a pause takes ConflictMax at most. This also limits
// our writes to 8 a minute, and 13 in the first one. The zero ConflictBackoff
// means that there is no conflict.
type ConflictBackoff struct {
	Rounds int // calls of Next since the conflict began
	last   time.Time
}

const (
	// ConflictMax bounds how long our lease stays wrong in each round of a
	// conflict, not counting the write itself.
	ConflictMax = 10 * time.Second
	// ConflictOver is how long nothing must happen for the next change to count
	// as the first.
	ConflictOver = 2 * time.Minute
)

// Next counts a round and returns the pause before it.
func (b *ConflictBackoff) Next(now time.Time) time.Duration {
	if now.Sub(b.last) > ConflictOver {
		b.Rounds = 0
	}
	b.Rounds++
	b.last = now
	if b.Rounds == 1 {
		return 0
	}
	d := min(time.Second<<min(b.Rounds-2, 4), ConflictMax)
	return d*3/4 + rand.N(d/4)
}
