// Package peerset keeps the set of peers that a store describes. It also retains,
// for a limited time, peers that the store has lost although probably nobody
// meant to remove them. The lease managers pass it the changes of the store, and
// get a subnet.Set to hand over.
//
// A peer is withdrawn when the store no longer has its lease, or has it in a form
// that cannot be read. Normally it is removed from the set at once. It is
// retained, and traffic to it continues, in two cases: the store was replaced by
// another or an older one (for ReplacedFor), or more peers were withdrawn within
// the retention time than a cluster loses in normal operation (see Mass). A
// retained peer is removed when its time is over, when another lease claims its
// subnet or its public address, or when the operator accepts the withdrawal.
//
// Example: a command deletes all 20 peers, one after the other. The first four
// are removed, because 4 of 20 are not more than 20 %. The fifth makes it a mass
// withdrawal: the first four are added to the set again, and the fifth and all
// later ones stay in it.
package peerset

import (
	"cmp"
	"slices"
	"time"

	"flannel/pkg/changes"
	"flannel/subnet"
)

// ReplacedFor is how long a peer is retained that is missing in a replaced store:
// the longest life of its lease.
const ReplacedFor = 24 * time.Hour

// Entry is what the store has under one name. The zero Entry means that it has
// nothing there that matters.
type Entry struct {
	Lease   *subnet.Lease
	Reject  string // why the lease could not be read
	Windows bool   // the node runs Windows
}

// Change is the new Entry under a name.
type Change struct {
	Name string
	Entry
	Deleted bool // it was deleted in this store; else, a missing entry may only be unknown to a replaced store
}

// Set is a set of peers. It reads no clock: the caller passes the time, which
// must not decrease. It must not be used concurrently. Make one with New.
type Set struct {
	own    string
	retain time.Duration

	known     map[string]Entry     // by name, what the store has, our own entry included
	present   int                  // number of peers with a lease in known
	withdrawn map[string]*departed // by name
	fresh     []*departed          // those of withdrawn that the running call has added
	shrunk    bool                 // the running call has removed a peer
	next      time.Time            // the earliest Until in withdrawn, or earlier; zero: withdrawn is empty

	// What Subnets returns. These slices are never modified.
	leases   []*subnet.Lease
	changes  []changes.Change[subnet.Lease] // the difference of leases to the call before
	retained []*subnet.Retained
	rejects  []subnet.Rejected
	windows  string

	// What the running call has changed so far; finish applies it.
	leaseEdits    changes.Pending[subnet.Lease]
	retainedEdits changes.Pending[subnet.Retained]
	rejectsDirty  bool
	windowsDirty  bool
}

// departed is a withdrawn peer. It is kept for the retention time even if it is
// not retained: to be counted, and to be added again when so many follow that it
// is a mass withdrawal.
//
//	state     cause                                               action                        next state
//	present   missing in a store that replaced another            keep it for ReplacedFor       retained
//	present   missing, deleted or unreadable                      remove it, count it           departed
//	departed  the peers counted are a mass withdrawal             add all of them again         retained
//	departed  the retention time is over                          -                             forgotten
//	retained  its time is over                                    remove it                     forgotten
//	retained  of a replaced store: deleted there, or unreadable   remove it, count it           departed
//	either    the store has a lease under its name                use that lease                present
//	either    another lease claims its subnet or public address   remove it                     forgotten
//	either    the operator accepts the withdrawal                 remove it, count from zero    forgotten
//
// present is an entry in Set.known. departed and retained are entries in
// Set.withdrawn, which differ in the field retained. Cause decides what is
// counted for Mass: departed peers and those retained for a mass withdrawal, but
// not those of a replaced store.
type departed struct {
	subnet.Retained
	windows  bool
	retained bool
}

// New returns an empty set. own is the name of this node in the store, "" if it
// is not known yet. The peers of a mass withdrawal are retained for the time
// retain; if it is 0, they are not.
func New(own string, retain time.Duration) *Set {
	return &Set{own: own, retain: retain, known: map[string]Entry{}, withdrawn: map[string]*departed{}}
}

// Subnets returns the set to hand over, with what the last call has changed. Its
// slices are never modified.
func (s *Set) Subnets() subnet.Set {
	return subnet.Set{Leases: s.leases, Changes: s.changes, Retained: s.retained, Rejects: s.rejects, Windows: s.windows}
}

// Apply applies changes, in order, and reports whether the set has changed.
// replaced: the store is another or an older one than at the call before, so that
// nobody deleted the entries that it lacks. An unchanged lease keeps its pointer.
func (s *Set) Apply(updates []Change, replaced bool, now time.Time) (changed bool) {
	s.expire(now)
	var claimants []*subnet.Lease
	for _, c := range updates {
		if l := s.applyChange(c, replaced, now); l != nil {
			claimants = append(claimants, l)
		}
	}
	s.displace(claimants)
	if s.shrunk {
		s.retainMass()
	}
	return s.finish()
}

// ApplyAll is Apply for a complete list: names that are not in it are missing in the store.
func (s *Set) ApplyAll(all []Change, replaced bool, now time.Time) (changed bool) {
	listed := make(map[string]bool, len(all))
	for _, c := range all {
		listed[c.Name] = true
	}
	all = slices.Clip(all)
	for name := range s.known {
		if !listed[name] {
			all = append(all, Change{Name: name})
		}
	}
	return s.Apply(all, replaced, now)
}

// SetOwn sets the name of this node, which is not a peer, and reports whether the
// set has changed.
func (s *Set) SetOwn(own string) (changed bool) {
	if own == s.own {
		return false
	}
	s.drop(own)
	for _, name := range []string{s.own, own} {
		if e := s.known[name]; e != (Entry{}) {
			s.rejectsDirty, s.windowsDirty = true, true
			if l := e.Lease; l != nil && name == own {
				s.leaseEdits.Add(name, changes.Change[subnet.Lease]{Old: l})
				s.present--
			} else if l != nil {
				s.leaseEdits.Add(name, changes.Change[subnet.Lease]{New: l})
				s.present++
			}
		}
	}
	s.own = own
	return s.finish()
}

// applyChange applies one change. It returns the lease if it is a new one, which may
// claim the subnet of a departed peer.
func (s *Set) applyChange(c Change, replaced bool, now time.Time) (claimant *subnet.Lease) {
	old, e := s.known[c.Name], c.Entry
	last := old.Lease
	if d := s.withdrawn[c.Name]; d != nil {
		last = d.Lease
	}
	if last != nil && e.Lease != nil && last.Equal(e.Lease) && last.Since == e.Lease.Since {
		e.Lease = last
	}
	if (c.Deleted || e.Reject != "") && last != old.Lease {
		s.deleteRetained(c.Name, now)
	}
	if e == old {
		return nil // most changes of a Node are heartbeats
	}
	s.known[c.Name] = e
	if e == (Entry{}) {
		delete(s.known, c.Name)
	}
	if c.Name == s.own {
		return nil
	}
	s.rejectsDirty = s.rejectsDirty || old.Reject != e.Reject
	s.windowsDirty = s.windowsDirty || old.Windows != e.Windows
	if e.Lease != nil {
		s.drop(c.Name) // its lease exists again
	}
	if old.Lease != e.Lease {
		s.leaseEdits.Add(c.Name, changes.Change[subnet.Lease]{Old: old.Lease, New: e.Lease})
	}
	if old.Lease != nil {
		s.present--
		s.shrunk = true
	}
	switch {
	case e.Lease != nil:
		s.present++
		if old.Lease != e.Lease {
			return e.Lease
		}
	case old.Lease != nil:
		s.withdraw(old, replaced && e.Reject == "", now)
	}
	return nil
}

// finish applies the edits of the running call to what Subnets returns, and
// reports whether that has changed.
func (s *Set) finish() (changed bool) {
	s.changes = s.leaseEdits.Take(subnet.Compare)
	retained := s.retainedEdits.Take(compareRetained)
	s.leases = changes.Apply(s.leases, s.changes, subnet.Compare)
	s.retained = changes.Apply(s.retained, retained, compareRetained)
	rejects, windows := s.rejects, s.windows
	if s.rejectsDirty {
		rejects = s.allRejects()
	}
	if s.windowsDirty {
		windows = s.firstWindows()
	}
	changed = len(s.changes)+len(retained) > 0 || !slices.Equal(rejects, s.rejects) || windows != s.windows
	s.rejects, s.windows = rejects, windows
	s.rejectsDirty, s.windowsDirty, s.shrunk = false, false, false
	return changed
}

// allRejects returns the unreadable leases, sorted by name. Our own is left out,
// because its owner, this node, restores it.
func (s *Set) allRejects() []subnet.Rejected {
	var rejects []subnet.Rejected
	for name, e := range s.known {
		if e.Reject != "" && name != s.own {
			rejects = append(rejects, subnet.Rejected{Name: name, Reason: e.Reject})
		}
	}
	slices.SortFunc(rejects, func(a, b subnet.Rejected) int { return cmp.Compare(a.Name, b.Name) })
	return rejects
}

// firstWindows returns the first name of a peer that runs Windows, "" if there is
// none. It visits all peers: call it only after such a change.
func (s *Set) firstWindows() (first string) {
	consider := func(name string, windows bool) {
		if windows && name != s.own && (first == "" || name < first) {
			first = name
		}
	}
	for name, e := range s.known {
		consider(name, e.Windows)
	}
	for name, d := range s.withdrawn {
		consider(name, d.retained && d.windows)
	}
	return first
}
