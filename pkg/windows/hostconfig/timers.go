// This file has the timers of Keeper. TrackDark tells the driver when to take a
// switch away again, since nobody can reach the host (Pace.Rollback in
// pkg/windows). The driver calls it and SetReachable on the daemon's loop, or in prepare.

package hostconfig

import (
	"time"

	"flannel/pkg/windows/hns"
)

// TrackDark returns for how long the host has lacked its addresses on a physical
// adapter and on the virtual one of a switch that is bound to it; 0: it has
// them, or flanneld had no part in their loss.
//
// With a snapshot of the adapter, these are the addresses that it holds. Without
// one, flanneld has restored all that it ever took away. A host without any
// address then counts as dark if no virtual adapter is up, or if the journal was
// missing or unreadable.
//
// While the physical adapter is down, as without a cable, the host is not dark,
// and the time starts when the adapter comes up.
func (k *Keeper) TrackDark(physical hns.Adapter, adapters []hns.Adapter) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !physical.Up {
		k.upSince, k.darkSince = time.Time{}, time.Time{}
		return 0
	}
	up := startOrElapsed(&k.upSince)
	if k.journal.Snapshot.isOf(physical, adapters) {
		k.darkSince = time.Time{}
		if k.missingSince.IsZero() {
			return 0
		}
		return min(up, time.Since(k.missingSince))
	}
	host, virtualUp := HostAdapter(adapters, physical, true)
	switch {
	case len(Addresses(host))+len(Addresses(physical)) > 0:
		k.setReachable()
		return 0
	case virtualUp && !k.uncertain:
		k.darkSince = time.Time{}
		return 0
	}
	return startOrElapsed(&k.darkSince)
}

// SetReachable records that the host has its addresses.
func (k *Keeper) SetReachable() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.setReachable()
}

// setReachable is SetReachable with k.mu held.
func (k *Keeper) setReachable() { k.darkSince, k.uncertain = time.Time{}, false }

// startOrElapsed starts a timer that does not run, and returns how long it has
// been running.
func startOrElapsed(since *time.Time) time.Duration {
	if since.IsZero() {
		*since = time.Now()
	}
	return time.Since(*since)
}

// resetTimers is called with k.mu held when another snapshot begins, or the last one
// ends. darkSince and upSince go on: they are about the host, not about a snapshot.
func (k *Keeper) resetTimers() {
	k.goneSince, k.missingSince, k.leaseSince, k.otherSince = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	k.downSince, k.incompleteSince, k.completeSince = time.Time{}, time.Time{}, time.Time{}
	k.dhcpOff, k.lost, k.staticMissing, k.staticStored = 0, false, false, false
	k.lastWarning = "" // the next snapshot may have the same problem
}
