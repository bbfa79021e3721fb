package peerset

import (
	"errors"
	"maps"
	"slices"
	"time"

	"flannel/subnet"
)

// withdraw records that the store no longer has the lease of e, which was usable. The
// peer is retained at once if the store was replaced. Otherwise it is removed, and
// counted for retain, after which it is forgotten. Without retain it is only removed.
func (s *set) withdraw(e Entry, replaced bool, now time.Time) {
	s.shrunk = true // Apply then looks for a mass withdrawal
	d := &departed{Retained: subnet.Retained{Lease: e.Lease, Cause: subnet.MassWithdrawal, Until: now.Add(s.retain)}, windows: e.Windows}
	if replaced {
		d.Cause, d.Until = subnet.StoreReplaced, now.Add(replacedFor)
	} else if s.retain <= 0 { // --retain-peers=0: the peer is not even counted
		s.resolved = false // the lease takes part in conflicts no longer, other than a withdrawn one
		return
	}
	s.expireAt(d.Until)
	s.fresh = append(s.fresh, d)
	s.withdrawn.Set(e.Lease.Name, d)
	if replaced {
		s.keep(d)
	}
}

// deleteRetained is called when the entry of the departed peer d is deleted or becomes
// invalid. If d is retained because a replaced store lacked its lease, somebody has
// written an entry of that name since, and it is that entry that is deleted or invalid.
// So the peer is withdrawn like any other now, and counts. If d has another cause, it
// counts already, and nothing changes.
func (s *set) deleteRetained(d *departed, now time.Time) {
	if d.Cause == subnet.StoreReplaced {
		s.drop(d.Lease.Name)
		s.withdraw(Entry{Lease: d.Lease, Windows: d.windows}, false, now)
	}
}

// lease returns the lease of a departed peer; nil for a nil d: the peer is not withdrawn.
func (d *departed) lease() *subnet.Lease {
	if d == nil {
		return nil
	}
	return d.Lease
}

// keep retains a departed peer: it is added to the set again. The dirty fields make
// finish compute set.windows (the name of a peer that runs Windows) and set.rejects
// again. If the store has an unusable lease under the peer's name, the set has that lease
// while the peer is not retained; while it is, the unusable lease is only in rejects.
func (s *set) keep(d *departed) {
	s.touch(d.Lease.Name) // before the change, for finish
	d.retained = true
	s.windowsDirty = s.windowsDirty || d.windows
	s.rejectsDirty = s.rejectsDirty || s.entry(d.Lease.Name).unusable()
}

// drop forgets a withdrawn peer, and removes it from the set if it was retained. It
// does nothing if the peer is not withdrawn.
func (s *set) drop(name string) {
	d, found := s.withdrawn.Get(name)
	if !found {
		return
	}
	s.touch(name)
	s.withdrawn.Delete(name)
	s.resolved = false
	s.windowsDirty = s.windowsDirty || d.retained && d.windows
	s.rejectsDirty = s.rejectsDirty || s.entry(name).unusable()
}

// expire drops the withdrawn peers whose time is over.
func (s *set) expire(now time.Time) {
	maps.DeleteFunc(s.claimed, func(_ string, until time.Time) bool { return !now.Before(until) })
	if s.next.IsZero() || now.Before(s.next) {
		return
	}
	s.next = time.Time{}
	for name, d := range s.withdrawn.All() {
		if now.Before(d.Until) {
			s.expireAt(d.Until)
		} else {
			s.drop(name)
		}
	}
}

// expireAt makes Next return t at the latest.
func (s *set) expireAt(t time.Time) {
	if s.next.IsZero() || t.Before(s.next) {
		s.next = t
	}
}

// Expire drops the withdrawn peers whose time is over, and reports whether the
// set has changed.
func (s *set) Expire(now time.Time) (changed bool) {
	s.expire(now)
	return s.finish()
}

// Next returns when Expire should be called; the zero Time: not at all.
func (s *set) Next() time.Time { return s.next }

// Accept drops all withdrawn peers, so that their count begins at zero again, and
// forgets who has claimed an address. It reports whether the set has changed.
func (s *set) Accept() (changed bool) {
	for name := range s.withdrawn.All() {
		s.drop(name)
	}
	clear(s.claimed)
	s.next = time.Time{}
	return s.finish()
}

// MassRetained reports whether peers of a mass withdrawal are retained.
func (s *set) MassRetained() bool {
	return slices.ContainsFunc(s.retained, func(r *subnet.Retained) bool { return r.Cause == subnet.MassWithdrawal })
}

// MostWithdrawn reports whether most peers, and two at least, were withdrawn
// within the retention time, retained or not. In a small cluster that is too few for a
// mass withdrawal, and yet enough for a node that has lost its own lease to write it again.
func (s *set) MostWithdrawn() bool {
	if s.countWithdrawn() < 2 {
		return false
	}
	count, present := s.counts()
	return count > 1 && count > present
}

// Claimed reports whether another node has a subnet of our own lease, which the
// store has lost. A lease that only overlaps our subnet, or has only our address, does
// not count: it would lose against ours on every node once the store has ours again.
func (s *set) Claimed(own *subnet.Lease) bool {
	// Our own judge refuses whatever overlaps our subnets; that of another node does not.
	judge := s.judge.Elsewhere()
	same := func(a, b subnet.Endpoint) bool { return a.On() && a.Subnet == b.Subnet }
	has := func(l *subnet.Lease) bool { return same(l.V4, own.V4) || same(l.V6, own.V6) }
	var valid []*subnet.Lease
	for name, e := range s.known.All() {
		if e.Lease == nil || name == s.own {
			continue
		}
		switch err := judge.Check(e.Lease); {
		case err == nil:
			valid = append(valid, e.Lease)
		// Its node uses the subnet, with a configuration that this node does not have. Nobody
		// uses a lease that is invalid for another reason.
		case errors.Is(err, subnet.ErrOtherConfig) && has(e.Lease):
			return true
		}
	}
	losers := judge.Losers(valid)
	return slices.ContainsFunc(valid, func(l *subnet.Lease) bool { return !losers[l] && has(l) })
}

// compareRetained orders retained peers as subnet.Compare their leases.
func compareRetained(a, b *subnet.Retained) int { return subnet.Compare(a.Lease, b.Lease) }

// presentLeases returns the usable leases of peers that the store has. Callers append
// those that are withdrawn.
func (s *set) presentLeases() []*subnet.Lease {
	leases := make([]*subnet.Lease, 0, s.presentCount()+s.withdrawn.Len())
	for name, e := range s.known.All() {
		if e.usable && name != s.own {
			leases = append(leases, e.Lease)
		}
	}
	return leases
}

// lost returns the leases, present or withdrawn, that are not used because of
// others, or because the judge in force does not accept them any more. A withdrawn
// lease takes part in conflicts as before: a lease that lost against the withdrawn
// one still loses. So the result stays the same when a lease is withdrawn, and resolved
// stays true. The cost is that of the first Update of a plan.
func (s *set) lost() map[*subnet.Lease]bool {
	if !s.resolved {
		leases := s.presentLeases()
		for _, d := range s.withdrawn.All() {
			leases = append(leases, d.Lease)
		}
		s.losers, s.resolved = s.judge.Losers(leases), true
	}
	return s.losers
}

// claim is the claim of a lease (by) to the subnet or the public address of a withdrawn
// peer (of).
type claim struct {
	by *subnet.Lease
	of *departed
}

// claims returns what the present leases claim of the withdrawn peers, and empties fresh.
// claimants are the leases that the running call has added or changed.
//
//	lease                                    claims
//	in claimants                             the public address or the subnet of any withdrawn peer
//	present and younger than a withdrawn     the public address of a peer that the running call has
//	one: a node that gets another subnet     withdrawn (fresh)
//	has both leases for a while
//	any other                                nothing: it was in a conflict with the peer before
//
// See claimsSubnet and claimsAddress.
func (s *set) claims(claimants []*subnet.Lease) (claims []claim) {
	if len(s.fresh) > 0 {
		fresh := slices.DeleteFunc(s.fresh, func(d *departed) bool {
			last, _ := s.withdrawn.Get(d.Lease.Name)
			return last != d // it is not withdrawn any more
		})
		for name, e := range s.known.All() {
			if l := e.Lease; l != nil && name != s.own {
				mine := s.claimsOf(l, fresh)
				if len(mine) > 0 && s.judged(name).usable {
					claims = append(claims, mine...)
				}
			}
		}
		s.fresh = nil
	}
	for _, l := range claimants {
		if s.entry(l.Name).Lease != l {
			continue // it was removed by a later change of the same call
		}
		for _, d := range s.withdrawn.All() {
			if s.claimsAddress(l, d) || s.claimsSubnet(l, d) {
				claims = append(claims, claim{l, d})
			}
		}
	}
	return claims
}

// claimsOf returns the claims of a present lease to the public addresses of peers that the running
// call has withdrawn.
func (s *set) claimsOf(l *subnet.Lease, fresh []*departed) (claims []claim) {
	for _, d := range fresh {
		if l.Since > d.Lease.Since && s.claimsAddress(l, d) {
			claims = append(claims, claim{l, d})
		}
	}
	return claims
}

// claimsSubnet reports whether a lease claims the subnet of a withdrawn peer, or a part of it. A
// lease with a subnet around it claims it only if the cluster assigns the subnets: with etcd, one
// such lease could claim those of all nodes.
func (s *set) claimsSubnet(l *subnet.Lease, d *departed) bool {
	return l.Within(d.Lease) || s.assigned && d.Lease.Within(l)
}

// claimsAddress reports whether a lease claims the public address of a withdrawn peer. Once
// the lease of a name has displaced a peer by a claim to its address, it claims no other
// address until that peer would have expired: a compromised node can write the addresses
// of all peers into its own lease, one after the other. A node whose address changes
// that often for another reason needs no claim: it is used beside the peer, unless both
// have one key or MAC address.
func (s *set) claimsAddress(l *subnet.Lease, d *departed) bool {
	_, claimed := s.claimed[l.Name]
	return !claimed && l.SameNode(d.Lease)
}

// displace drops the withdrawn peers whose subnet or public address another lease
// claims, if that lease would be used without the claimed peers. See claims for claimants.
//
// Example: the store loses node-a's lease of 10.5.34.0/24 and then gets a lease
// of node-b for the same subnet. Traffic for it must go to node-b, so node-a is
// no longer retained.
func (s *set) displace(claimants []*subnet.Lease) {
	claims := s.claims(claimants)
	if len(claims) == 0 {
		return
	}
	claimed := map[*departed]bool{}
	for _, c := range claims {
		claimed[c.of] = true
	}
	leases := s.presentLeases() // and the withdrawn ones that nobody claims, which still take part in conflicts
	for _, d := range s.withdrawn.All() {
		if !claimed[d] {
			leases = append(leases, d.Lease)
		}
	}
	losers := s.judge.Losers(leases)
	for _, c := range claims {
		if !losers[c.by] {
			if until := c.of.Until; until.After(s.claimed[c.by.Name]) && !s.claimsSubnet(c.by, c.of) {
				s.claimed[c.by.Name] = until
			}
			s.drop(c.of.Lease.Name)
		}
	}
}

// retainMass retains all withdrawn peers if they are a mass withdrawal, also
// those that were removed before it was one.
func (s *set) retainMass() {
	if !subnet.IsMass(s.countWithdrawn(), 0) { // too few, however few are present
		return
	}
	if !subnet.IsMass(s.counts()) {
		return
	}
	for _, d := range s.withdrawn.All() {
		if !d.retained && !s.lost()[d.Lease] {
			s.keep(d)
		}
	}
}

// countWithdrawn returns how many peers were withdrawn within the retention time, without
// those that a replaced store lacked.
func (s *set) countWithdrawn() (withdrawn int) {
	for _, d := range s.withdrawn.All() {
		if d.Cause == subnet.MassWithdrawal {
			withdrawn++
		}
	}
	return withdrawn
}

// counts returns the result of countWithdrawn and how many peers are present, both without
// the leases in lost, which are not used. To find these conflicts takes time, so its callers
// look first whether enough peers were withdrawn.
func (s *set) counts() (withdrawn, present int) {
	withdrawn, present = s.countWithdrawn(), s.presentCount()
	for l := range s.lost() {
		if d, found := s.withdrawn.Get(l.Name); found && d.Lease == l {
			if d.Cause == subnet.MassWithdrawal {
				withdrawn--
			}
		} else {
			present--
		}
	}
	return withdrawn, present
}
