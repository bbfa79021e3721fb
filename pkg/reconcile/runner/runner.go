// Package runner has what everything that reconciles in the background has in common: a loop that calls work when
// something may have changed (Runner), the pauses between tries of what failed (Backoff), and the decision what of it is
// worth a line in the log (Once).
package runner

import (
	"cmp"
	"context"
	"reflect"
	"time"
)

// Runner calls Work at the start, when a channel receives, at each resync, and again after a failure: always on the
// goroutine that called Run or Until, and never twice at the same time.
//
//	state     cause                           action
//	idle      a channel receives              wait for Quiet, then call Work
//	          Resync, or the time that Work   call Work
//	          asked for, is over
//	failed    Work's pause is over            call Work; if it fails, the next pause is twice as long
//	          Wakes receives                  none: the end of the pause serves it
//	          News receives                   wait for Quiet, then call Work; if it fails, pauses start with the first one
//	any       ctx ends                        return
//
// Example: Work fails at 0 s and pauses are 1 s to 4 s. With a value on Wakes every 100 ms, Work is called at 0, 1, 3,
// 7, 11 s, as without any. A value on News at 4 s has it called at 4 s, and then at 5, 7, 11 s.
type Runner struct {
	// Work compares and writes. It returns when to call it again although nothing changes (0: at the resync). The time
	// after a failure is that of Retry instead.
	Work func(ctx context.Context) (next time.Duration, err error)

	// A value on a channel stands for any number of changes. News are changes of what Work depends on, so that what
	// failed may succeed now. Wakes may be caused by Work itself, or by somebody who undoes what it does.
	News, Wakes []<-chan struct{}

	Quiet  time.Duration // between a value and the call, so that one call serves a burst; 0: at once
	Resync time.Duration // the longest time between two calls; 0: none
	Later  bool          // the first call is after a value or Resync, not at the start
	Retry  Backoff       // the pauses after failures; without them, a failure is like a success
	Once   Once          // decides what Tell is called with

	// Tell is called with an error that Once takes for worth a line, and with nil when Work has succeeded after such an
	// error. It may be nil.
	Tell func(error)
}

// Run calls Work until ctx ends.
func (r *Runner) Run(ctx context.Context) { r.loop(ctx, false) }

// Until calls Work until it succeeds or ctx ends. It returns the last error of Work before the end of ctx, or, if there
// was none, the one that the end has caused.
func (r *Runner) Until(ctx context.Context) error { return r.loop(ctx, true) }

func (r *Runner) loop(ctx context.Context, once bool) error {
	w := newWaiter(ctx, r.Wakes, r.News)
	defer w.timer.Stop()
	if r.Later {
		w.arm(r.Resync)
	} else {
		w.timer.Reset(0)
	}
	var last error
	for {
		cause := w.wait()
		if cause == wakes && !r.Retry.Due() {
			continue // the timer goes on
		}
		if cause != due && r.Quiet > 0 {
			Pause(ctx, r.Quiet)
			cause = max(cause, w.drain())
		}
		if cause == news {
			r.Retry.Clear()
		}
		if ctx.Err() != nil {
			return cmp.Or(last, ctx.Err())
		}
		next, err := r.Work(ctx)
		if ctx.Err() != nil && err != nil {
			return cmp.Or(last, err) // err is a consequence
		}
		last = err
		if now := time.Now(); r.Once.Due(err, now) && r.Tell != nil {
			r.Tell(err)
		}
		switch {
		case err != nil:
			next = r.Retry.Fail(err)
		case once:
			return nil
		default:
			r.Retry.Clear()
		}
		if next <= 0 || err == nil && r.Resync > 0 && next > r.Resync {
			next = r.Resync
		}
		w.arm(next)
	}
}

// Causes of a call, in the order in which one outweighs the others.
const (
	due = iota
	wakes
	news
)

// waiter waits for the timer and all channels of a Runner.
type waiter struct {
	timer  *time.Timer
	cases  []reflect.SelectCase // the end of the context, the timer, then channels
	causes []int                // of cases
}

func newWaiter(ctx context.Context, wakeChannels, newsChannels []<-chan struct{}) *waiter {
	w := &waiter{timer: time.NewTimer(0)}
	w.add(due, ctx.Done(), w.timer.C)
	for _, c := range wakeChannels {
		w.add(wakes, c)
	}
	for _, c := range newsChannels {
		w.add(news, c)
	}
	return w
}

func (w *waiter) add(cause int, channels ...any) {
	for _, c := range channels {
		w.cases = append(w.cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(c)})
		w.causes = append(w.causes, cause)
	}
}

// arm sets the timer; 0: only channels end the wait.
func (w *waiter) arm(d time.Duration) {
	if w.timer.Stop(); d > 0 {
		w.timer.Reset(d)
	}
}

func (w *waiter) wait() (cause int) {
	i, _, _ := reflect.Select(w.cases)
	return w.causes[i]
}

// drain takes what has arrived on the channels, and returns the weightiest cause.
func (w *waiter) drain() (cause int) {
	for i, c := range w.cases {
		if w.causes[i] == due { // not a channel of the Runner
			continue
		}
		if _, arrived := c.Chan.TryRecv(); arrived {
			cause = max(cause, w.causes[i])
		}
	}
	return cause
}

// Pause waits for d, or until ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// Notify sends a value to a channel of capacity one, unless it has one already: a value stands for any number of changes.
func Notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
