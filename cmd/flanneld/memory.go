package main

import (
	"os"
	"runtime/debug"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
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

// untilSettled is how long after the start the daemon has allocated what it keeps: by then,
// probes have begun, and status and metrics have been asked for.
const untilSettled = 30 * time.Second

// returningMemory returns a function that calls notify and, when the daemon is ready,
// returns the memory that its start took and no longer needs to the system, at once and
// when the daemon has settled.
func returningMemory(notify func(string)) func(string) {
	return func(state string) {
		notify(state)
		if state == sd.SdNotifyReady {
			go func() {
				returnMemory()
				time.Sleep(untilSettled)
				returnMemory()
			}()
		}
	}
}

func returnMemory() {
	debug.FreeOSMemory() // which collects all garbage first
	releaseProgram()
}
