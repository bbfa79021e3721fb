// Package managertest helps to test lease managers: it runs one as the daemon
// does, and records the sets that it reports.
package managertest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"flannel/internal/test/eventually"
	"flannel/pkg/reconcile"
	"flannel/subnet"
)

// Recorder runs a manager under test, and records the sets of leases that its Watch reports.
type Recorder struct {
	Held chan error // what Hold returned; it has room for one: read it before the next Run ends

	t       testing.TB
	manager subnet.Manager
	short   func(name string) (short string, counts bool) // see NewRecorder

	mu      sync.Mutex  // guards the following
	set     *subnet.Set // the last one; nil before the first
	calls   int         // number of sets
	started bool        // a set was recorded since Run
}

// NewRecorder returns a Recorder for a manager. short gets the name of a lease. It returns
// the short name that Peers has for the lease, and whether Peers has it at all.
func NewRecorder(t testing.TB, m subnet.Manager, short func(name string) (short string, counts bool)) *Recorder {
	return &Recorder{Held: make(chan error, 1), t: t, manager: m, short: short}
}

// Run runs Watch and Hold, each in a goroutine, until the test ends or stop is called. stop
// waits until both have returned. Run may be called again then, for a new watch.
func (r *Recorder) Run() (stop func()) {
	ctx, cancel := context.WithCancel(r.t.Context())
	r.mu.Lock()
	r.started = false
	r.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := r.manager.Watch(ctx, r.Record); err != nil {
			r.t.Errorf("Watch: %v", err)
		}
	})
	wg.Go(func() { r.Held <- r.manager.Hold(ctx) })
	end := func() { cancel(); wg.Wait() }
	r.t.Cleanup(end)
	return end
}

// Record is the callback of Watch. It checks that the changes in each set but the first of a
// watch transform the previous set into this one.
func (r *Recorder) Record(s subnet.Set) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// ApplyChanges returns the leases that follow from the changes.
	if r.started && !slices.Equal(reconcile.ApplyChanges(r.set.Leases, s.Changes, subnet.Compare), s.Leases) {
		r.t.Errorf("%d changes do not lead from %d leases to these %d", len(s.Changes), len(r.set.Leases), len(s.Leases))
	}
	r.started = true
	r.set = &s
	r.calls++
}

// Last returns the last set, and the number of sets so far.
func (r *Recorder) Last() (subnet.Set, int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.set == nil {
		return subnet.Set{}, 0
	}
	return *r.set, r.calls
}

// Peers returns the short names of the leases in the last set, and those of
// rejected peers in brackets; "none" before the first set.
func (r *Recorder) Peers() string {
	s, calls := r.Last()
	if calls == 0 {
		return "none"
	}
	var names []string
	for _, l := range s.Leases {
		if name, counts := r.short(l.Name); counts {
			names = append(names, name)
		}
	}
	for _, reject := range s.Rejects {
		if name, counts := r.short(reject.Name); counts {
			names = append(names, "["+name+"]")
		}
	}
	return strings.Join(names, " ")
}

// Sees waits until Peers returns want.
func (r *Recorder) Sees(want string) {
	r.t.Helper()
	defer func() {
		if r.t.Failed() {
			r.t.Logf("the peers are %q", r.Peers())
		}
	}()
	eventually.True(r.t, fmt.Sprintf("peers are %q", want), func() bool { return r.Peers() == want })
}
