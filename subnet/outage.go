package subnet

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"
)

// logAfter is how long an outage lasts before it is logged, so that the restart of
// a store is not.
const logAfter = time.Second

// Causes in the log.
const (
	causeSilent  = "store-silent"
	causeBusy    = "store-busy"
	causeRefuses = "store-refuses"
	causeBack    = "store-back"
)

// Outage logs once that a store does not answer, and once that it answers again, for
// all activities that use the store. An activity is the name of what one goroutine asks
// the store for, again and again until it succeeds, such as "publish our lease". The
// lease managers record what happens by Failed, Denied, Over and Forget. The Board, which
// renders /readyz and the status, asks Err and Since. An Outage is safe for concurrent use.
//
//	state    cause                                                     action                next state
//	calm     an activity fails                                         start the timer       failing
//	failing  the timer fires                                           log it, see below     failing, owed
//	failing  it was logged as busy, and a request is not answered      log that, too         failing, owed
//	failing  the last failing activity succeeds                        log the end if owed   calm
//	failing  it gives up, and another has succeeded since a failure    log the end if owed   calm
//	failing  it gives up, and nobody knows whether the store answers   -                     calm, maybe owed
//	calm     an activity succeeds                                      log the end if owed   calm
//
// In the state failing, timer is not nil; owed means that the field logged is set: the
// outage was logged, and its end must be. An outage that goes on after all activities gave up
// is logged again only if its problem is another one: silent, busy, or the text of the refusal.
// "Gives up" is Forget. "Succeeds" is Over, and also Denied, since the store has answered.
type Outage struct {
	log   *slog.Logger
	store string

	mu       sync.Mutex
	failing  map[string]error // the last failures of the activities that retry, by their names
	last     string           // the one of them that failed last; meaningless while there are none
	answered bool             // an activity has succeeded since the last failure
	since    time.Time        // when the outage began; meaningless in calm, unless owed
	timer    *time.Timer      // logs the outage after logAfter; nil: no activity is failing
	number   int              // of the outage, so that a late timer of an earlier one logs nothing
	logged   string           // causeSilent, causeBusy or the text of a refusal, whichever was logged last; "": none, or its end was, too

	denied map[string]error // the last denials of activities, until these succeed or give up: see Denied
}

// NewOutage returns the Outage of a store, whose name is used in the log.
func NewOutage(log *slog.Logger, store string) *Outage {
	return &Outage{log: log, store: store, failing: map[string]error{}, denied: map[string]error{}}
}

// Failed records that an activity failed and will retry.
func (o *Outage) Failed(activity string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failing[activity], o.last, o.answered = err, activity, false
	if o.timer == nil {
		if o.logged == "" {
			o.since = time.Now() // else this outage is the former one, which goes on
		}
		o.number++
		number := o.number
		o.timer = time.AfterFunc(logAfter, func() { o.logOutage(number) })
	} else if _, cause := classify(err); cause == causeSilent && o.logged == causeBusy {
		o.logReason() // a server that shuts down may be busy first; not the reverse, so that two lines are the most
	}
}

// Denied records that the store answered an activity by denying its request, that the
// activity will retry, and that the caller logs this itself. Only Err shows the denial.
func (o *Outage) Denied(activity string, err error) { o.end(activity, true, err) }

// logOutage logs the outage with this number, unless it has ended. A timer calls it.
func (o *Outage) logOutage(number int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.timer != nil && o.number == number {
		o.logReason()
	}
}

// logReason logs the last failure, unless its problem is the one that was logged last. It has the preconditions of reason.
func (o *Outage) logReason() {
	reason := o.reason()
	text, cause := classify(reason)
	problem := cause
	if cause == causeRefuses {
		problem = reason.Error() // each refused request needs another permission
	}
	if problem != o.logged {
		o.logged = problem
		o.log.Warn(o.store+" "+text+", retrying; the network stays as it is", "cause", cause, "error", reason)
	}
}

// reason returns the last failure of an activity that still fails; mu must be held, and
// an activity be failing.
func (o *Outage) reason() error { return o.failing[o.last] }

// Err returns why the store does not answer, or which request it refuses; nil: neither. A
// store that is too busy for a request does not answer it.
func (o *Outage) Err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.timer != nil:
		text, _ := classify(o.reason())
		return fmt.Errorf("%s %s: %w", o.store, text, o.reason())
	case len(o.denied) > 0:
		return fmt.Errorf("%s %s: %w", o.store, textRefuses, o.denied[firstName(o.denied)])
	}
	return nil
}

// Since returns since when the store does not answer, or is too busy; otherwise, also with
// a refusal, the zero Time.
func (o *Outage) Since() time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.timer == nil {
		return time.Time{}
	}
	if _, cause := classify(o.reason()); cause == causeRefuses {
		return time.Time{}
	}
	return o.since
}

// Refusal is the error of a store that answers and denies the request. It may be wrapped.
type Refusal interface {
	error
	Refused() // does nothing: it only marks the type
}

// busy is the error of a store that answers that it has too many requests. It may be wrapped.
type busy interface {
	error
	Busy() // does nothing: it only marks the type
}

// textRefuses is what a store does that answers with a refusal.
const textRefuses = "refuses a request"

// classify returns what the store does, as a text and as a cause in the log.
func classify(reason error) (text, cause string) {
	if _, refused := errors.AsType[Refusal](reason); refused {
		return textRefuses, causeRefuses
	}
	if _, tooMany := errors.AsType[busy](reason); tooMany {
		return "has too many requests", causeBusy
	}
	return "does not answer", causeSilent
}

// Over records that an activity succeeded.
func (o *Outage) Over(activity string) { o.end(activity, true, nil) }

// Forget records that an activity ended, and no longer waits for the store.
func (o *Outage) Forget(activity string) { o.end(activity, false, nil) }

// end records the end of an activity, which need not have failed, or its denial.
func (o *Outage) end(activity string, answered bool, denial error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.answered = o.answered || answered
	delete(o.failing, activity)
	delete(o.denied, activity)
	if denial != nil {
		o.denied[activity] = denial
	}
	if len(o.failing) > 0 {
		if o.last == activity { // the order in which the others failed is not known
			o.last = firstName(o.failing)
		}
		return
	}
	if o.timer != nil {
		o.timer.Stop()
		o.timer = nil
	}
	if o.logged != "" && o.answered {
		o.log.Info(o.store+" answers again", "cause", causeBack, "after", time.Since(o.since).Round(100*time.Millisecond))
		o.logged = ""
	}
}

// firstName returns the first name in the alphabet, so that nothing depends on the order of
// a map. There must be one.
func firstName(activities map[string]error) string {
	return slices.Min(slices.Collect(maps.Keys(activities)))
}
