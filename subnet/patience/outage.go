package patience

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// silence is how long a store may be away without a word in the log: a member that restarts is no outage.
const silence = time.Second

// Causes in the log.
const (
	causeSilent  = "store-silent"
	causeRefuses = "store-refuses"
	causeBack    = "store-back"
)

// Outage says once that a store is away, and once that it is back: however many activities notice it, and retry.
type Outage struct {
	log   *slog.Logger
	store string

	mu      sync.Mutex
	failing map[string]bool // the activities that wait for the store
	since   time.Time
	reason  error
	say     *time.Timer // nil: it answers
	number  int         // of the outage, so that the timer of an earlier one stays silent
	said    bool
}

// NewOutage is for the store of that name, as it is to be called in the log.
func NewOutage(log *slog.Logger, store string) *Outage {
	return &Outage{log: log, store: store, failing: map[string]bool{}}
}

// Failed says that an activity did not get through; it will try again.
func (o *Outage) Failed(activity string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failing[activity], o.reason = true, err
	if o.say == nil {
		o.since = time.Now()
		o.number++
		number := o.number
		o.say = time.AfterFunc(silence, func() { o.speak(number) })
	}
}

func (o *Outage) speak(number int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.say != nil && o.number == number {
		o.said = true
		text, cause := trouble(o.reason)
		o.log.Warn(o.store+" "+text+": waiting for it, the network stays as it is", "cause", cause, "error", o.reason)
	}
}

// Err is why the store does not answer, nil while it does.
func (o *Outage) Err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.say == nil {
		return nil
	}
	text, _ := trouble(o.reason)
	return fmt.Errorf("%s %s: %w", o.store, text, o.reason)
}

// Refusal is an error of a store that does answer, and refuses what was asked.
type Refusal interface {
	error
	Refused()
}

func trouble(reason error) (text, cause string) {
	if r := Refusal(nil); errors.As(reason, &r) {
		return "refuses a request", causeRefuses
	}
	return "does not answer", causeSilent
}

// Over says that an activity got through.
func (o *Outage) Over(activity string) { o.end(activity, true) }

// Forget says that an activity waits no longer, for its own reasons.
func (o *Outage) Forget(activity string) { o.end(activity, false) }

func (o *Outage) end(activity string, through bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.failing, activity)
	if o.say == nil || len(o.failing) > 0 {
		return
	}
	o.say.Stop()
	if o.said && through {
		o.log.Info(o.store+" answers again", "cause", causeBack, "after", time.Since(o.since).Round(100*time.Millisecond))
	}
	o.say, o.said = nil, false
}
