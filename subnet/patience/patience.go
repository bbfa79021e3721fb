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

// Quarrel paces how often we undo what another hand does to our lease: at once at first, then ever more slowly, for
// two nodes that hold each other's lease for their own would else do nothing but write. The zero Quarrel is over.
type Quarrel struct {
	Rounds int // so far
	last   time.Time
}

const (
	quarrelMax = time.Minute
	// QuarrelOver is how long nothing must happen for the next change to count as the first.
	QuarrelOver = 2 * quarrelMax
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
	d := min(time.Second<<min(q.Rounds-2, 6), quarrelMax)
	return d*3/4 + rand.N(d/4)
}
