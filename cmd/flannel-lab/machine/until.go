package machine

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Longest is the timeout for any single event in the lab, such as the start of
// a server. On an idle machine that takes seconds, on one with ten times too
// much load it takes minutes.
const Longest = 10 * time.Minute

// Until calls f until it returns nil, and returns how long that took. Between
// two calls is a pause of 2 ms, or as long as the call took if that is longer:
// what f waits for needs the processor, too. It gives up after timeout, when ctx
// ends, or on an error made by Fatal, and returns f's last error.
func Until(ctx context.Context, timeout time.Duration, f func(context.Context) error) (time.Duration, error) {
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var last error
	for {
		called := time.Now()
		err := f(ctx)
		if err == nil {
			return time.Since(start), nil
		}
		if last != nil && ctx.Err() != nil {
			err = last // this one is probably due to ctx, not to the cause
		}
		last = err
		if fatal := new(fatalError); errors.As(err, &fatal) {
			return time.Since(start), fatal.error
		}
		select {
		case <-ctx.Done():
			return time.Since(start), fmt.Errorf("not within %v: %w", time.Since(start).Round(time.Millisecond), err)
		case <-time.After(max(2*time.Millisecond, time.Since(called))):
		}
	}
}

type fatalError struct{ error }

// Fatal marks an error after which Until does not retry.
func Fatal(err error) error { return &fatalError{err} }
