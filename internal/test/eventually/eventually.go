// Package eventually lets a test wait for a state. Effects of a command, a
// notification or another goroutine often come after it has returned: the kernel
// changes carriers, addresses, neighbours and namespaces in work queues. A test
// that looks once passes on an idle machine only.
package eventually

import (
	"errors"
	"testing"
	"time"
)

// limit ends a test that would wait forever. It is no bound on how long
// something may take: a busy machine may take minutes for what usually takes
// milliseconds.
const limit = 5 * time.Minute

// True waits until holds returns true. It fails the test if that does not
// happen.
func True(t testing.TB, what string, holds func() bool) {
	t.Helper()
	Nil(t, what, func() error {
		if holds() {
			return nil
		}
		return errNot
	})
}

var errNot = errors.New("not so")

// Nil waits until f returns nil, and logs and returns how long that took. It fails the
// test with the last error if that does not happen. Like t.Fatal, it must be
// called on the goroutine of the test; in a bubble of testing/synctest, the
// bubble's time passes.
func Nil(t testing.TB, what string, f func() error) time.Duration {
	t.Helper()
	for began := time.Now(); ; {
		asked := time.Now()
		err := f()
		if err == nil {
			took := time.Since(began)
			t.Logf("%s: after %v", what, took.Round(time.Millisecond))
			return took
		}
		if time.Since(began) > limit {
			t.Fatalf("%s: after %v: %v", what, limit, err)
		}
		// A question that is expensive takes half of the processor at most.
		time.Sleep(max(pause, time.Since(asked)))
	}
}

const pause = 2 * time.Millisecond
