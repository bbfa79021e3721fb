package etcd

import (
	"log/slog"
	"sync"
	"time"
)

// patience is how long etcd may be away without a word in the log: a member that restarts is no outage.
const patience = time.Second

// outage says once that etcd is away, and once that it is back: however many activities notice it, and retry.
type outage struct {
	log *slog.Logger

	mu      sync.Mutex
	failing map[string]bool // the activities that wait for etcd
	since   time.Time
	reason  error
	say     *time.Timer // nil: etcd answers
	number  int         // of the outage, so that the timer of an earlier one stays silent
	said    bool
}

func newOutage(log *slog.Logger) *outage { return &outage{log: log, failing: map[string]bool{}} }

// failed says that an activity did not get through; it will try again.
func (o *outage) failed(activity string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failing[activity], o.reason = true, err
	if o.say == nil {
		o.since = time.Now()
		o.number++
		number := o.number
		o.say = time.AfterFunc(patience, func() { o.speak(number) })
	}
}

func (o *outage) speak(number int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.say != nil && o.number == number {
		o.said = true
		o.log.Warn("etcd does not answer: waiting for it, the network stays as it is", "error", o.reason)
	}
}

// over says that an activity got through.
func (o *outage) over(activity string) { o.end(activity, true) }

// forget says that an activity waits no longer, for its own reasons.
func (o *outage) forget(activity string) { o.end(activity, false) }

func (o *outage) end(activity string, through bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.failing, activity)
	if o.say == nil || len(o.failing) > 0 {
		return
	}
	o.say.Stop()
	if o.said && through {
		o.log.Info("etcd answers again", "after", time.Since(o.since).Round(100*time.Millisecond))
	}
	o.say, o.said = nil, false
}
