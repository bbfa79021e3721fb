// Package managertest is what the tests of every lease manager have in common: it runs one as the daemon does, and keeps
// what it tells.
package managertest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"flannel/pkg/changes"
	"flannel/subnet"
)

// Told is what a manager under test has told.
type Told struct {
	Held chan error // what Hold returned

	t       testing.TB
	manager subnet.Manager
	short   func(name string) (short string, counts bool)

	mu    sync.Mutex
	set   *subnet.Set
	calls int
	begun bool // a set has come since Run
}

// Listen prepares to hear a manager. Tests see its peers by short names, and only those that count.
func Listen(t testing.TB, m subnet.Manager, short func(name string) (short string, counts bool)) *Told {
	return &Told{Held: make(chan error, 1), t: t, manager: m, short: short}
}

// Run starts Watch and Hold, until the test ends or the returned function is called.
func (o *Told) Run() (stop func()) {
	ctx, cancel := context.WithCancel(o.t.Context())
	o.mu.Lock()
	o.begun = false
	o.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := o.manager.Watch(ctx, o.Take); err != nil {
			o.t.Errorf("Watch: %v", err)
		}
	})
	wg.Go(func() { o.Held <- o.manager.Hold(ctx) })
	end := func() { cancel(); wg.Wait() }
	o.t.Cleanup(end)
	return end
}

// Take is for Watch. It checks that the changes lead from one set to the next.
func (o *Told) Take(s subnet.Set) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.begun && !slices.Equal(changes.Apply(o.set.Leases, s.Changes, subnet.Compare), s.Leases) {
		o.t.Errorf("%d changes do not lead from %d leases to these %d", len(s.Changes), len(o.set.Leases), len(s.Leases))
	}
	o.begun = true
	o.set = &s
	o.calls++
}

// Last is the last set, and how many there were.
func (o *Told) Last() (subnet.Set, int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.set == nil {
		return subnet.Set{}, 0
	}
	return *o.set, o.calls
}

// Peers are the short names of the last set, and its rejects' in brackets; "none" before the first.
func (o *Told) Peers() string {
	s, calls := o.Last()
	if calls == 0 {
		return "none"
	}
	var names []string
	for _, l := range s.Leases {
		if name, counts := o.short(l.Name); counts {
			names = append(names, name)
		}
	}
	for _, r := range s.Rejects {
		if name, counts := o.short(r.Name); counts {
			names = append(names, "["+name+"]")
		}
	}
	return strings.Join(names, " ")
}

// Sees waits until Peers are what they should be.
func (o *Told) Sees(want string, within time.Duration) {
	o.t.Helper()
	defer func() {
		if o.t.Failed() {
			o.t.Logf("it sees %q", o.Peers())
		}
	}()
	Eventually(o.t, fmt.Sprintf("peers are %q", want), within, func() bool { return o.Peers() == want })
}

// Eventually polls until ok, and says how long that took.
func Eventually(t testing.TB, what string, within time.Duration, ok func() bool) {
	t.Helper()
	start := time.Now()
	for !ok() {
		if time.Since(start) > within {
			t.Fatalf("not within %v: %s", within, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Logf("%s: after %v", what, time.Since(start).Round(time.Millisecond))
}
