package extension

import (
	"context"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
)

// Causes in the log.
const (
	causeCommands = "commands-run"
	causeFailed   = "command-failed"
	causeFormer   = "former-command"
)

// unit is something whose commands run one after another: the start of the node, or
// a peer.
//
//	state     cause                               next      action
//	idle      next has a command                  running   run it, when there is a slot
//	running   the command succeeded               idle      call its done
//	running   the command failed                  waiting   start the timer
//	running   it failed for the last of its tries idle      call its done
//	running   another wish, then it failed        idle      none: the failure says nothing of that wish
//	running   giveUp, then the command ended      idle      ignore its result; giveUp has done what done would do
//	waiting   the timer, or another wish          idle
//
// A wish is what a pass wants of it: the command of a startup, or a peer with its values.
// In the state idle, schedule at once looks for the next command.
type unit struct {
	next     func() *step // returns nil if there is nothing to do. Called with Dataplane.mu held, as the other functions are
	forget   func()       // drops a peer of which nothing is left, else does nothing; nil: it is a startup
	running  bool         // or in the queue of its lane
	outdated bool         // there was another wish since the running command began
	ignored  bool         // giveUp was called since the running command began
	pending  bool         // running, and a pass waits for it: it is neither slow nor a retry
	timer    *time.Timer  // nil unless waiting
	failures int          // since the last success, or the last other wish
	err      error        // of the last command; nil: it succeeded
	slow     bool         // the last command failed, and took long; never of a startup
}

// lane is a number of slots for the commands of some units.
type lane struct {
	slots int     // that are free
	queue []*unit // that wait for a slot, with running set; work takes them from here
}

// laneOf returns the lane of a unit's next command.
func (d *Dataplane) laneOf(u *unit) *lane {
	switch {
	case u.forget == nil:
		return &d.startLane
	case u.slow:
		return &d.slowLane
	}
	return &d.normal
}

// step is a command together with what is recorded about it.
type step struct {
	command
	begin func()              // before it runs; may be nil
	done  func(output string) // after it succeeded, or failed for the last of its tries; not after giveUp
	tries int                 // how often it is run while it fails; 0: without limit, as all but removals (removeTries)
}

// startup is a unit with one command.
type startup struct {
	unit
	want   string // identity of the wanted command (command.id)
	have   string // of the command that succeeded; "": none yet
	output string // of the command that succeeded
}

// want makes a startup run a command, unless it has run it. While another one runs, this
// one runs after it.
func (d *Dataplane) want(s *startup, c command) {
	d.mu.Lock()
	defer d.mu.Unlock()
	id := c.id()
	s.next = func() *step {
		if s.have == id {
			return nil
		}
		return &step{command: c, done: func(output string) { s.have, s.output = id, output }}
	}
	if s.want != id {
		s.want = id
		s.hurry()
	}
	d.schedule(&s.unit)
}

// hurry forgets the failures of something that is not wanted any more, also of a command
// that still runs, and ends the wait for a retry.
func (u *unit) hurry() {
	u.failures, u.err, u.outdated = 0, nil, true // work clears outdated when the next command begins
	if u.timer != nil {
		u.timer.Stop()
		u.timer = nil
	}
}

// schedule runs the next command of a unit. The caller holds d.mu.
func (d *Dataplane) schedule(u *unit) {
	if u.running || u.timer != nil || d.ctx.Err() != nil {
		return
	}
	if u.next() == nil {
		return
	}
	u.running, u.pending = true, !u.slow && u.failures == 0
	if u.pending {
		d.pending++
	}
	l := d.laneOf(u)
	if l.slots == 0 {
		l.queue = append(l.queue, u)
		return
	}
	l.slots--
	d.tasks.Go(func() { d.work(l, u) })
}

// work runs the next command of a unit, and then those of the lane's queue, on a goroutine
// of its own. It notifies the pass that may wait for the command (ended), and the loop
// (changes), which makes a pass, when the last command that a pass waits for has ended, or
// when a unit has begun or ceased to fail: then the pass has another result.
func (d *Dataplane) work(l *lane, u *unit) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for u != nil && d.ctx.Err() == nil {
		failing := u.err != nil || !u.pending // as failedPeers reported it: what is not pending is a retry, or slow
		if s := u.next(); s != nil {          // otherwise it was taken back while it waited for a slot
			if s.begin != nil {
				s.begin()
			}
			u.outdated, u.ignored = false, false
			d.mu.Unlock()
			began := time.Now()
			ctx, release := d.limit(d.ctx, s.command) // timeLimit; release ends its timer
			output, err := run(ctx, s.command, d.marks)
			release()
			d.mu.Lock()
			if !u.ignored {
				u.slow = u.forget != nil && err != nil && time.Since(began) >= d.slow
				d.finish(u, s, output, err)
			}
		}
		if u.pending {
			d.pending--
		}
		u.running, u.pending = false, false
		d.schedule(u)
		if u.forget != nil {
			u.forget() // unless schedule has found another command
		}
		reconcile.Notify(d.ended)
		if d.pending == 0 || failing != (u.err != nil) {
			reconcile.Notify(d.changes)
		}
		u = nil
		if len(l.queue) > 0 {
			u, l.queue = l.queue[0], l.queue[1:]
		}
	}
	l.slots++
}

// finish records the result of a command. The caller holds d.mu.
func (d *Dataplane) finish(u *unit, s *step, output string, err error) {
	if d.ctx.Err() != nil || err != nil && u.outdated {
		return
	}
	isLast := err != nil && s.tries > 0 && u.failures+1 >= s.tries
	if s.tries > 0 && err != nil && (u.failures == 0 || isLast) { // other errors are in the result of a pass
		d.opts.Log.Warn("could not remove a peer", "cause", causeFailed, "subnet", s.subnet, "given_up", isLast, "error", err)
	}
	if err == nil || isLast {
		u.failures, u.err = 0, err
		s.done(output)
		return
	}
	u.err = sameFailure(u.err, err) // that of the try before, if both are the same
	pause := min(d.retry<<min(u.failures, 20), lastRetry)
	u.failures++
	var timer *time.Timer
	timer = time.AfterFunc(pause, func() {
		d.mu.Lock() // before timer is read: the pause may be over before AfterFunc returns
		defer d.mu.Unlock()
		d.endPause(u, timer)
	})
	u.timer = timer
}

// endPause runs the next command of a unit when its timer has fired, unless hurry has
// stopped that timer, too late, in the meantime. The caller holds d.mu.
func (d *Dataplane) endPause(u *unit, timer *time.Timer) {
	if u.timer == timer {
		u.timer = nil
		d.schedule(u)
	}
}

// await waits for a startup for as long as a pass may wait (patient). It returns nil when
// the wanted command has succeeded, its last failure, or a WaitError while it runs.
func (d *Dataplane) await(ctx context.Context, s *startup) error {
	d.waitUntil(ctx, func() bool { return !s.pending })
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case s.have == s.want:
		return nil
	case s.err != nil:
		return s.err
	}
	return dataplane.Waiting(causeCommands, "%s", s.next().key)
}

// awaitPeers waits as await for the commands of all peers.
func (d *Dataplane) awaitPeers(ctx context.Context) error {
	if d.waitUntil(ctx, func() bool { return d.pending == 0 }) {
		return nil
	}
	return dataplane.Waiting(causeCommands, "commands for peers")
}

// waitUntil reports whether finished, which is called with d.mu held, returned true
// in time. Only the loop calls it, so that no other waiter takes a value of d.ended.
func (d *Dataplane) waitUntil(ctx context.Context, finished func() bool) bool {
	for limit := time.Now().Add(d.patient); ; {
		d.mu.Lock()
		ok := finished()
		d.mu.Unlock()
		if ok {
			return true
		}
		if reconcile.Wait(ctx, limit, d.ended) < 0 { // not d.ended: the limit is over, or ctx has ended
			return false
		}
	}
}
