package main

import (
	"context"
	"os"
	"runtime/debug"
	"sync"
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

// untilSettled is how long after the start, or after many changes, the daemon has allocated
// what it keeps: by then, probes have begun, and status and metrics have been asked for.
const untilSettled = 30 * time.Second

// manyChanges is the number of changed paths after which memory is returned again.
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
// when the daemon has settled after the start, and after each manyChanges.
type leanDataplane struct {
	dataplane.Dataplane
	release, returnAll func() // releaseProgram and returnMemory

	settled *time.Timer // calls returnAll; nil: there was no Apply yet
	changed int         // paths since settled was started
}

// Apply implements dataplane.Dataplane.
func (d *leanDataplane) Apply(ctx context.Context, links dataplane.Links, s dataplane.State) ([]dataplane.Refused, error) {
	d.changed += len(s.Changes)
	switch {
	case d.settled == nil:
		d.release()
		d.settled, d.changed = time.AfterFunc(untilSettled, d.returnAll), 0
	case d.changed >= manyChanges:
		d.settled.Reset(untilSettled)
		d.changed = 0
	}
	return d.Dataplane.Apply(ctx, links, s)
}

func returnMemory() {
	debug.FreeOSMemory() // which collects all garbage first
	releaseProgram()
}
