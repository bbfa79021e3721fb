package peerset

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"flannel/subnet"
)

// Keeper runs a set for a lease manager: it hands the set over whenever it changes,
// expires retained peers by a timer, and logs when the first peers are retained and when
// none is any more. Its methods may be called concurrently: the goroutine of
// Manager.Watch applies changes, that of Hold asks about our own lease, the loop sets
// the judge, and Accept is called for the command accept-withdrawal. The package comment
// says what is withdrawn and retained; the methods of set have the details.
type Keeper struct {
	log     *slog.Logger
	changed func(subnet.Set) // called with mu held: it must not call methods of the Keeper

	mu           sync.Mutex
	set          *set
	complete     bool        // the first list was applied; nothing is handed over before
	closed       bool        // nothing is handed over any more
	expiry       *time.Timer // calls set.Expire; nil: never set
	next         time.Time   // when expiry fires; zero: it does not
	ownWithdrawn bool        // see SetOwnWithdrawn
	ownMissing   error       // see SetOwnMissing
	retaining    bool        // peers are retained, which was logged
}

// NewKeeper returns a Keeper that calls changed with each new set, one call at a time,
// from the first ApplyAll on. changed must not call methods of the Keeper. See newSet
// for own, retain and assigned. The caller must call Close.
func NewKeeper(own string, retain time.Duration, assigned bool, log *slog.Logger, changed func(subnet.Set)) *Keeper {
	return &Keeper{log: log, changed: changed, set: newSet(own, retain, assigned)}
}

// Close stops the Keeper: changed is not called any more.
func (k *Keeper) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	if k.expiry != nil {
		k.expiry.Stop()
	}
}

// Apply applies changes; see set.Apply.
func (k *Keeper) Apply(changes []Change, replaced bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.handOver(k.set.Apply(changes, replaced, time.Now()))
}

// ApplyAll applies a complete list; see set.ApplyAll.
func (k *Keeper) ApplyAll(all []Change, replaced bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	changed := k.set.ApplyAll(all, replaced, time.Now())
	first := !k.complete
	k.complete = true
	k.handOver(changed || first)
}

// SetOwn sets the name of this node; see set.SetOwn.
func (k *Keeper) SetOwn(own string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.handOver(k.set.SetOwn(own))
}

// SetJudge sets how leases are validated; see set.SetJudge.
func (k *Keeper) SetJudge(j subnet.Judge) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.handOver(k.set.SetJudge(j))
}

// SetOwnWithdrawn records whether the store has lost our own lease in a mass withdrawal,
// too; Hold writes it again. The next sets say so.
func (k *Keeper) SetOwnWithdrawn(withdrawn bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	changed := k.ownWithdrawn != withdrawn
	k.ownWithdrawn = withdrawn
	k.handOver(changed)
}

// SetOwnMissing records why other nodes cannot know this node; nil: they can. The next
// sets say so.
func (k *Keeper) SetOwnMissing(why error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	changed := fmt.Sprint(k.ownMissing) != fmt.Sprint(why) // the text, since each call has a new error
	k.ownMissing = why
	k.handOver(changed)
}

// MassRetained reports whether peers of a mass withdrawal are retained.
func (k *Keeper) MassRetained() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.set.MassRetained()
}

// MostWithdrawn reports whether most peers, and two at least, were withdrawn
// within the retention time, retained or not.
func (k *Keeper) MostWithdrawn() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.set.MostWithdrawn()
}

// Claimed reports whether another node has a subnet of our own lease, which the store
// has lost; see set.Claimed.
func (k *Keeper) Claimed(own *subnet.Lease) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.set.Claimed(own)
}

// Has reports whether the store has an entry under a name, which may be ours.
func (k *Keeper) Has(name string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.set.entry(name) != entry{}
}

// Accept removes all retained peers and returns how many there were.
func (k *Keeper) Accept() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	count := len(k.set.retained)
	if changed := k.set.Accept(); count > 0 {
		k.log.Warn("withdrawal accepted, removing retained peers", "retained", count)
		k.handOver(changed)
	}
	return count
}

// handOver hands the set over if it has changed, and sets the timer for the next expiry.
// k.mu must be held.
func (k *Keeper) handOver(changed bool) {
	if k.closed || !k.complete {
		return
	}
	if changed {
		set := k.set.Subnets()
		k.set.changes = nil // they are handed over once, and have the leases that are gone
		set.OwnWithdrawn, set.OwnMissing = k.ownWithdrawn, k.ownMissing
		k.report(set)
		k.changed(set)
	}
	next := k.set.Next()
	if next.Equal(k.next) {
		return
	}
	if k.next = next; k.expiry != nil {
		k.expiry.Stop()
	}
	if !next.IsZero() {
		k.expiry = time.AfterFunc(time.Until(next), func() {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.next = time.Time{} // so that handOver sets the timer again
			k.handOver(k.set.Expire(time.Now()))
		})
	}
}

// report logs when the first peers are retained, and when none is any more. set.Retained
// and k.set.presentCount are the numbers in the log. k.mu must be held.
func (k *Keeper) report(set subnet.Set) {
	switch retained := set.Retained; {
	case len(retained) > 0 && !k.retaining:
		k.log.Error("store lost many leases at once, retaining these peers; to remove them run flanneld accept-withdrawal",
			"cause", retained[0].Cause, "retained", len(retained), "present", k.set.presentCount(), "until", retained[0].Until.Round(time.Second))
	case len(retained) == 0 && k.retaining:
		k.log.Info("no peers are retained any more", "present", k.set.presentCount())
	}
	k.retaining = len(set.Retained) > 0
}
