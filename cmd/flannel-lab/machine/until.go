package machine

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Longest is how long the lab waits for one thing, such as a server that starts. It takes seconds where the machine does
// nothing else, and minutes where it does ten times what it can.
const Longest = 10 * time.Minute

// Until calls f every few milliseconds until it succeeds, and returns how long that took. It gives up with f's last
// error after timeout, when ctx ends, or at an error made by Fatal.
func Until(ctx context.Context, timeout time.Duration, f func(context.Context) error) (time.Duration, error) {
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var last error
	for {
		err := f(ctx)
		if err == nil {
			return time.Since(start), nil
		}
		if last != nil && ctx.Err() != nil {
			err = last // what f says once its time is up is not the reason
		}
		last = err
		if fatal := new(fatalError); errors.As(err, &fatal) {
			return time.Since(start), fatal.error
		}
		select {
		case <-ctx.Done():
			return time.Since(start), fmt.Errorf("not within %v: %w", time.Since(start).Round(time.Millisecond), err)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

type fatalError struct{ error }

// Fatal marks an error at which Until need not go on.
func Fatal(err error) error { return &fatalError{err} }
