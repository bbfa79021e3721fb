package patience

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// logAfter is how long an outage lasts before it is logged, so that the restart of
// a store is not.
const logAfter = time.Second

// Causes in the log.
const (
	causeSilent  = "store-silent"
	causeRefuses = "store-refuses"
	causeBack    = "store-back"
)

// Outage logs once that a store does not answer, and once that it answers again,
// for all activities that use the store.
type Outage struct {
	log   *slog.Logger
	store string

	mu      sync.Mutex
	failing map[string]bool // the activities that retry
	since   time.Time       // when the outage began
	reason  error           // of the last failure
	timer   *time.Timer     // logs the outage after logAfter; nil: there is no outage
	number  int             // of the outage, so that a late timer of an earlier one logs nothing
	logged  bool            // the outage was logged, so its end will be
}

// NewOutage returns the Outage of a store, whose name is used in the log.
func NewOutage(log *slog.Logger, store string) *Outage {
	return &Outage{log: log, store: store, failing: map[string]bool{}}
}

// Failed records that an activity failed and will retry.
func (o *Outage) Failed(activity string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failing[activity], o.reason = true, err
	if o.timer == nil {
		o.since = time.Now()
		o.number++
		number := o.number
		o.timer = time.AfterFunc(logAfter, func() { o.logOutage(number) })
	}
}

func (o *Outage) logOutage(number int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.timer != nil && o.number == number {
		o.logged = true
		text, cause := classify(o.reason)
		o.log.Warn(o.store+" "+text+", retrying; the network stays as it is", "cause", cause, "error", o.reason)
	}
}

// Err returns why the store does not answer, nil if it does.
func (o *Outage) Err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.timer == nil {
		return nil
	}
	text, _ := classify(o.reason)
	return fmt.Errorf("%s %s: %w", o.store, text, o.reason)
}

// Since returns since when the store does not answer, the zero Time if it does, also
// with a refusal.
func (o *Outage) Since() time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.timer == nil {
		return time.Time{}
	}
	if _, cause := classify(o.reason); cause == causeRefuses {
		return time.Time{}
	}
	return o.since
}

// Refusal is the error of a store that answers and denies the request.
type Refusal interface {
	error
	Refused()
}

// classify returns what the store does, as a text and as a cause in the log.
func classify(reason error) (text, cause string) {
	if _, refused := errors.AsType[Refusal](reason); refused {
		return "refuses a request", causeRefuses
	}
	return "does not answer", causeSilent
}

// Over records that an activity succeeded.
func (o *Outage) Over(activity string) { o.end(activity, true) }

// Forget records that an activity ended, and no longer waits for the store.
func (o *Outage) Forget(activity string) { o.end(activity, false) }

func (o *Outage) end(activity string, succeeded bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.failing, activity)
	if o.timer == nil || len(o.failing) > 0 {
		return
	}
	o.timer.Stop()
	if o.logged && succeeded {
		o.log.Info(o.store+" answers again", "cause", causeBack, "after", time.Since(o.since).Round(100*time.Millisecond))
	}
	o.timer, o.logged = nil, false
}
