package guard

import (
	"errors"
	"time"
)

// The pauses before retries. An error may be permanent, such as that the kernel cannot
// do what a rule needs.
const (
	firstRetry = time.Second
	lastRetry  = 5 * time.Minute
	// repeatLog is after what time a warning is repeated that the guard works, but reports not all.
	repeatLog = time.Hour
)

// setDue has notify called when Apply is to be called again: after a pause if it or Prune
// failed, and when a trial looks again. What fails before the end of the pause does not begin
// another one. All that the guard retries has this one pause, since Apply does all of it: what
// fails for good, such as the binding of the sampler, makes other retries rare, too, until the
// guard is turned off.
func (g *Guard) setDue() {
	if err := errors.Join(g.unapplied, g.unpruned); err == nil {
		g.retry.Clear()
	} else if g.retry.Due() {
		g.retry.Fail(err)
	}
	next := g.trial.look
	if at := g.retry.Next(); !at.IsZero() && (next.IsZero() || at.Before(next)) {
		next = at
	}
	if g.due.Stop(); !next.IsZero() {
		g.due.Reset(time.Until(next))
	}
}
