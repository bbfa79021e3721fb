package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"flannel/backend"
	"flannel/pkg/metrics"
	"flannel/pkg/reconcile"
	"flannel/subnet"
)

// failures are the parts of a pass that failed.
type failures []failure

type failure struct {
	part string
	err  error
}

func (f *failures) add(part string, err error) {
	if err != nil {
		*f = append(*f, failure{part, err})
	}
}

// err joins them to one error that names each part.
func (f failures) err() error {
	var all []error
	for _, one := range f {
		all = append(all, fmt.Errorf("%s: %w", one.part, one.err))
	}
	return errors.Join(all...)
}

// unknown reports whether something could not be read.
func (f failures) unknown() bool { return reconcile.IsUnknown(f.err()) }

// parts names those that failed; waiting for the store is no failure.
func (f failures) parts() []string {
	var names []string
	for _, one := range f {
		if !errors.Is(one.err, errNoPeers) && !errors.Is(one.err, errNotPublished) {
			names = append(names, one.part)
		}
	}
	return names
}

// reported is what was said last, so that nothing is said twice.
type reported struct {
	inStep  bool
	ready   bool // the service manager knows that we are
	problem string
	at      time.Time

	rejects  map[string]string // the reason by name, of peers that are left out
	lines    lines             // that may still be said of them
	untoldAt time.Time         // when it was said that some are not named
	advice   string
}

// report tells the outcome of a pass: to metrics and readiness always, to the log only what is new.
func (d *Daemon) report(n *node, failed failures, took time.Duration) {
	err := failed.err()
	d.Status.InStep(err)
	d.View.set(n, d.Settings, failed, took)
	d.Metrics.Pass(took, err == nil, failed.parts())
	d.Metrics.Peers(metrics.Peers{Used: n.valid + len(n.orphans), Invalid: len(n.rejects), Refused: len(n.behind),
		Retained: len(n.retained) + len(n.orphans)})
	d.Metrics.ConfigPending(n.pending != "")
	d.reportRejects(n)
	if r, ok := d.Manager.(subnet.Reporter); ok {
		r.Report(err, slices.Concat(n.rejects, n.behind), strings.TrimSpace(n.advice()+" "+n.pending))
	}
	d.reportAdvice(n)

	r := &n.report
	if err == nil {
		if !r.inStep {
			d.Log.Info("the network is in step", "cause", causeInStep, "peers", n.valid, "took", took.Round(time.Microsecond))
		}
		if !r.ready {
			d.Notify("READY=1")
		}
		r.inStep, r.ready, r.problem = true, true, ""
		return
	}
	r.inStep = false
	if len(failed.parts()) == 0 {
		return // the store has yet to answer; nothing is wrong
	}
	if text := err.Error(); text != r.problem || time.Since(r.at) > tellAgain {
		d.Log.Warn("the network is not in step; trying again", "cause", causeOf(err, causeNotInStep), "problem", strings.ReplaceAll(text, "\n", "; "))
		r.problem, r.at = text, time.Now()
	}
}

// reportRejects warns once for each reason of each peer that is left out or refused by the system, as far as there are
// lines left; the others' turn comes with a later pass.
func (d *Daemon) reportRejects(n *node) {
	r, now := &n.report, time.Now()
	told := make(map[string]string, len(n.rejects))
	untold := 0
	for i, reject := range slices.Concat(n.rejects, n.behind) {
		was, known := r.rejects[reject.Name]
		switch {
		case known && was == reject.Reason:
			told[reject.Name] = was
		case r.lines.take(now):
			msg, cause := "left out a peer", causePeerRejected
			if i >= len(n.rejects) {
				msg, cause = "the system refuses a peer", causePeerRefused
			}
			d.Log.Warn(msg, "cause", cause, "peer", reject.Name, "reason", reject.Reason)
			told[reject.Name] = reject.Reason
		case known:
			told[reject.Name] = was
			untold++
		default:
			untold++
		}
	}
	for name := range r.rejects {
		if _, still := told[name]; !still && r.lines.take(now) {
			d.Log.Info("problem with a peer is over", "cause", causePeerRecovered, "peer", name)
		}
	}
	if untold > 0 && now.Sub(r.untoldAt) > tellAgain {
		d.Log.Warn("left out more peers than there are lines for", "cause", causePeersOmitted, "count", untold)
		r.untoldAt = now
	}
	r.rejects = told
}

// lines bounds how much the log says of peers that are left out: hundreds may turn up at once, and each is to be named;
// but one that changes ten times a second is not to fill the disk. The zero value is full.
type lines struct {
	used float64
	at   time.Time // of the last line
}

const (
	maxLines    = 1000 // at once
	linesRegain = 1    // a second
)

// take tells whether there is a line left, and takes it.
func (l *lines) take(now time.Time) bool {
	l.used = max(0, l.used-linesRegain*now.Sub(l.at).Seconds())
	l.at = now
	if l.used > maxLines-1 {
		return false
	}
	l.used++
	return true
}

// advice is what the operator should change for the Windows nodes that there are; "": nothing.
func (n *node) advice() string {
	if b, ok := n.backend.(backend.Mixed); ok && n.windows != "" {
		if why := b.ForWindows(); why != "" {
			return fmt.Sprintf("%s runs Windows, and does not go with this node's configuration. %s", n.windows, why)
		}
	}
	return ""
}

func (d *Daemon) reportAdvice(n *node) {
	now := n.advice()
	if now != "" && now != n.report.advice {
		d.Log.Warn("Linux and Windows nodes may not reach each other", "cause", causeWindowsMismatch, "reason", now)
	}
	n.report.advice = now
}

// alarm wakes the loop when nothing else does.
type alarm struct {
	compare *time.Ticker
	backoff time.Duration
	again   *time.Timer // nil: nothing failed
}

func newAlarm(compareAll time.Duration) *alarm {
	return &alarm{compare: time.NewTicker(compareAll)}
}

func (a *alarm) stop() {
	a.compare.Stop()
	if a.again != nil {
		a.again.Stop()
	}
}

// A failed pass is tried again after firstRetry, then ever more rarely: what the kernel refuses for good must not
// keep the machine busy. A notification still wakes us at once.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 15 * time.Second
)

// retry sets when a pass is due though nothing happened. Only what the alarm itself has called for and what then failed
// makes it more patient: passes that something else called for, of which there may be many in a moment, do not.
func (a *alarm) retry(failed bool) *alarm {
	rung := a.again != nil && !a.again.Stop()
	a.again = nil
	switch {
	case !failed:
		a.backoff = 0
		return a
	case a.backoff == 0:
		a.backoff = firstRetry
	case rung:
		a.backoff = min(a.backoff*2, lastRetry)
	}
	a.again = time.NewTimer(a.backoff)
	return a
}

func (a *alarm) retryC() <-chan time.Time {
	if a.again == nil {
		return nil
	}
	return a.again.C
}

// feedWatchdog reports to the service manager until ctx ends, for as long as no pass hangs. It is a task of its own: a
// node that waits to join, for its store or for a configuration, is well however long that takes.
func (d *Daemon) feedWatchdog(ctx context.Context) error {
	if d.Watchdog <= 0 {
		return nil
	}
	tick := time.NewTicker(d.Watchdog / 2)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if d.Status.Alive() == nil {
				d.Notify("WATCHDOG=1")
			}
		}
	}
}

// longestRest bounds how long a change waits because the pass before it was expensive.
const longestRest = 100 * time.Millisecond

// rest makes passes take at most half of the time, however many things happen.
func (a *alarm) rest(ctx context.Context, passTook time.Duration) {
	t := time.NewTimer(min(passTook, longestRest))
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
