// Package peerset keeps the peers that a store describes, and those for a while that it describes no longer although
// nobody may have meant to remove them: retained peers. The lease managers hand it changes; what they hand on is its
// subnet.Set.
//
// A peer whose lease the store no longer has, or has in a form that cannot be read, is withdrawn. As a rule it goes at
// once. It is retained, with all that leads to it, in two cases: the store was replaced by another or an older one
// (ReplacedFor), or more peers were withdrawn within the retention time than a cluster loses by itself (see Mass). A
// retained peer goes when its time is over, when another lease claims its subnet or its public address, or when the
// operator accepts the withdrawal.
package peerset

import (
	"cmp"
	"slices"
	"time"

	"flannel/pkg/changes"
	"flannel/subnet"
)

// ReplacedFor is how long a peer is retained that a replaced store lacks: as long as its lease could have lasted.
const ReplacedFor = 24 * time.Hour

// Entry is what the store says under one name; the zero Entry: nothing that counts.
type Entry struct {
	Lease   *subnet.Lease
	Reject  string // why there is no lease, though there should be one
	Windows bool   // the node runs Windows
}

// Change is what the store has under a name now.
type Change struct {
	Name string
	Entry
	Deleted bool // somebody deleted it in this store, which says more than that it is not there
}

// Set is pure: times are handed in, and must not decrease. It belongs to one goroutine at a time. Make one with New.
type Set struct {
	own    string
	retain time.Duration

	known     map[string]Entry // what the store has, our own entry included
	present   int              // those of known that are peers with a lease
	withdrawn map[string]*departed
	fresh     []*departed // of withdrawn, those that this call has added
	shrunk    bool        // in this call, present became smaller
	next      time.Time   // no time is over before; zero: withdrawn is empty

	// What was handed out last. These slices are never written to again.
	leases   []*subnet.Lease
	changes  []changes.Change[subnet.Lease] // by which leases differ since the call before
	retained []*subnet.Retained
	rejects  []subnet.Rejected
	windows  string

	// What a call has changed so far.
	leaseEdits    changes.Pending[subnet.Lease]
	retainedEdits changes.Pending[subnet.Retained]
	rejectsDirty  bool
	windowsDirty  bool
}

// departed is a peer whose lease the store no longer has. It is remembered for the retention time even if it is not
// retained, to be counted, and to be put back when it turns out to be one of many.
//
//	state     cause                                               action                        next state
//	present   missing in a store that replaced another            keep it for ReplacedFor       retained
//	present   missing or deleted, or its lease is unreadable      remove it, count it           departed
//	departed  more left within the retention time than Mass says  add it again, and all others  retained
//	departed  the retention time is over                          -                             forgotten
//	retained  its time is over                                    remove it                     forgotten
//	retained  of a replaced store: deleted there, or unreadable   remove it, count it           departed
//	either    the store has a lease under its name                use that lease                present
//	either    another lease claims its subnet or public address   remove it                     forgotten
//	either    the operator accepts the withdrawal                 remove it, count from zero    forgotten
//
// present is an entry in Set.known; departed and retained are entries in Set.withdrawn, which the field retained tells
// apart. Cause says what is counted: departed peers, and those that are retained for a mass withdrawal.
type departed struct {
	subnet.Retained
	windows  bool
	retained bool
}

// New is an empty set of a node whose own name is own ("": not known yet). A mass withdrawal is retained for retain; 0:
// not at all.
func New(own string, retain time.Duration) *Set {
	return &Set{own: own, retain: retain, known: map[string]Entry{}, withdrawn: map[string]*departed{}}
}

// Subnets is the set as it is to be handed on, with what the last call changed. Its slices are not written to again.
func (s *Set) Subnets() subnet.Set {
	return subnet.Set{Leases: s.leases, Changes: s.changes, Retained: s.retained, Rejects: s.rejects, Windows: s.windows}
}

// Apply takes in changes, in order, and reports whether the set differs for it. replaced: the store is not the one of
// the call before, or an older one, so nobody deleted what it lacks. A lease that says what it said before keeps its
// pointer.
func (s *Set) Apply(news []Change, replaced bool, now time.Time) (changed bool) {
	s.expire(now)
	var claimants []*subnet.Lease
	for _, c := range news {
		if l := s.take(c, replaced, now); l != nil {
			claimants = append(claimants, l)
		}
	}
	s.displace(claimants)
	if s.shrunk {
		s.retainMass()
	}
	return s.finish()
}

// ApplyAll is Apply for a complete list: what it lacks the store no longer has.
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

// SetOwn changes which name is ours and therefore no peer.
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

// take takes in one change and returns the lease that it brings, if any.
func (s *Set) take(c Change, replaced bool, now time.Time) (claimant *subnet.Lease) {
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
		return nil // a heartbeat, most likely
	}
	if s.known[c.Name] = e; e == (Entry{}) {
		delete(s.known, c.Name)
	}
	if c.Name == s.own {
		return nil
	}
	s.rejectsDirty = s.rejectsDirty || old.Reject != e.Reject
	s.windowsDirty = s.windowsDirty || old.Windows != e.Windows
	if e.Lease != nil {
		s.drop(c.Name) // it is back
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

// finish puts the edits into what is handed out, and reports whether they changed it.
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

// allRejects are the names that hold no lease though they should, in order. Our own is not reported: it is put back.
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

// firstWindows looks at all peers, which is only for when one begins or ceases to run Windows.
func (s *Set) firstWindows() (first string) {
	look := func(name string, windows bool) {
		if windows && name != s.own && (first == "" || name < first) {
			first = name
		}
	}
	for name, e := range s.known {
		look(name, e.Windows)
	}
	for name, d := range s.withdrawn {
		look(name, d.retained && d.windows)
	}
	return first
}
