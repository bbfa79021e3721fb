package peerset

import (
	"cmp"
	"errors"
	"slices"

	"flannel/pkg/reconcile"
	"flannel/subnet"
)

// This file computes what Subnets returns. Every method of set that changes what the set
// has under a name calls touch before the change, and the exported one ends with finish.

// touch records what the set has under a name, before the running call changes it. Only
// the first call for a name counts.
func (s *set) touch(name string) {
	if s.touched == nil {
		s.touched = map[string]shown{}
	}
	if _, before := s.touched[name]; !before {
		s.touched[name] = s.shown(name)
	}
}

// shown returns what the set has under a name: a retained peer, or else what the store
// has. Under our own name it is nothing.
func (s *set) shown(name string) shown {
	switch d, _ := s.withdrawn.Get(name); {
	case d != nil && d.retained:
		return shown{d.Lease, &d.Retained}
	case name == s.own:
		return shown{}
	}
	return shown{lease: s.entry(name).Lease}
}

// finish applies the changes of the running call to what Subnets returns, reports whether
// that has changed, and makes the fields of the running call empty.
func (s *set) finish() (changed bool) {
	var leases reconcile.PendingChanges[subnet.Lease]
	var retained reconcile.PendingChanges[subnet.Retained]
	for name, before := range s.touched {
		after := s.shown(name)
		leases.Add(name, reconcile.Change[subnet.Lease]{Old: before.lease, New: after.lease}) // nothing if both are the same
		if before.retained != after.retained {
			retained.Add(name, reconcile.Change[subnet.Retained]{Old: before.retained, New: after.retained})
		}
	}
	s.touched = nil
	s.changes = leases.Take(subnet.Compare)
	retainedChanges := retained.Take(compareRetained)
	s.leases = reconcile.ApplyChanges(s.leases, s.changes, subnet.Compare)
	s.retained = reconcile.ApplyChanges(s.retained, retainedChanges, compareRetained)
	rejects, windows := s.rejects, s.windows
	if s.rejectsDirty {
		rejects = s.allRejects()
	}
	if s.windowsDirty {
		windows = s.firstWindows()
	}
	changed = len(s.changes)+len(retainedChanges) > 0 || !slices.Equal(rejects, s.rejects) || windows != s.windows
	s.rejects, s.windows = rejects, windows
	s.rejectsDirty, s.windowsDirty, s.shrunk = false, false, false
	return changed
}

// allRejects returns the unreadable leases, and the unusable ones in whose place a peer
// is retained, sorted by name. Other unusable leases are in the set, and the plan reports
// them. A lease that its owner has not published yet (ErrPending) is not reported, nor is
// an unreadable one under our own name, because this node restores it.
func (s *set) allRejects() []subnet.Rejected {
	var rejects []subnet.Rejected
	for name, e := range s.known.All() {
		if e.Reject != "" && name != s.own {
			rejects = append(rejects, subnet.Rejected{Name: name, Reason: e.Reject})
		}
	}
	for name, d := range s.withdrawn.All() {
		if l := s.entry(name).Lease; d.retained && l != nil {
			if err := s.judge.Check(l); err != nil && !errors.Is(err, subnet.ErrPending) {
				rejects = append(rejects, subnet.Rejected{Name: name, Reason: err.Error()})
			}
		}
	}
	slices.SortFunc(rejects, func(a, b subnet.Rejected) int { return cmp.Compare(a.Name, b.Name) })
	return rejects
}

// firstWindows returns the first name of a peer that runs Windows, "" if there is
// none. It visits all peers: call it only if windowsDirty is true.
func (s *set) firstWindows() (first string) {
	consider := func(name string, windows bool) {
		if windows && name != s.own && (first == "" || name < first) {
			first = name
		}
	}
	for name, e := range s.known.All() {
		consider(name, e.Windows)
	}
	for name, d := range s.withdrawn.All() {
		consider(name, d.retained && d.windows)
	}
	return first
}
