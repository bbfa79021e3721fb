// This file writes snapshots to the journal. The journal has room for one, and for one
// category; both are of the same adapter, except while awaitOther waits. The methods run on
// the daemon's loop, or in the commands prepare and cleanup; k.lock() locks mu, and reads
// the journal if that was not possible before. Then begun is true, or readErr says why not.
// The methods isOf, equal and pending return false for nil; missing is not called then.

package hostconfig

import (
	"errors"
	"net/netip"
	"slices"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
)

// ErrNothingToSave is in the error of Save if the host has no address, and if no former one is
// known.
var ErrNothingToSave = errors.New("without one, a network reaches nobody, and there are no settings to save")

// Save writes what host has to the journal. It is called before a step that may
// take this away. An earlier snapshot of the adapter of which something is still missing
// stays; one of another adapter stays until it is restored (awaitOther). If the host has
// no address now, the last good snapshot of the adapter is saved (RecordGood). host is
// physical, or the virtual adapter of the switch on it; adapters are all of the machine.
// After an error, the caller does not take the step, with two exceptions: Driver.rollBack
// deletes networks because nobody has been able to reach the host for minutes, and only logs
// the error, and cleanup deletes them after ErrNothingToSave.
func (k *Keeper) Save(host, physical hns.Adapter, adapters []hns.Adapter, routes []hns.Route) error {
	if err := k.awaitOther(physical, adapters); err != nil {
		return err
	}
	if err := k.saveCategory(host, physical, adapters); err != nil { // before mu is locked: Windows may take long to answer
		return err
	}
	k.lock()
	defer k.mu.Unlock()
	next, err := k.newSnapshot(host, physical, routes)
	if err != nil {
		return err
	}
	earlier := k.journal.Snapshot
	switch {
	case earlier.isOf(physical, adapters) && !earlier.missing(host, routes).none(): // something is missing still
		next = earlier
	case len(next.Addresses) > 0: // next is what host has now
	case k.good.isOf(physical, adapters):
		next = k.good
	case k.journal.LastGood.isOf(physical, adapters): // of an earlier run; somebody may have changed the host to DHCP since
		return dataplane.Waiting(CauseNoAddress, "%s to have an address, such as the last static one, %v: a network without one reaches nobody",
			physical.Name, k.journal.LastGood.static())
	default:
		return dataplane.Waiting(CauseNoAddress, "%s to have an address: %w", physical.Name, ErrNothingToSave)
	}
	next = next.without(k.pods)
	if earlier.equal(next) {
		return nil // each pass calls Save again: the timers of Restore (see Keeper) go on
	}
	if earlier != nil && !earlier.isOf(physical, adapters) {
		k.log.Warn("could not restore all host settings in time, giving up: those of another adapter take their place", "adapter", earlier.Adapter, "other", physical.Name)
	}
	k.resetTimers()
	return k.update(func(j *Journal) { j.Snapshot = next })
}

// awaitOther returns a WaitError while the journal has the settings of another adapter
// than physical, which Save would replace, and which Restore has not restored yet. It
// waits for at most Limits.Address plus Limits.DHCP, since that adapter may never return.
//
// Example: the underlay was Ethernet, and is now LAN 2. The network on Ethernet was deleted,
// and Ethernet gets its address back 20 seconds later, from DHCP although it was static. Only
// after flanneld has restored that, the network is made on LAN 2.
func (k *Keeper) awaitOther(physical hns.Adapter, adapters []hns.Adapter) error {
	k.lock()
	defer k.mu.Unlock()
	if !k.begun {
		return k.readErr // not nil, and Save ends with it
	}
	var err error
	s, c := k.journal.Snapshot, k.journal.Category
	switch {
	case k.lacksCable(): // only addresses by DHCP are missing, of an adapter that may stay down: do not wait
	case s != nil && !s.isOf(physical, adapters):
		err = dataplane.Waiting(CauseNoAddress, "%s to have its addresses and other settings back, before those of %s are saved", s.Adapter, physical.Name)
	case c.pending() && c.Category != hns.Domain && !c.isOf(physical, adapters): // that of a domain is left to Windows
		err = dataplane.Waiting(CauseCategoryPending, "the category of the network of %s to be restored, before that of %s is saved", c.Adapter, physical.Name)
	}
	if err == nil {
		k.otherSince = time.Time{}
		return nil
	}
	if startOrElapsed(&k.otherSince) >= k.limits.Address+k.limits.DHCP {
		return nil
	}
	return err
}

// SetPodNetworks removes the routes by a gateway into the pod networks from the snapshots:
// peers come and go. Until it is called, routes to peers that an earlier run left on the
// adapter look like those of any program. Driver.Apply calls it in each pass, and cleanup
// before it deletes these routes. Restoring one would undo that, or bring back a route that
// Windows refused to delete and that was lost with the network. So the change counts also if
// it cannot be written.
func (k *Keeper) SetPodNetworks(pods []netip.Prefix) {
	k.lock()
	defer k.mu.Unlock()
	if slices.Equal(k.pods, pods) || !k.begun { // the next call knows the snapshot
		return
	}
	k.pods = slices.Clone(pods) // from now on, Save and update leave out routes by a gateway into them
	if k.good != nil {
		k.good = k.good.without(pods)
	}
	if s := k.journal.Snapshot; s != nil && !s.equal(s.without(pods)) {
		k.settle(func(*Journal) {}) // update and settle do it
	}
}
