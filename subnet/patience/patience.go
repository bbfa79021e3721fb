// Package patience is what every lease manager needs to live with a store that is away, or that another hand writes to:
// pauses between tries, and telling of an outage once.
package patience

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff paces retries: 0.1 s to 2 s, with jitter so that nodes do not come in step. The zero Backoff is fresh.
type Backoff struct{ Tries int }

// Wait pauses before the next try, or until ctx ends.
func (b *Backoff) Wait(ctx context.Context) {
	d := min(100*time.Millisecond<<min(b.Tries, 5), 1600*time.Millisecond)
	b.Tries++
	Pause(ctx, d*3/4+rand.N(d/2))
}

// Pause waits for d, or until ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// Quarrel paces how often we restore our lease after somebody else changed it: at once at first, then after growing
// pauses, because two nodes with the same address would otherwise do nothing but write. While the conflict lasts,
// peers use a wrong lease during each pause, so a pause takes ConflictMax at most; that also bounds the writes, to 8 a
// minute (13 in the first one). The zero Quarrel is over.
type Quarrel struct {
	Rounds int // so far
	last   time.Time
}

const (
	// ConflictMax bounds how long our lease stays wrong in each round of a conflict, the write itself not included.
	ConflictMax = 10 * time.Second
	// QuarrelOver is how long nothing must happen for the next change to count as the first.
	QuarrelOver = 2 * time.Minute
)

// Next is the pause before the next round.
func (q *Quarrel) Next(now time.Time) time.Duration {
	if now.Sub(q.last) > QuarrelOver {
		q.Rounds = 0
	}
	q.Rounds++
	q.last = now
	if q.Rounds == 1 {
		return 0
	}
	d := min(time.Second<<min(q.Rounds-2, 4), ConflictMax)
	return d*3/4 + rand.N(d/4)
}
