package peerset

import (
	"log/slog"
	"sync"
	"time"

	"flannel/subnet"
)

// Keeper is a Set at work: it hands the set on whenever it changes, ends the time of retained peers, and logs when
// peers are retained and when none is any longer. Its methods may be called side by side.
type Keeper struct {
	log     *slog.Logger
	changed func(subnet.Set) // called with mu held

	mu           sync.Mutex
	set          *Set
	complete     bool // the first list has come
	closed       bool
	expiry       *time.Timer
	next         time.Time // when expiry fires
	ownWithdrawn bool
	episode      bool // peers are retained, and it was logged
}

// NewKeeper hands sets to changed, one call at a time, from the first ReplaceAll on. See New; close it in the end.
func NewKeeper(own string, retain time.Duration, log *slog.Logger, changed func(subnet.Set)) *Keeper {
	return &Keeper{log: log, changed: changed, set: New(own, retain)}
}

// Close stops it: changed is not called any more.
func (k *Keeper) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	if k.expiry != nil {
		k.expiry.Stop()
	}
}

// Apply takes in changes; see Set.Apply.
func (k *Keeper) Apply(changes []Change, replaced bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.handOn(k.set.Apply(changes, replaced, time.Now()))
}

// ApplyAll takes in a complete list; see Set.ApplyAll.
func (k *Keeper) ApplyAll(all []Change, replaced bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	changed := k.set.ApplyAll(all, replaced, time.Now())
	first := !k.complete
	k.complete = true
	k.handOn(changed || first)
}

// SetOwn changes which name is ours.
func (k *Keeper) SetOwn(own string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.handOn(k.set.SetOwn(own))
}

// SetOwnWithdrawn says whether the store lacks our own lease, too, and it is about to be put back.
func (k *Keeper) SetOwnWithdrawn(withdrawn bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	changed := k.ownWithdrawn != withdrawn
	k.ownWithdrawn = withdrawn
	k.set.changes = nil // they were handed on
	k.handOn(changed)
}

// InForce reports whether peers of a mass withdrawal are retained.
func (k *Keeper) InForce() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.set.InForce()
}

// MostGone reports whether most peers, and two at least, were withdrawn within the retention time, retained or not.
func (k *Keeper) MostGone() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.set.MostGone()
}

// Claimed reports whether a lease that the store has claims the subnet or the public address of l.
func (k *Keeper) Claimed(l *subnet.Lease) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.set.Claimed(l)
}

// Has reports whether the store has something that counts under a name.
func (k *Keeper) Has(name string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.set.known[name] != Entry{}
}

// Accept lets every retained peer go and returns how many they were.
func (k *Keeper) Accept() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	count := len(k.set.retained)
	if changed := k.set.Accept(); count > 0 {
		k.log.Warn("the withdrawal was accepted: retained peers go", "retained", count)
		k.handOn(changed)
	}
	return count
}

// handOn hands on what has changed, and sets the time of the next end.
func (k *Keeper) handOn(changed bool) {
	if k.closed || !k.complete {
		return
	}
	if changed {
		set := k.set.Subnets()
		set.OwnWithdrawn = k.ownWithdrawn
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
			k.next = time.Time{}
			k.handOn(k.set.Expire(time.Now()))
		})
	}
}

// report logs the beginning and the end of an episode.
func (k *Keeper) report(set subnet.Set) {
	switch retained := set.Retained; {
	case len(retained) > 0 && !k.episode:
		k.log.Error("the store lost many leases at once: retaining these peers; if they are gone for good: flanneld accept-withdrawal",
			"cause", retained[0].Cause, "retained", len(retained), "present", k.set.present, "until", retained[0].Until.Round(time.Second))
	case len(retained) == 0 && k.episode:
		k.log.Info("no peer is retained any longer", "present", k.set.present)
	}
	k.episode = len(set.Retained) > 0
}
