package peerset

import (
	"slices"
	"time"

	"flannel/pkg/changes"
	"flannel/subnet"
)

// Few peers may go at once whatever the size of the cluster, and one in share of a larger one.
const (
	few   = 3
	share = 5
)

// Mass reports whether the withdrawals within the retention time are more than a cluster loses by itself: more than
// max(3, 20 %) of the peers that it had. They are counted over this window, not per event, because a command that
// deletes all nodes deletes one after another.
func Mass(withdrawn, present int) bool {
	return withdrawn > few && withdrawn*share > withdrawn+present
}

// withdraw notes that the store no longer has the lease of e.
func (s *Set) withdraw(e Entry, replaced bool, now time.Time) {
	d := &departed{Retained: subnet.Retained{Lease: e.Lease, Cause: subnet.MassWithdrawal, Until: now.Add(s.retain)}, windows: e.Windows}
	if replaced {
		d.Cause, d.Until = subnet.StoreReplaced, now.Add(ReplacedFor)
	} else if s.retain <= 0 {
		return
	}
	s.expireAt(d.Until)
	s.fresh = append(s.fresh, d)
	if s.withdrawn[e.Lease.Name] = d; replaced {
		s.keep(d)
	}
}

// deleteRetained makes what a replaced store lacked a withdrawal like any other: there it was deleted indeed.
func (s *Set) deleteRetained(name string, now time.Time) {
	if d := s.withdrawn[name]; d.Cause == subnet.StoreReplaced {
		s.drop(name)
		s.withdraw(Entry{Lease: d.Lease, Windows: d.windows}, false, now)
		s.shrunk = true
	}
}

// keep makes a departed peer a retained one.
func (s *Set) keep(d *departed) {
	d.retained = true
	s.leaseEdits.Add(d.Lease.Name, changes.Change[subnet.Lease]{New: d.Lease})
	s.retainedEdits.Add(d.Lease.Name, changes.Change[subnet.Retained]{New: &d.Retained})
	s.windowsDirty = s.windowsDirty || d.windows
}

// drop forgets a departed peer; a retained one goes.
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

// expire drops those whose time is over.
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

func (s *Set) expireAt(t time.Time) {
	if s.next.IsZero() || t.Before(s.next) {
		s.next = t
	}
}

// Expire drops those whose time is over, and reports whether the set differs for it.
func (s *Set) Expire(now time.Time) (changed bool) {
	s.expire(now)
	return s.finish()
}

// Next is when Expire is due; the zero Time: never.
func (s *Set) Next() time.Time { return s.next }

// Accept lets everything go that was withdrawn, and begins to count anew.
func (s *Set) Accept() (changed bool) {
	for name := range s.withdrawn {
		s.drop(name)
	}
	s.next = time.Time{}
	return s.finish()
}

// InForce reports whether peers of a mass withdrawal are retained.
func (s *Set) InForce() bool {
	for _, r := range s.retained {
		if r.Cause == subnet.MassWithdrawal {
			return true
		}
	}
	return false
}

// MostGone reports whether most peers, and two at least, were withdrawn within the retention time, retained or not.
func (s *Set) MostGone() bool {
	gone := s.massCount()
	return gone > 1 && gone > s.present
}

// Claimed reports whether a lease that the store has claims the subnet or the public address of l.
func (s *Set) Claimed(l *subnet.Lease) bool { return claimed(l, s.presentLeases()) }

func claimed(l *subnet.Lease, present []*subnet.Lease) bool {
	return slices.ContainsFunc(present, func(p *subnet.Lease) bool { return p.Displaces(l) })
}

func compareRetained(a, b *subnet.Retained) int { return subnet.Compare(a.Lease, b.Lease) }

func (s *Set) presentLeases() []*subnet.Lease {
	leases := make([]*subnet.Lease, 0, s.present)
	for name, e := range s.known {
		if e.Lease != nil && name != s.own {
			leases = append(leases, e.Lease)
		}
	}
	return leases
}

// displace drops the departed peers whose subnet or node turns up under another name: what the store says now counts
// for more. Those that departed just now are compared with all that the store has, the others with what is new there.
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
			continue // and gone again
		}
		for name, d := range s.withdrawn {
			if l.Displaces(d.Lease) {
				s.drop(name)
			}
		}
	}
}

// retainMass retains what was withdrawn if it is too much, the first of a burst included, which were gone for a moment.
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

// massCount is how many peers were withdrawn within the retention time from a store that was not replaced.
func (s *Set) massCount() (count int) {
	for _, d := range s.withdrawn {
		if d.Cause == subnet.MassWithdrawal {
			count++
		}
	}
	return count
}
