// Package peerset keeps the set of peers that a store describes. It also retains,
// for a limited time, peers that the store has lost although probably nobody
// meant to remove them. The lease managers pass it the changes of the store, and
// get a subnet.Set to hand over.
//
// A peer is withdrawn when the store no longer has its lease, or has it in a form
// that cannot be read. Normally it is removed from the set at once. It is
// retained, and traffic to it continues, in two cases: the store was replaced by
// another or an older one (for replacedFor), or more peers were withdrawn within
// the retention time than a cluster loses in normal operation: more than three,
// and more than 20 % of those that were there (see subnet.IsMass). A retained peer is removed
// when its time is over, when another lease claims its subnet or its public address,
// or when the operator accepts the withdrawal.
//
// Anyone who can write to the store can write leases, so only usable leases decide
// about all this: those that a subnet.Judge accepts, and that lose no conflict
// with another one, such as about the same subnet (the rules are in
// pkg/plan/conflicts.go). The other leases are handed over, so that they are
// reported, but they neither count nor claim anything. A peer whose lease is
// overwritten with an unusable one is withdrawn, unless that can be the lease of a
// node with another configuration (subnet.ErrOtherConfig): such a node exists, and
// only its configuration keeps this one from reaching it.
//
// Example: a command deletes all 20 peers, one after the other. The first four
// are removed, because 4 of 20 are not more than 20 %. The fifth makes it a mass
// withdrawal: the first four are added to the set again, and the fifth and all
// later ones stay in it.
package peerset

import (
	"slices"
	"time"

	"flannel/pkg/reconcile"
	"flannel/subnet"
)

// replacedFor is how long a peer is retained that is missing in a replaced store:
// the longest life of its lease.
const replacedFor = 24 * time.Hour

// Entry is what the store has under one name: an etcd key or the name of a Node. The
// zero Entry means that it has nothing there that matters.
type Entry struct {
	Lease   *subnet.Lease // nil: there is none, or Reject says why it could not be read
	Reject  string        // "": there was nothing to read, or it could be read
	Windows bool          // the node runs Windows
}

// Change is the new Entry under a name.
type Change struct {
	Name string
	Entry
	// Deleted: this store had the entry, and somebody deleted it. A zero Entry that is
	// not Deleted is missing in a list: a replaced store may never have had it.
	Deleted bool
}

// set is a set of peers. It reads no clock: the caller passes the time, which
// must not decrease. It must not be used concurrently: a Keeper has one, and calls
// it with a lock. Make one with newSet. The states of a peer are in the table of
// departed, below; what is retained is decided in retain.go, and shown.go computes
// what Subnets returns.
//
// Each exported method that changes the set is one call: it records by touch what
// it changes, and finish ends it.
type set struct {
	own      string        // see newSet
	retain   time.Duration // see newSet
	assigned bool          // see newSet and claimsSubnet
	judge    subnet.Judge

	known     reconcile.CompactMap[string, entry]     // by name, what the store has, our own entry included
	present   int                                     // number of peers in known with usable true, validated or not
	unjudged  map[string]bool                         // names that judge has not validated; nil: all
	withdrawn reconcile.CompactMap[string, *departed] // by name; normally empty
	fresh     []*departed                             // those of withdrawn that the running Apply has added; claims empties it
	shrunk    bool                                    // the running call has withdrawn a peer
	claimed   map[string]time.Time                    // by name of a lease that has claimed an address: until when it claims no other; see claimsAddress
	next      time.Time                               // the earliest Until in withdrawn, or earlier; zero: withdrawn is empty
	losers    map[*subnet.Lease]bool                  // what lost returns, if resolved is true
	// resolved: losers is the result for the leases as they are. Whatever changes one that is used
	// or withdrawn resets it, but not the withdrawal itself (see lost). It is true only while a
	// peer is withdrawn: only then lost is called, and drop resets it.
	resolved bool

	// What Subnets returns. These slices are never modified.
	leases   []*subnet.Lease
	changes  []reconcile.Change[subnet.Lease] // the difference of leases to the call before
	retained []*subnet.Retained
	rejects  []subnet.Rejected
	windows  string // the least name of a peer that runs Windows, for a message; "": none

	// What the running call has changed so far; finish applies it.
	touched      map[string]shown // by name, what the set had there before the call
	rejectsDirty bool             // rejects must be computed again
	windowsDirty bool             // likewise windows
}

// entry is an Entry with the result of validate. Until the judge has validated it (see
// unjudged), usable and other are false, or the result of the former judge.
type entry struct {
	Entry
	usable bool // it has a lease that the judge accepts
	other  bool // it has a lease of a node with another configuration (subnet.ErrOtherConfig)
}

// unusable reports whether there is a lease that the judge does not accept.
func (e entry) unusable() bool { return e.Lease != nil && !e.usable }

// shown is what the set has under one name; zero: nothing.
type shown struct {
	lease    *subnet.Lease
	retained *subnet.Retained // nil: lease is what the store has
}

// departed is a withdrawn peer. It is kept for the retention time even if it is
// not retained: to be counted, and to be added again when so many follow that it
// is a mass withdrawal.
//
//	state     cause                                               action                        next state
//	present   it loses a conflict                                 counts leaves it out          present
//	present   missing in a store that replaced another            keep it for replacedFor       retained
//	present   missing, deleted, unreadable or unusable            remove it, count it           departed
//	present   the store has it with another configuration         -                             forgotten
//	departed  the peers counted are a mass withdrawal             add all of them again         retained
//	departed  the retention time is over                          -                             forgotten
//	retained  its time is over                                    remove it                     forgotten
//	retained  of a replaced store: deleted there, or unusable     remove it, count it           departed
//	either    the store has a usable lease under its name         use that lease                present
//	either    the store has it with another configuration         use that lease                forgotten
//	either    a usable lease claims its subnet or public address  remove it                     forgotten
//	either    the operator accepts the withdrawal                 remove it, count from zero    forgotten
//
// present is a usable entry in set.known. unusable does not include the lease of a
// node with another configuration. departed and retained are entries in
// set.withdrawn, which differ in the field retained. All other names are forgotten.
// If the store has a lease under a forgotten name, which is not usable then, the
// set has the lease, too, so that it is reported. Its removal is no withdrawal.
// Cause decides what is counted for subnet.IsMass: departed peers and those retained for a
// mass withdrawal, but not those of a replaced store. While a peer is retained, an
// unusable lease under its name is not in the set, but reported.
type departed struct {
	subnet.Retained      // Lease: the last usable one; Until: when the peer is forgotten
	windows         bool // the node runs Windows
	retained        bool // it is in the set; false: the state is departed
}

// newSet returns an empty set. own is the name of this node in the store, "" if it
// is not known yet. The peers of a mass withdrawal are retained for the time
// retain; if it is 0, they are not. assigned: the cluster assigns the nodes' subnets, as
// subnet.Config.Assigned says.
func newSet(own string, retain time.Duration, assigned bool) *set {
	return &set{own: own, retain: retain, assigned: assigned, judge: subnet.Trusting{}, claimed: map[string]time.Time{}}
}

// SetJudge validates all leases again, and reports whether the set has changed.
// A peer that is not usable any more by the new rules is not withdrawn, because
// the store still has it. While no peer is withdrawn, the leases are validated later, when
// the result matters.
func (s *set) SetJudge(j subnet.Judge) (changed bool) {
	s.judge, s.resolved = j, false
	if s.withdrawn.Len() == 0 {
		s.unjudged = nil // all
		return s.finish()
	}
	s.rejectsDirty = true // the unusable lease of a retained peer may have another reason now
	for name, e := range s.known.All() {
		was := e
		if e, _ = s.validate(e.Entry); e == was { // invalid, ignored here, matters only when the store's entry changes
			continue
		}
		s.known.Set(name, e) // All permits to set the value of a key that exists
		if name == s.own {
			continue
		}
		s.count(was, e)
		if e.usable || e.other {
			s.drop(name) // it is not withdrawn any more, if it was
		}
	}
	s.unjudged = map[string]bool{}
	return s.finish()
}

// Subnets returns the set to hand over, with what the last call has changed. Its
// slices are never modified.
func (s *set) Subnets() subnet.Set {
	return subnet.Set{Leases: s.leases, Changes: s.changes, Retained: s.retained, Rejects: s.rejects, Windows: s.windows}
}

// Apply applies changes, in order, and reports whether the set has changed.
// replaced: the store is another or an older one than at the call before, so that
// nobody deleted the entries that it lacks, and none of the updates is Deleted. An
// unchanged lease keeps its pointer.
func (s *set) Apply(updates []Change, replaced bool, now time.Time) (changed bool) {
	s.expire(now)
	recorded := s.recordNew(updates)
	var claimants []*subnet.Lease // usable and new, so that they may claim the subnet of a withdrawn peer
	for _, c := range updates[recorded:] {
		if l := s.applyChange(c, replaced, now); l != nil {
			claimants = append(claimants, l)
		}
	}
	if s.withdrawn.Len() > 0 { // else there is nothing to claim
		for _, c := range updates[:recorded] {
			if e := s.judged(c.Name); e.usable && c.Name != s.own {
				claimants = append(claimants, e.Lease)
			}
		}
	}
	s.displace(claimants) // before retainMass: a peer whose subnet or address another lease has now is not counted
	if s.shrunk {
		s.retainMass()
	}
	return s.finish()
}

// ApplyAll is Apply for a complete list: names that are not in it are missing in the
// store, but not Deleted.
func (s *set) ApplyAll(all []Change, replaced bool, now time.Time) (changed bool) {
	listed := make(map[string]bool, len(all))
	for _, c := range all {
		listed[c.Name] = true
	}
	all = slices.Clip(all)
	for name := range s.known.All() {
		if !listed[name] {
			all = append(all, Change{Name: name})
		}
	}
	return s.Apply(all, replaced, now)
}

// SetOwn sets the name of this node, which is not a peer, and reports whether the
// set has changed. What the store has under the former name becomes a peer.
func (s *set) SetOwn(own string) (changed bool) {
	if own == s.own {
		return false
	}
	s.drop(own) // it may be retained as a peer
	for _, name := range []string{s.own, own} {
		// It need not be validated: count takes usable as it is, and counts the difference when that changes.
		if e := s.entry(name); e != (entry{}) { // the zero entry: the store has nothing under the name
			s.touch(name)
			s.rejectsDirty, s.windowsDirty, s.resolved = true, true, false
			if name == own {
				s.count(e, entry{})
			} else {
				s.count(entry{}, e)
			}
		}
	}
	s.own = own
	return s.finish()
}

// entry returns what the store has under a name.
func (s *set) entry(name string) entry {
	e, _ := s.known.Get(name)
	return e
}

// recordNew applies the first updates as long as they are of new names and no peer is
// withdrawn, and returns their number. It does not validate their leases. Whether a lease is
// usable matters when its entry changes; see judged.go for when all are validated. So a
// start does not validate ten thousand leases twice, here and in the plan that gets the set,
// nor does the first change after it.
func (s *set) recordNew(updates []Change) (count int) {
	if s.withdrawn.Len() > 0 {
		return 0
	}
	s.known.Reserve(len(updates))
	for _, c := range updates {
		if s.known.Has(c.Name) {
			break
		}
		count++
		if c.Entry == (Entry{}) {
			continue // nothing that matters, now as before
		}
		if c.Name != s.own {
			s.touch(c.Name)
			s.rejectsDirty = s.rejectsDirty || c.Reject != ""
			s.windowsDirty = s.windowsDirty || c.Windows
		}
		s.known.Set(c.Name, entry{Entry: c.Entry})
		if s.unjudged != nil {
			s.unjudged[c.Name] = true
		}
	}
	return count
}

// applyChange applies one change. It returns the lease if it is usable and another one than
// before, so that it may claim the subnet of a departed peer; else nil. See Apply for replaced.
func (s *set) applyChange(c Change, replaced bool, now time.Time) (claimant *subnet.Lease) {
	old := s.entry(c.Name)
	d, _ := s.withdrawn.Get(c.Name) // nil if the peer is not withdrawn
	// Equal does not compare Since, by which conflicts are decided.
	for _, last := range []*subnet.Lease{old.Lease, d.lease()} {
		if last != nil && c.Lease != nil && last.Equal(c.Lease) && last.Since == c.Lease.Since {
			c.Lease = last
		}
	}
	if c.Entry == old.Entry && !(c.Deleted && d != nil) {
		return nil // most changes of a Node are heartbeats
	}
	old = s.judged(c.Name)
	e, invalid := s.validate(c.Entry) // invalid: unreadable, or rejected by the judge for good
	if (c.Deleted || invalid) && d != nil {
		s.deleteRetained(d, now)
	}
	if e == old {
		return nil
	}
	if c.Name != s.own {
		s.touch(c.Name)
	}
	if e == (entry{}) {
		s.known.Delete(c.Name)
	} else {
		s.known.Set(c.Name, e)
	}
	if c.Name == s.own {
		return nil
	}
	s.rejectsDirty = s.rejectsDirty || old.Reject != e.Reject || d != nil && (old.unusable() || e.unusable())
	s.windowsDirty = s.windowsDirty || old.Windows != e.Windows
	s.count(old, e)
	switch {
	case e.usable:
		s.drop(c.Name) // its lease exists again, if it was withdrawn
		if old.Lease != e.Lease {
			s.resolved = false
			return e.Lease
		}
	case e.other:
		s.drop(c.Name)
		s.resolved = s.resolved && !old.usable // the old lease takes part in conflicts no longer
	case old.usable:
		// The old lease, withdrawn now, still takes part in conflicts (see lost): so no other lease begins
		// to win only because this one is missing. An invalid entry in its place was written by somebody,
		// so that the lease was not lost with a replaced store.
		s.withdraw(old.Entry, replaced && !invalid, now)
	}
	return nil // in all other cases, nobody used the old entry, nor does anybody use the new one
}
