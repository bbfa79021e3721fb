package reconcile

// Runner, Backoff and Once are what everything that reconciles in the background has in common: a loop that calls work when
// something may have changed (Runner), the pauses between tries of what failed (Backoff), and which results are worth a
// line in the log (Once).

import (
	"cmp"
	"context"
	"math/rand/v2"
	"reflect"
	"slices"
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
	Beats  bool          // calls that no channel causes are on beats (see OnBeat)
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

// loop is Run, and with once Until.
func (r *Runner) loop(ctx context.Context, once bool) error {
	channels := slices.Concat(r.Wakes, r.News)
	at := time.Now() // of the next call that no channel causes; zero: none
	if r.Later {
		at = r.after(r.Resync)
	}
	var last error
	for {
		i := Wait(ctx, at, channels...) // -1: the time has come, or ctx has ended
		isNews := i >= len(r.Wakes)     // they are behind Wakes; false for -1
		if i >= 0 && !isNews && !r.Retry.Due() {
			continue // until the pause is over
		}
		if i >= 0 && r.Quiet > 0 {
			Pause(ctx, r.Quiet)
			isNews = drain(r.News) || isNews
			drain(r.Wakes)
		}
		if isNews {
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
		at = r.after(next)
	}
}

// after returns the time that comes after d; zero for 0.
func (r *Runner) after(d time.Duration) time.Time {
	switch {
	case d <= 0:
		return time.Time{}
	case r.Beats:
		return OnBeat(d)
	}
	return time.Now().Add(d)
}

// Wait waits until one of the channels receives, a time comes (the zero Time never does) or ctx ends. It returns the index
// of the channel that has received, -1 if none has. A channel may be nil.
func Wait(ctx context.Context, until time.Time, channels ...<-chan struct{}) int {
	var timer <-chan time.Time
	if !until.IsZero() {
		timer = time.After(time.Until(until))
	}
	cases := []reflect.SelectCase{receive(ctx.Done()), receive(timer)}
	for _, c := range channels {
		cases = append(cases, receive(c))
	}
	i, _, _ := reflect.Select(cases)
	return max(-1, i-2)
}

// receive returns the case of a select that receives from a channel.
func receive(c any) reflect.SelectCase {
	return reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(c)}
}

// drain takes the values that channels have, and reports whether there were any.
func drain(channels []<-chan struct{}) (arrived bool) {
	for _, c := range channels {
		select {
		case <-c:
			arrived = true
		default:
		}
	}
	return arrived
}

// beat is the time between two beats. All of a process that is due every second or more rarely should be due on a beat
// (see OnBeat): to wake an idle process costs more than most of what it then does.
const beat = time.Second

// firstBeat is random, so that not all nodes send in the same part of a second.
var firstBeat = time.Now().Add(-rand.N(beat))

// OnBeat returns the last beat in the time d from now, which is after now. If d is shorter than a beat, OnBeat returns the
// end of d.
func OnBeat(d time.Duration) time.Time {
	now := time.Now()
	if d < beat {
		return now.Add(d)
	}
	sinceBeat := (now.Sub(firstBeat)%beat + beat) % beat // testing/synctest has times before firstBeat
	return now.Add(d - (sinceBeat+d)%beat)
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
