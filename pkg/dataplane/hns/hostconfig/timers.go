package hostconfig

import (
	"time"

	"flannel/pkg/hns"
)

// Dark returns for how long the host has lacked addresses of the snapshot, which
// it had on a physical adapter or on the virtual one of that; 0: it has them, or
// had them on another adapter.
func (k *Keeper) Dark(physical hns.Adapter) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.journal.Snapshot
	if s == nil || k.missingSince.IsZero() {
		return 0
	}
	if _, found := s.physical([]hns.Adapter{physical}); !found {
		return 0
	}
	return time.Since(k.missingSince)
}

// startOrElapsed starts a timer that does not run, and returns how long it has
// been running.
func startOrElapsed(since *time.Time) time.Duration {
	if since.IsZero() {
		*since = time.Now()
	}
	return time.Since(*since)
}

// resetTimers is called when another snapshot begins, or the last one ends.
func (k *Keeper) resetTimers() {
	k.missingSince, k.incompleteSince, k.completeSince = time.Time{}, time.Time{}, time.Time{}
	k.dhcpOff = 0
}
