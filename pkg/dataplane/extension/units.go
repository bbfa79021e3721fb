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
//	state     cause                          next      action
//	idle      next has a command             running   run it, when there is a slot
//	running   the command succeeded          idle      call its done
//	running   the command failed             waiting   start the timer
//	running   giveUp, then the command ended idle      ignore its result
//	waiting   the timer, or another wish     idle
type unit struct {
	next     func() *step // nil: there is nothing to do. Called with Dataplane.mu held, as the other functions are
	forget   func()       // called when it is idle; nil: it is a startup
	running  bool         // or in the queue of its lane
	givenUp  bool         // the result of the running command is ignored
	pending  bool         // running, and a pass waits for it: it is neither slow nor a retry
	timer    *time.Timer  // nil unless waiting
	failures int          // since the last success, or the last other wish
	err      error        // of the last command; nil: it succeeded
	slow     bool         // the last command failed, and took long; never of a startup
}

// lane is a number of slots for the commands of some units.
type lane struct {
	slots int     // for commands that may start
	queue []*unit // that wait for a slot
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
	done  func(output string) // after it succeeded, or was given up
	tries int                 // after which it is given up; 0: never
}

// startup is a unit with one command.
type startup struct {
	unit
	want   string // identity of the wanted command
	have   string // of the one that succeeded
	output string
}

// want makes a startup run a command, unless it has run it.
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

// hurry ends the wait for a retry of something that is not wanted any more.
func (u *unit) hurry() {
	u.failures, u.err = 0, nil
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

// work runs the next command of a unit, and then those of the lane's queue.
func (d *Dataplane) work(l *lane, u *unit) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for u != nil && d.ctx.Err() == nil {
		behind := u.err != nil || !u.pending
		if s := u.next(); s != nil { // otherwise it was taken back while it waited for a slot
			if s.begin != nil {
				s.begin()
			}
			u.givenUp = false
			d.mu.Unlock()
			began := time.Now()
			ctx, release := d.limit(d.ctx, s.command)
			output, err := run(ctx, s.command, d.marks)
			release()
			d.mu.Lock()
			if !u.givenUp {
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
			u.forget()
		}
		reconcile.Notify(d.ended)
		if d.pending == 0 || behind != (u.err != nil) {
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
	if d.ctx.Err() != nil {
		return
	}
	givenUp := err != nil && s.tries > 0 && u.failures+1 >= s.tries
	if s.tries > 0 && err != nil && (u.failures == 0 || givenUp) { // other errors are in the result of a pass
		d.opts.Log.Warn("could not remove a peer", "cause", causeFailed, "subnet", s.subnet, "given_up", givenUp, "error", err)
	}
	if err == nil || givenUp {
		u.failures, u.err = 0, err
		s.done(output)
		return
	}
	u.err = sameFailure(u.err, err)
	pause := min(d.retry<<min(u.failures, 20), lastRetry)
	u.failures++
	u.timer = time.AfterFunc(pause, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		u.timer = nil
		d.schedule(u)
	})
}

// await waits for a startup for as long as a pass may take. It returns nil when the
// wanted command has succeeded.
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

// awaitPeers waits likewise for the commands of all peers.
func (d *Dataplane) awaitPeers(ctx context.Context) error {
	if d.waitUntil(ctx, func() bool { return d.pending == 0 }) {
		return nil
	}
	return dataplane.Waiting(causeCommands, "commands for peers")
}

// waitUntil reports whether finished, which is called with d.mu held, returned true
// in time.
func (d *Dataplane) waitUntil(ctx context.Context, finished func() bool) bool {
	for limit := time.Now().Add(d.patient); ; {
		d.mu.Lock()
		ok := finished()
		d.mu.Unlock()
		if ok {
			return true
		}
		if reconcile.Wait(ctx, limit, d.ended) < 0 {
			return false
		}
	}
}
