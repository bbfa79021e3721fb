package peerset

import (
	"slices"
	"time"

	"flannel/pkg/changes"
	"flannel/subnet"
)

// A mass withdrawal has more than few peers, and more than one in share of the cluster.
const (
	few   = 3
	share = 5
)

// Mass reports whether so many withdrawn peers, while so many are present, are a
// mass withdrawal: more than three, and more than 20 % of both together. All
// withdrawals of the retention time count, and not only those of one event,
// because a command that deletes all nodes deletes one after the other.
func Mass(withdrawn, present int) bool {
	return withdrawn > few && withdrawn*share > withdrawn+present
}

// withdraw records that the store no longer has the lease of e. The peer is
// retained at once if the store was replaced.
func (s *Set) withdraw(e Entry, replaced bool, now time.Time) {
	d := &departed{Retained: subnet.Retained{Lease: e.Lease, Cause: subnet.MassWithdrawal, Until: now.Add(s.retain)}, windows: e.Windows}
	if replaced {
		d.Cause, d.Until = subnet.StoreReplaced, now.Add(ReplacedFor)
	} else if s.retain <= 0 {
		return
	}
	s.expireAt(d.Until)
	s.fresh = append(s.fresh, d)
	s.withdrawn[e.Lease.Name] = d
	if replaced {
		s.keep(d)
	}
}

// deleteRetained handles the deletion, in a replaced store, of a peer that is
// retained because this store lacked it. It is a normal withdrawal now, and
// counts.
func (s *Set) deleteRetained(name string, now time.Time) {
	if d := s.withdrawn[name]; d.Cause == subnet.StoreReplaced {
		s.drop(name)
		s.withdraw(Entry{Lease: d.Lease, Windows: d.windows}, false, now)
		s.shrunk = true
	}
}

// keep retains a departed peer: it is added to the set again.
func (s *Set) keep(d *departed) {
	d.retained = true
	s.leaseEdits.Add(d.Lease.Name, changes.Change[subnet.Lease]{New: d.Lease})
	s.retainedEdits.Add(d.Lease.Name, changes.Change[subnet.Retained]{New: &d.Retained})
	s.windowsDirty = s.windowsDirty || d.windows
}

// drop forgets a withdrawn peer, and removes it from the set if it was retained.
func (s *Set) drop(name string) {
	d := s.withdrawn[name]
	if d == nil {
		return
	}
	delete(s.withdrawn, name)
	if d.retained {
		s.leaseEdits.Add(name, changes.Change[subnet.Lease]{Old: d.Lease})
		s.retainedEdits.Add(name, changes.Change[subnet.Retained]{Old: &d.Retained})
		s.windowsDirty = s.windowsDirty || d.windows
	}
}

// expire drops the withdrawn peers whose time is over.
func (s *Set) expire(now time.Time) {
	if s.next.IsZero() || now.Before(s.next) {
		return
	}
	s.next = time.Time{}
	for name, d := range s.withdrawn {
		if now.Before(d.Until) {
			s.expireAt(d.Until)
		} else {
			s.drop(name)
		}
	}
}

// expireAt makes Next return t or an earlier time.
func (s *Set) expireAt(t time.Time) {
	if s.next.IsZero() || t.Before(s.next) {
		s.next = t
	}
}

// Expire drops the withdrawn peers whose time is over, and reports whether the
// set has changed.
func (s *Set) Expire(now time.Time) (changed bool) {
	s.expire(now)
	return s.finish()
}

// Next returns when Expire should be called; the zero Time: not at all.
func (s *Set) Next() time.Time { return s.next }

// Accept drops all withdrawn peers, whose count begins at zero again, and reports
// whether the set has changed.
func (s *Set) Accept() (changed bool) {
	for name := range s.withdrawn {
		s.drop(name)
	}
	s.next = time.Time{}
	return s.finish()
}

// MassRetained reports whether peers of a mass withdrawal are retained.
func (s *Set) MassRetained() bool {
	return slices.ContainsFunc(s.retained, func(r *subnet.Retained) bool { return r.Cause == subnet.MassWithdrawal })
}

// MostWithdrawn reports whether most peers, and two at least, were withdrawn
// within the retention time, retained or not.
func (s *Set) MostWithdrawn() bool {
	count := s.massCount()
	return count > 1 && count > s.present
}

// Claimed reports whether a lease that the store has overlaps the subnets of our own
// lease l. The public address of l in another lease proves nothing: anybody can
// write it there.
func (s *Set) Claimed(l *subnet.Lease) bool { return !subnet.Free(l, s.presentLeases()) }

// claimed reports whether one of the present leases makes the departed lease l obsolete.
func claimed(l *subnet.Lease, present []*subnet.Lease) bool {
	return slices.ContainsFunc(present, func(p *subnet.Lease) bool { return p.Displaces(l) })
}

func compareRetained(a, b *subnet.Retained) int { return subnet.Compare(a.Lease, b.Lease) }

// presentLeases returns the peers' leases that the store has.
func (s *Set) presentLeases() []*subnet.Lease {
	leases := make([]*subnet.Lease, 0, s.present)
	for name, e := range s.known {
		if e.Lease != nil && name != s.own {
			leases = append(leases, e.Lease)
		}
	}
	return leases
}

// displace drops the withdrawn peers whose subnet or public address another lease
// claims. Peers that the running call has withdrawn are compared with all present
// leases, and earlier ones only with claimants, the leases that are new.
//
// Example: the store loses node-a's lease of 10.5.34.0/24 and then gets a lease
// of node-b for the same subnet. Traffic for it must go to node-b, so node-a is
// no longer retained.
func (s *Set) displace(claimants []*subnet.Lease) {
	if len(s.fresh) > 0 {
		present := s.presentLeases()
		for _, d := range s.fresh {
			if s.withdrawn[d.Lease.Name] == d && claimed(d.Lease, present) {
				s.drop(d.Lease.Name)
			}
		}
		s.fresh = nil
	}
	for _, l := range claimants {
		if s.known[l.Name].Lease != l {
			continue // it was removed by a later change of the same call
		}
		for name, d := range s.withdrawn {
			if l.Displaces(d.Lease) {
				s.drop(name)
			}
		}
	}
}

// retainMass retains all withdrawn peers if they are a mass withdrawal, also
// those that were removed before it was one.
func (s *Set) retainMass() {
	if !Mass(s.massCount(), s.present) {
		return
	}
	for _, d := range s.withdrawn {
		if !d.retained {
			s.keep(d)
		}
	}
}

// massCount counts the peers withdrawn within the retention time, without those
// that a replaced store lacked.
func (s *Set) massCount() (count int) {
	for _, d := range s.withdrawn {
		if d.Cause == subnet.MassWithdrawal {
			count++
		}
	}
	return count
}
