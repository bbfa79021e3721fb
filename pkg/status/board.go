package status

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Board collects what the parts of the daemon say of themselves. /readyz, /metrics and the
// status socket render what Now returns. The board itself knows whether the daemon is ready:
// the daemon's loop writes that (EndPass), and before, whoever waits for something (Waiting).
// Any goroutine may call its methods. The zero Board is not ready, and has no parts.
type Board struct {
	mu      sync.Mutex
	parts   []part
	ready   bool
	since   time.Time // of the last change of ready
	reached bool      // it has been ready, or Resumed was called
	problem string    // why it is not ready
	began   time.Time // of the running pass; zero between passes
}

// part fills its paragraph of a report.
type part struct {
	name string
	fill func(*Report)
}

// Names of parts.
const (
	OfProcess   = "process"   // what does not change while the daemon runs
	OfStore     = "store"     // whether the store of leases answers
	OfNode      = "node"      // what the last pass left, without the peers
	OfDataplane = "dataplane" // what the operating system counts, read from it when somebody asks
	OfProbes    = "probes"    // what is known of all peers together
	OfPeers     = "peers"     // costs some milliseconds with 10,000 peers
)

// Add adds a part. Its function is called whenever somebody asks for the part, after
// those of the parts that were added before; it must not block.
func (b *Board) Add(name string, fill func(*Report)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.parts = append(b.parts, part{name, fill})
}

// Now returns the report of the named parts; without names, of all. Whether the daemon is
// ready is always in it. The functions of the parts are called without the lock, perhaps
// by several callers at once.
func (b *Board) Now(names ...string) Report {
	b.mu.Lock()
	parts, ready, since, problem := slices.Clone(b.parts), b.ready, b.since, cmp.Or(b.problem, "starting")
	b.mu.Unlock()
	r := Report{Peers: []Peer{}, Errors: []Error{}}
	for _, p := range parts {
		if len(names) == 0 || slices.Contains(names, p.name) {
			p.fill(&r)
		}
	}
	if r.Ready, r.Since = ready, since; since.IsZero() {
		r.Since = r.Started
	}
	switch {
	case ready:
	case r.Outage != "":
		r.Problem = problem + "\n" + r.Outage
	default:
		r.Problem = problem
	}
	return r
}

// stuckAfter is how long a pass may take before the process counts as hung. The
// largest cluster needs far less.
const stuckAfter = 2 * time.Minute

// Waiting sets the daemon not ready, with what it waits for.
func (b *Board) Waiting(reason string) { b.set(false, reason) }

// EndPass records the end of a pass: nil if the network is up to date,
// otherwise the problem.
func (b *Board) EndPass(problem error) {
	if problem == nil {
		b.set(true, "")
	} else {
		b.set(false, problem.Error())
	}
}

// set records whether the daemon is ready, and that no pass runs.
func (b *Board) set(ready bool, problem string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if ready != b.ready || b.since.IsZero() {
		b.since = time.Now()
	}
	b.ready, b.problem, b.began = ready, problem, time.Time{}
	b.reached = b.reached || ready
}

// Resumed records that the node already had a network when this process
// started: then the pods' network works before the first pass, and /startupz says so.
func (b *Board) Resumed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reached = true
}

// BeginPass records the start of a pass, or of what finds out whether one is needed;
// EndPass or CancelPass records the end.
func (b *Board) BeginPass() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.began = time.Now()
}

// CancelPass records that the pass that BeginPass has recorded is not needed.
func (b *Board) CancelPass() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.began = time.Time{}
}

// Alive returns an error if a pass hangs.
func (b *Board) Alive() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.began.IsZero() && time.Since(b.began) > stuckAfter {
		return fmt.Errorf("a pass has been running for %s", time.Since(b.began).Round(time.Second))
	}
	return nil
}

// readiness returns nil if the last pass left the network up to date, otherwise the
// problem; and what the operator should know even so, "" if there is nothing.
func (b *Board) readiness() (warning string, problem error) {
	r := b.Now(OfStore, OfNode)
	if r.Ready {
		return r.Conflict, nil
	}
	return "", errors.New(r.Problem)
}

// reachedOnce returns nil if the network has been up to date at any time since the node
// got it, otherwise the problem.
func (b *Board) reachedOnce() error {
	b.mu.Lock()
	reached := b.reached
	b.mu.Unlock()
	if reached {
		return nil
	}
	_, problem := b.readiness()
	return problem
}
