package daemon

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"flannel/pkg/reconcile"
	"flannel/subnet"
)

// loop makes the passes of one membership, which is the time with one subnet. One goroutine
// of Daemon.member uses it, and with it the node and what the parts remember.
type loop struct {
	*Daemon
	node   *node
	in     *inbox
	parts  []part
	wakes  []<-chan struct{} // that of the inbox, and those of the parts
	woken  []func() bool     // part.woken, for the channel at the same place in wakes; nil: a pass is needed
	timers timers
	logged syncLog
}

// newLoop returns the loop of a node that has a lease.
func (d *Daemon) newLoop(n *node, in *inbox) *loop {
	interval := d.Settings.CompareAll
	l := &loop{Daemon: d, node: n, in: in, parts: d.parts(), logged: syncLog{problem: reconcile.Once{Repeat: repeatLog}},
		timers: timers{interval, time.Now().Add(interval), reconcile.Backoff{First: firstRetry, Last: lastRetry}},
		wakes:  []<-chan struct{}{in.changed}, woken: []func() bool{nil}}
	for _, part := range l.parts {
		for _, c := range part.wakes {
			l.wakes, l.woken = append(l.wakes, c), append(l.woken, part.woken)
		}
	}
	return l
}

// run makes a pass at once, and then whenever something may have changed. It returns nil
// when ctx ends, and subnet.ErrDirGone if the subnet file cannot be written again while this
// process runs. The Board takes the process for one that hangs if a pass, from BeginPass
// to EndPass (in report), lasts for more than two minutes.
func (l *loop) run(ctx context.Context) error {
	p := l.newPass() // the first is neither a retry nor a resync
	for ctx.Err() == nil {
		l.Board.BeginPass()
		began := time.Now()
		l.pass(ctx, p)
		if ctx.Err() != nil {
			break // the end of ctx may have made parts fail
		}
		p.took = time.Since(began)
		l.report(p)
		if err := p.failed.of(partSubnetFile); errors.Is(err, subnet.ErrDirGone) {
			return err
		}
		// Passes must not use all of the CPU time while notifications keep arriving: at most half.
		reconcile.Pause(ctx, min(time.Since(began), maxPause))
		l.timers.recordResult(p)
		l.wait(ctx, l.timers.nextPass(p))
		p = l.newPass()
		l.timers.startPass(p)
	}
	return nil
}

// maxPause limits how long a change waits because the pass before it took long.
const maxPause = 100 * time.Millisecond

// newPass returns a pass with what the loop knows now.
func (l *loop) newPass() *pass { return &pass{node: l.node, in: l.in} }

// pass reconciles all parts. A failed part does not keep the others from being
// reconciled.
func (l *loop) pass(ctx context.Context, p *pass) {
	for _, part := range l.parts {
		// The peers part sets p.known when the set of peers is complete. It comes before all parts that need it.
		if part.reconcile != nil && (p.known || !part.needsPeers) {
			p.failed.add(part.name, part.reconcile(ctx, p))
		}
	}
}

// wait returns at a time, or when something has changed. All causes lead to the same
// pass, so that several at once need only one: which of them it receives first does
// not matter. A part that hangs while it finds out whether a pass is needed counts as a
// pass that hangs.
func (l *loop) wait(ctx context.Context, until time.Time) {
	for {
		i := reconcile.Wait(ctx, until, l.wakes...)
		if i < 0 || l.woken[i] == nil { // negative: the time has come, or ctx has ended, which run looks for
			return
		}
		l.Board.BeginPass()
		if l.woken[i]() {
			return
		}
		l.Board.CancelPass()
	}
}

// report reports the result of a pass to the Board, the store and the log, in this
// order.
func (l *loop) report(p *pass) {
	p.tellNode(l.Settings) // adds to p.told, as the parts do; first, since it makes the Report.Node that they fill
	for _, part := range l.parts {
		if part.report != nil {
			part.report(p)
		}
	}
	err := p.failed.err()
	l.view.set(p.told, p.failed) // where readers of the Board find them, until the next pass
	l.Board.EndPass(err)         // after its results are there
	// parts: without those that only wait for the store. own: without the part cluster (other
	// nodes do not know this one), which no other pass mends.
	l.Metrics.Pass(p.took, err == nil, p.failed.parts())
	// LostPods: pods that keep running, but from which Windows has taken their network.
	p.store.Problem, p.store.LostPods = p.failed.own().err(), l.Dataplane.PodsWithoutEndpoint()
	l.Manager.Report(p.store) // does not block
	for _, part := range l.parts {
		if part.log != nil {
			part.log(p)
		}
	}
	l.logResult(p)
}

// syncLog is what was logged last about passes as a whole.
type syncLog struct {
	synced  bool           // the last pass succeeded
	ready   bool           // the service manager was notified; stays true
	problem reconcile.Once // says whether a problem is worth a line: another one, or the same after repeatLog
}

// logResult logs when the network has become up to date, and why it is not; the same
// problem once per repeatLog.
func (l *loop) logResult(p *pass) {
	last, err := &l.logged, p.failed.err()
	if err == nil {
		if !last.synced {
			l.Log.Info("network is up to date", "cause", causeSynced, "peers", p.valid, "took", p.took.Round(time.Microsecond))
		}
		if !last.ready {
			l.Notify("READY=1")
		}
		last.synced, last.ready = true, true
		last.problem.Due(nil, time.Now()) // forgets the problem that was logged
		return
	}
	last.synced = false
	if len(p.failed.parts()) == 0 {
		return // waiting for the store is no problem of this node
	}
	now := time.Now()
	p.wakeAt(now.Add(repeatLog)) // to log it again: a failure of the part cluster alone causes no retry
	if !last.problem.Due(err, now) {
		return
	}
	msg := "could not update the network, will retry"
	switch {
	case errors.Is(p.failed.of(partSubnetFile), subnet.ErrDirGone):
		msg = "could not write the subnet file, ending" // run returns the error
	case len(p.failed.own()) == 0:
		msg = "other nodes do not know this node; its network stays as it is"
	}
	l.Log.Warn(msg, "cause", causeOf(err, causeNotSynced), "problem", strings.ReplaceAll(err.Error(), "\n", "; "))
}

// timers say when a pass is due although nothing notifies: at resyncs, which read
// again what notifications may have missed, and at retries.
//
//	cause                         next pass
//	a pass failed                 after firstRetry
//	a retry failed                after twice the pause before it, at most lastRetry
//	another pass failed           when the pause that has begun is over
//	a pass succeeded              at the resync
//	a part wants one (wakeAt)     then, if that is earlier
//
// Only failed retries make the pause longer. Passes that notifications cause do not,
// because there may be many of them in a short time, and neither do resyncs.
type timers struct {
	interval time.Duration // of resyncs
	resync   time.Time     // the next one
	retry    reconcile.Backoff
}

// The pauses before retries. They grow because an entry that the kernel refuses
// permanently must not keep the machine busy.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 15 * time.Second
)

// recordResult begins or ends the pause before the next retry, after the pass p. A failed
// pass that was no retry leaves a pause that has begun as it is.
func (t *timers) recordResult(p *pass) {
	// An own failure, or an entry that the system refused: other failures are not retried.
	if problem := p.retry(); problem == nil {
		t.retry.Clear()
	} else if t.retry.Err() == nil || p.retried {
		t.retry.Fail(problem)
	}
}

// nextPass returns when the pass after p is due, at the latest.
func (t *timers) nextPass(p *pass) time.Time {
	times := []time.Time{t.resync, t.retry.Next(), p.due} // a zero time: not due
	times = slices.DeleteFunc(times, time.Time.IsZero)
	return slices.MinFunc(times, time.Time.Compare)
}

// startPass sets in p whether it is a retry or a resync, and sets the time of the next
// resync if it is one. In both, the parts also choose again (p.again) what they choose from
// the state of the system.
func (t *timers) startPass(p *pass) {
	now := time.Now()
	p.retried, p.resync = t.retry.Err() != nil && t.retry.Due(), !now.Before(t.resync)
	p.again = p.retried || p.resync
	if p.resync {
		t.resync = now.Add(t.interval)
	}
}
