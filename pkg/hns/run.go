package hns

import (
	"context"
	"fmt"
	"time"
)

// pending is a call that was made.
type pending struct {
	what  string
	since time.Time
	ended bool // guarded by Client.mu
}

func query[T any](ctx context.Context, c *Client, what string, f func() (T, error)) (T, error) {
	return run(ctx, c, what, c.timing.Query, f, nil)
}

func change[T any](ctx context.Context, c *Client, what string, f func() (T, error)) (T, error) {
	c.changed.Add(1)
	return run(ctx, c, what, c.timing.Change, f, nil)
}

func (c *Client) change(ctx context.Context, what string, f func() error) error {
	_, err := change(ctx, c, what, func() (struct{}, error) { return struct{}{}, f() })
	return err
}

// run makes a call in a goroutine of its own, for nothing can end one that hangs. A result that nobody waits for any
// more goes to late, which may be nil.
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
	done := make(chan answer, 1) // so that a late answer blocks nobody
	go func() {
		v, err := f()
		if abandoned := c.end(p); abandoned && err == nil && late != nil {
			late(v)
		}
		done <- answer{v, err}
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	var a answer
	var gaveUp error
	select {
	case a = <-done:
	case <-ctx.Done():
		gaveUp = ctx.Err()
	case <-timer.C:
		gaveUp = fmt.Errorf("%w (%s)", ErrTimeout, limit)
	}
	if gaveUp != nil {
		if c.abandon(p) {
			a.err = gaveUp
		} else {
			a = <-done // it ended this very moment
		}
	}
	if a.err != nil {
		return zero, fmt.Errorf("%s: %w", what, a.err)
	}
	return a.value, nil
}

// begin refuses to make another call while one hangs: HNS works on one after the other, and every call that hangs costs
// a thread.
func (c *Client) begin(what string) (*pending, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := range c.hung {
		return nil, fmt.Errorf("%s: %w: HNS has been busy since %s with: %s", what, ErrTimeout, p.since.Format(time.TimeOnly), p.what)
	}
	c.made.Add(1)
	return &pending{what: what, since: time.Now()}, nil
}

// end tells whether the call was abandoned.
func (c *Client) end(p *pending) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	abandoned := c.hung[p]
	p.ended = true
	delete(c.hung, p)
	return abandoned
}

// abandon is for a call that nobody waits for any more: it counts as hanging until it ends. False: it has ended, and its
// answer is on its way.
func (c *Client) abandon(p *pending) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !p.ended {
		c.hung[p] = true
	}
	return !p.ended
}
