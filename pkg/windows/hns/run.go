// This file runs the calls of a Client. The calls of the system are synchronous and may hang, so each
// has a goroutine of its own; see run.

package hns

import (
	"context"
	"fmt"
	"time"
)

// pendingCall is a call of HNS that a Client made.
type pendingCall struct {
	what  string    // for errors
	since time.Time // when it was made
	ended bool      // it has returned; guarded by Client.mu
}

// query runs a call that only reads, f. what names the call in errors.
func query[T any](ctx context.Context, c *Client, what string, f func() (T, error)) (T, error) {
	return run(ctx, c, what, c.timing.Query, f, nil)
}

// change runs a call that changes something, with the longer time limit.
func change[T any](ctx context.Context, c *Client, what string, f func() (T, error)) (T, error) {
	c.changed.Add(1)
	return run(ctx, c, what, c.timing.Change, f, nil)
}

// change is the function change for calls without a result.
func (c *Client) change(ctx context.Context, what string, f func() error) error {
	_, err := change(ctx, c, what, func() (struct{}, error) { return struct{}{}, f() })
	return err
}

// run makes a call in a goroutine of its own, because a call that hangs cannot be cancelled. It waits for the call until
// limit (the error is ErrTimeout) or the end of ctx. After that the call is abandoned: it counts as hung until it
// returns, and its result is passed to late, unless late is nil. Client.listen has a late, which ends the subscription.
func run[T any](ctx context.Context, c *Client, what string, limit time.Duration, f func() (T, error), late func(T)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	var zero T
	p, err := c.begin(what)
	if err != nil {
		return zero, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w (%s)", ErrTimeout, limit))
	defer cancel()
	done := make(chan answer, 1) // with a buffer, so that the goroutine of an abandoned call ends
	go func() {
		v, err := f()
		if abandoned := c.end(p); abandoned && err == nil && late != nil {
			late(v)
		}
		done <- answer{v, err}
	}()
	var a answer
	select {
	case a = <-done:
	case <-ctx.Done():
		if c.abandon(p) {
			a.err = context.Cause(ctx)
		} else {
			a = <-done // it returned at the last moment
		}
	}
	if a.err != nil {
		return zero, fmt.Errorf("%s: %w", what, a.err)
	}
	return a.value, nil
}

// begin returns a new call. It returns ErrTimeout while an abandoned call hangs, because HNS works on one call after the
// other, and because each hanging call occupies a thread. Calls that are not abandoned do not exclude each other.
func (c *Client) begin(what string) (*pendingCall, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := range c.hung { // any of them
		return nil, fmt.Errorf("%s: %w: HNS has been busy since %s with: %s", what, ErrTimeout, p.since.Format(time.TimeOnly), p.what)
	}
	c.made.Add(1)
	return &pendingCall{what: what, since: time.Now()}, nil
}

// end marks the call as returned, and reports whether it was abandoned before.
func (c *Client) end(p *pendingCall) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	abandoned := c.hung[p]
	p.ended = true
	delete(c.hung, p)
	return abandoned
}

// abandon marks the call as hung, unless it has returned. It reports whether it did so. If not, the answer is about to
// arrive.
func (c *Client) abandon(p *pendingCall) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !p.ended {
		c.hung[p] = true
	}
	return !p.ended
}
