// This file makes the daemon use little memory between changes: most of what its start
// allocates is garbage soon.

package main

import (
	"context"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"

	"flannel/pkg/dataplane"
)

// garbagePercent is how much garbage, in percent of what is in use, the daemon's heap may
// have before it is collected. Go's default, 100, saves no time that can be measured: the
// daemon allocates at its start, and little afterwards.
const garbagePercent = 50

// limitGarbage sets garbagePercent, unless the variable GOGC of Go says otherwise.
func limitGarbage() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbagePercent)
	}
}

// untilSettled is how long after the first Apply, after many changes or after a resync the
// daemon has allocated what it keeps: by then, probes have begun, and status and metrics have
// been asked for.
const untilSettled = 30 * time.Second

// manyChanges is the number of changed paths after which memory is to be returned again.
const manyChanges = 1000

// returningMemory returns a function that calls notify and, when the daemon is ready for the
// first time, returns the memory that its start took and no longer needs to the system. A
// node that joins again is ready again.
func returningMemory(notify func(string)) func(string) {
	var once sync.Once
	return func(state string) {
		notify(state)
		if state == sd.SdNotifyReady {
			once.Do(func() { go returnMemory() })
		}
	}
}

// leanDataplane releases the program's pages before the first Apply, which takes most memory
// of the start, and needs little of the program that has run until then. It returns memory
// untilSettled after the first Apply, after each Apply that completes manyChanges, and after
// each resync. Only the daemon's loop calls Apply and QueueResync; the timer has a goroutine of its own.
type leanDataplane struct {
	dataplane.Dataplane
	release, returnAll func() // releaseProgram and returnMemory

	started   bool        // the first Apply has begun
	returning atomic.Bool // a timer will call returnAll; its goroutine sets it to false
	paths     int         // number of paths at the last Apply
	changed   int         // paths since returning was last true; QueueResync sets it to manyChanges
}

// Apply implements dataplane.Dataplane.
func (d *leanDataplane) Apply(ctx context.Context, links dataplane.Links, s dataplane.State) ([]dataplane.Refused, error) {
	first := !d.started
	d.started = true
	if first {
		d.release()
	}
	refused, err := d.Dataplane.Apply(ctx, links, s)
	if first {
		d.returnLater()
	} else {
		d.count(s)
	}
	d.paths = len(s.Paths)
	return refused, err
}

// QueueResync implements dataplane.Dataplane. The next Apply reads everything again, for which it
// needs as much memory as for many changes.
func (d *leanDataplane) QueueResync() {
	d.changed = manyChanges
	d.Dataplane.QueueResync()
}

// count counts the paths that an Apply has changed. s.Changes lacks orphans, which are paths
// without a lease (see package daemon) and are deleted later, so the difference in length
// counts if it is larger. While a timer is pending, nothing is counted, because it will return
// the memory of these changes, too. It is not postponed: else steady changes would postpone it
// for ever.
func (d *leanDataplane) count(s dataplane.State) {
	if d.returning.Load() {
		d.changed = 0
		return
	}
	grown := len(s.Paths) - d.paths
	if d.changed += max(len(s.Changes), grown, -grown); d.changed >= manyChanges {
		d.returnLater()
	}
}

// returnLater starts a timer that calls returnAll. No other one must be pending.
func (d *leanDataplane) returnLater() {
	d.changed = 0
	d.returning.Store(true)
	time.AfterFunc(untilSettled, func() {
		d.returning.Store(false) // changes from now on may need memory that returnAll does not return
		d.returnAll()
	})
}

// returnMemory returns what is free to the system: memory of the heap, and pages of the
// program. It takes some 20 ms of CPU time with 10,000 peers. Go's metadata of the heap stays,
// some 2 % of the largest heap that there was.
func returnMemory() {
	debug.FreeOSMemory() // which collects all garbage first
	releaseProgram()
}
