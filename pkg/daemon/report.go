package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"flannel/pkg/reconcile"
	"flannel/subnet"
)

// failures are the parts of a pass that failed.
type failures []failure

// failure is one failed part, by the name that metrics and flanneld status show:
// config, devices, publish, bridge, peers, dataplane, cluster, firewall or subnet-file.
type failure struct {
	part string
	err  error
}

func (f *failures) add(part string, err error) {
	if err != nil {
		*f = append(*f, failure{part, err})
	}
}

// err joins the errors into one that names each part; nil: nothing failed.
func (f failures) err() error {
	var errs []error
	for _, failure := range f {
		errs = append(errs, fmt.Errorf("%s: %w", failure.part, failure.err))
	}
	return errors.Join(errs...)
}

// partCluster is the part that fails while other nodes cannot know this node, which
// this node can neither change nor retry.
const partCluster = "cluster"

// own returns the failures of this node itself.
func (f failures) own() failures {
	return slices.DeleteFunc(slices.Clone(f), func(failure failure) bool { return failure.part == partCluster })
}

// retried reports whether another pass may do better.
func (f failures) retried() bool { return len(f.own()) > 0 }

// unknown reports whether a part could not read the actual state.
func (f failures) unknown() bool { return reconcile.IsUnknown(f.err()) }

// parts returns the names of the failed parts, without those that only wait for
// the store.
func (f failures) parts() (names []string) {
	for _, failure := range f {
		if !errors.Is(failure.err, errNoPeers) && !errors.Is(failure.err, errNotPublished) {
			names = append(names, failure.part)
		}
	}
	return names
}

// logState is what was logged last, so that the same is not logged twice.
type logState struct {
	synced  bool // the last pass succeeded
	ready   bool // the service manager was notified; stays true
	problem string
	at      time.Time // of problem

	rejects   map[string]string // by the name of a rejected or refused peer: the reason
	budget    lineBudget        // for rejects
	omittedAt time.Time         // when it was logged that some rejects are omitted
	advice    string
	conflict  string   // see addressConflict
	atStart   string   // see logKept
	warnings  []string // of build
	passes    passLog
}

// report reports the result of a pass to the Board, the store and the prober, counts it,
// and logs what has changed since the pass before.
func (d *Daemon) report(n *node, failed failures, took time.Duration) {
	err := failed.err()
	n.logged.passes.log(d.Log, d.Tally, n.last.rulesChanged, took)
	d.view.set(n, d.Settings, failed, took)
	d.Board.EndPass(err) // after its results are there
	d.updateProbes(n, failed)
	d.Metrics.Pass(took, err == nil, failed.parts())
	d.reportRejects(n)
	d.Manager.Report(subnet.Report{Problem: failed.own().err(), Rejects: slices.Concat(n.last.rejects, n.last.refused),
		Advice: n.advice(), PendingConfig: n.last.pendingConfig, LostPods: d.Dataplane.PodsWithoutEndpoint()})
	d.reportAdvice(n)
	d.reportAddressConflict(n)

	last := &n.logged
	if err == nil {
		if !last.synced {
			d.Log.Info("network is up to date", "cause", causeSynced, "peers", n.last.validPeers, "took", took.Round(time.Microsecond))
		}
		if !last.ready {
			d.Notify("READY=1")
		}
		last.synced, last.ready, last.problem = true, true, ""
		return
	}
	last.synced = false
	if len(failed.parts()) == 0 {
		return // waiting for the store is no problem of this node
	}
	if text := err.Error(); text != last.problem || time.Since(last.at) > repeatLog {
		msg := "could not update the network, will retry"
		if !failed.retried() {
			msg = "other nodes do not know this node; its network stays as it is"
		}
		d.Log.Warn(msg, "cause", causeOf(err, causeNotSynced), "problem", strings.ReplaceAll(text, "\n", "; "))
		last.problem, last.at = text, time.Now()
	}
}

// reportRejects logs each rejected or refused peer once, and again when its
// reason changes, and logs when the problem is over. What exceeds the budget is
// logged after a later pass.
func (d *Daemon) reportRejects(n *node) {
	last, now := &n.logged, time.Now()
	last.budget.refill(now)
	// For example, with room for one line, peers a (logged before with another reason)
	// and b (new): the change of a is logged. b is not in reasons, so that a later pass
	// takes it for new and logs it.
	reasons := make(map[string]string, len(n.last.rejects)) // as logged, now or before
	omitted := 0
	for i, reject := range slices.Concat(n.last.rejects, n.last.refused) {
		former, known := last.rejects[reject.Name]
		if known && former == reject.Reason {
			reasons[reject.Name] = former
			continue
		}
		if last.budget.empty() {
			omitted++
			if known {
				reasons[reject.Name] = former
			}
			continue
		}
		last.budget.used++
		msg, cause := "peer rejected", causePeerRejected
		if i >= len(n.last.rejects) {
			msg, cause = "the system refused an entry of a peer", causePeerRefused
		}
		d.Log.Warn(msg, "cause", cause, "peer", reject.Name, "reason", reject.Reason)
		reasons[reject.Name] = reject.Reason
	}
	for name := range last.rejects {
		if _, still := reasons[name]; !still && !last.budget.empty() {
			last.budget.used++
			d.Log.Info("peer recovered", "cause", causePeerRecovered, "peer", name)
		}
	}
	if omitted > 0 && now.Sub(last.omittedAt) > repeatLog {
		d.Log.Warn("too many rejected peers to log each of them", "cause", causePeersOmitted, "count", omitted)
		last.omittedAt = now
	}
	last.rejects = reasons
}

// lineBudget limits the log lines about rejected peers: hundreds of them may
// appear at once, and each should be named, but a peer whose problem changes
// ten times a second must not fill the disk. The zero lineBudget allows
// maxLines.
type lineBudget struct {
	used float64   // of maxLines
	at   time.Time // of the last refill
}

const (
	maxLines       = 1000
	linesPerSecond = 1
)

// refill reduces used by the time since the last refill. The first call, with a zero
// at, reduces it to 0.
func (b *lineBudget) refill(now time.Time) {
	b.used = max(0, b.used-linesPerSecond*now.Sub(b.at).Seconds())
	b.at = now
}

func (b *lineBudget) empty() bool { return b.used > maxLines-1 }

// advice returns what the operator should change so that Linux and Windows
// nodes reach each other; "": nothing.
func (n *node) advice() string {
	if n.last.windows != "" {
		if reason := n.backend.ForWindows(); reason != "" {
			return fmt.Sprintf("%s runs Windows, which does not support this node's configuration. %s", n.last.windows, reason)
		}
	}
	return ""
}

// reportAdvice logs the advice once, and again when it changes.
func (d *Daemon) reportAdvice(n *node) {
	advice := n.advice()
	if advice != "" && advice != n.logged.advice {
		d.Log.Warn("Linux and Windows nodes may not reach each other", "cause", causeWindowsMismatch, "reason", advice)
	}
	n.logged.advice = advice
}

// timers cause passes when no notification does: resyncs at a fixed interval,
// and retries of failed passes.
//
//	state      cause                               next       action
//	idle       a pass failed                       retrying   start the timer with firstRetry
//	retrying   the timer fired, the pass failed    retrying   start it with twice the delay, at most lastRetry
//	retrying   another pass failed                 retrying   start it again with the same delay
//	retrying   a pass succeeded                    idle       stop the timer
//
// Only failed retries increase the delay. Passes that notifications cause do
// not, because there may be many of them in a short time.
type timers struct {
	resync  *time.Ticker
	backoff time.Duration // 0: idle
	retry   *time.Timer   // nil: idle
}

// newTimers starts the ticker of the resyncs. The caller must call stop.
func newTimers(resyncInterval time.Duration) *timers {
	return &timers{resync: time.NewTicker(resyncInterval)}
}

func (t *timers) stop() {
	t.resync.Stop()
	if t.retry != nil {
		t.retry.Stop()
	}
}

// The delay of retries. It grows because an entry that the kernel refuses
// permanently must not keep the machine busy.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 15 * time.Second
)

// scheduleRetry sets the retry timer after a pass.
func (t *timers) scheduleRetry(failed bool) {
	// Stop returns false only if wait has received from the timer: the channel of a
	// timer that has fired, but was not received from, counts as running.
	fired := t.retry != nil && !t.retry.Stop()
	t.retry = nil
	switch {
	case !failed:
		t.backoff = 0
		return
	case t.backoff == 0:
		t.backoff = firstRetry
	case fired:
		t.backoff = min(t.backoff*2, lastRetry)
	}
	t.retry = time.NewTimer(t.backoff)
}

// retryC receives when a retry is due. It is nil, from which nothing is ever
// received, if none is scheduled.
func (t *timers) retryC() <-chan time.Time {
	if t.retry == nil {
		return nil
	}
	return t.retry.C
}

// maxPause limits how long a change waits because the pass before it took long.
const maxPause = 100 * time.Millisecond

// pause waits for as long as the last pass took, at most maxPause, so that
// passes do not use all of the CPU time while notifications keep arriving.
func (t *timers) pause(ctx context.Context, passTook time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(min(passTook, maxPause)):
	}
}

// feedWatchdog reports to the service manager that the process is alive, unless
// a pass hangs. It runs in a goroutine of its own, because a node may wait for
// the store or a configuration for any time, and must not be killed for that.
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
			if d.Board.Alive() == nil {
				d.Notify("WATCHDOG=1")
			}
		}
	}
}
