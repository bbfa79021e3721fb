package eventually

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// failing records that a test has failed, and ends its goroutine as a test does.
type failing struct {
	testing.TB
	failed bool
}

func (f *failing) Fatalf(string, ...any) {
	f.failed = true
	panic(f)
}

// Waiting ends when the state is there, and fails after the limit.
func TestWaiting(t *testing.T) {
	for _, c := range []struct {
		after time.Duration
		fails bool
	}{{after: 0}, {after: time.Second}, {after: limit}, {after: limit + time.Minute, fails: true}} {
		synctest.Test(t, func(t *testing.T) {
			f := &failing{TB: t}
			defer func() {
				if r := recover(); r != nil && r != any(f) {
					panic(r)
				}
				if f.failed != c.fails {
					t.Errorf("after %v, failed: %t", c.after, f.failed)
				}
			}()
			began := time.Now()
			True(f, "later", func() bool { return time.Since(began) >= c.after })
			if took := time.Since(began); took < c.after || took > c.after+pause {
				t.Errorf("noticed after %v, was so after %v", took, c.after)
			}
		})
	}
}

// An expensive question is asked less often.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		took := Nil(t, "later", func() error {
			asked++
			time.Sleep(time.Second)
			if asked < 5 {
				return errors.New("not yet")
			}
			return nil
		})
		if want := 9 * time.Second; took != want {
			t.Errorf("took %v, want %v", took, want)
		}
	})
}
