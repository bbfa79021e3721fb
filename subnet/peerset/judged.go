package peerset

import (
	"errors"

	"flannel/subnet"
)

// This file says when leases are validated, which takes some microseconds each: the entry that
// changes or claims what a withdrawn peer had (judged), and all of them when several peers are
// withdrawn, or the number of peers is to be logged (judgeRest).

// validate returns an entry with the result of the judge, and whether its lease is
// invalid. A lease is neither usable nor invalid while its owner has only reserved
// the subnet.
func (s *set) validate(e Entry) (validated entry, invalid bool) {
	if e.Lease == nil {
		return entry{Entry: e}, e.Reject != ""
	}
	err := s.judge.Check(e.Lease)
	validated = entry{e, err == nil, errors.Is(err, subnet.ErrOtherConfig)}
	return validated, err != nil && !validated.other && !errors.Is(err, subnet.ErrPending)
}

// judgeRest validates the entries that were not validated yet: those of unjudged, and all in a
// new set and after a change of the judge.
func (s *set) judgeRest() {
	if s.unjudged == nil {
		for name, e := range s.known.All() {
			s.validateAgain(name, e)
		}
	}
	for name := range s.unjudged {
		s.validateAgain(name, s.entry(name))
	}
	if s.unjudged == nil || len(s.unjudged) > 0 {
		s.unjudged = map[string]bool{} // clear would keep the memory
	}
}

// presentCount is the number of usable peers in known.
func (s *set) presentCount() int {
	s.judgeRest()
	return s.present
}

// judged returns the entry of a name, which is validated now if it was not yet.
func (s *set) judged(name string) entry {
	e := s.entry(name)
	if s.unjudged == nil || s.unjudged[name] {
		e = s.validateAgain(name, e)
		delete(s.unjudged, name)
	}
	return e
}

// validateAgain validates the entry of a name, and returns it.
func (s *set) validateAgain(name string, was entry) entry {
	e, _ := s.validate(was.Entry)
	if e != was {
		s.known.Set(name, e) // resolved is true only while peers are withdrawn, and then no entry becomes unvalidated
		if name != s.own {
			s.count(was, e)
		}
	}
	return e
}

// count updates present when the entry of a peer changes.
func (s *set) count(old, e entry) {
	if old.usable {
		s.present--
	}
	if e.usable {
		s.present++
	}
}
