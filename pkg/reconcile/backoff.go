package reconcile

import (
	"math/rand/v2"
	"time"
)

// Backoff is when something that failed may be tried again: after First, then after twice the previous pause, up to
// Last. It belongs to what failed, so that a caller that comes earlier, for whatever reason, gets the error of the last
// try. A Backoff without First and Last never pauses.
//
//	state     cause                       next      action of Do
//	idle      try succeeds                idle      return nil
//	idle      try fails                   failed    the pause is First; return its error
//	failed    before the end of a pause   failed    return the error of the last try
//	failed    later, try fails            failed    the pause is twice as long, up to Last; return its error
//	failed    later, try succeeds         idle      return nil
//	failed    Clear                       idle
type Backoff struct {
	First, Last time.Duration // Last may be less than First, or 0: all pauses are First
	Jitter      bool          // pauses differ by up to a quarter, so that nodes do not try together

	err   error // of the last try; nil: it succeeded, or there was none
	pause time.Duration
	next  time.Time
}

// Do calls try, unless its last call failed and the pause after it is not over.
func (b *Backoff) Do(try func() error) error {
	if !b.Due() {
		return b.err
	}
	err := try()
	if err == nil {
		b.Clear()
	} else {
		b.Fail(err)
	}
	return err
}

// Due reports whether to try now.
func (b *Backoff) Due() bool { return b.err == nil || !time.Now().Before(b.next) }

// Err returns the error of the last try, also if the next one is due.
func (b *Backoff) Err() error { return b.err }

// Next returns when the next try is due; the zero Time if the last one did not fail.
func (b *Backoff) Next() time.Time { return b.next }

// Fail records that a try failed, and returns the pause before the next one.
func (b *Backoff) Fail(err error) time.Duration {
	b.err, b.pause = err, max(b.First, min(2*b.pause, b.Last))
	pause := b.pause
	if b.Jitter {
		pause = pause*3/4 + rand.N(pause/2)
	}
	b.next = time.Now().Add(pause)
	return pause
}

// Clear records a success, or that something else is tried now.
func (b *Backoff) Clear() { b.err, b.pause, b.next = nil, 0, time.Time{} }
