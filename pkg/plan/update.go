package plan

import (
	"cmp"
	"maps"
	"slices"

	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
	"flannel/subnet"
)

// Outcome is the result of an Update. Its slices are never modified.
type Outcome struct {
	Paths   []*dataplane.Path                  // of the peers that are used, sorted by destination
	Since   []*dataplane.Path                  // the Paths of the Update before; empty for the first one
	Changes []reconcile.Change[dataplane.Path] // the differences between Since and Paths
	Rejects []subnet.Rejected                  // the rejected peers, in the order of their leases
}

// Update applies the changes of the peers' leases since the last Update. The first Update reads all leases and ignores
// changed; each later one looks only at changed. As long as the pointer to a lease stays the same, so do the pointers to
// its paths.
func (p *Plan) Update(leases []*subnet.Lease, changed []reconcile.Change[subnet.Lease]) Outcome {
	if !p.started {
		p.started, changed = true, reconcile.Added(leases)
		// Growing these maps step by step would take longer than the rest of the first Update.
		p.peers.Reserve(len(leases))
		p.holders.expect(len(leases))
	}
	touched := p.applyLeases(changed) // whose paths may come or go
	// True if an invalid peer came or went.
	rejectsChanged := slices.ContainsFunc(touched, func(peer *peer) bool { return peer.reason != "" })
	if p.needsResolve {
		p.needsResolve, rejectsChanged = false, true
		touched = slices.AppendSeq(touched, maps.Keys(p.conflicting)) // some may be in no conflict any more
		p.conflicting = p.rejectLoops(p.resolveConflicts())
		touched = slices.AppendSeq(touched, maps.Keys(p.conflicting)) // a peer may be in touched twice by now
	}
	if rejectsChanged {
		p.rejects = p.listRejects()
	}
	pathChanges, before := p.activate(touched), p.paths
	p.paths = reconcile.ApplyChanges(before, pathChanges, comparePaths)
	return Outcome{Paths: p.paths, Since: before, Changes: pathChanges, Rejects: p.rejects}
}

// applyLeases removes the peers of old leases, adds those of new leases, replaces those that must be validated again,
// and returns all of these peers.
func (p *Plan) applyLeases(changed []reconcile.Change[subnet.Lease]) (touched []*peer) {
	touched = make([]*peer, 0, 2*(len(changed)+len(p.revalidate)))
	var added []*subnet.Lease
	for _, c := range changed {
		if peer, found := p.peers.Get(c.Old); found {
			p.remove(peer)
			touched = append(touched, peer)
		}
		if c.New != nil {
			added = append(added, c.New)
		}
	}
	for _, peer := range p.revalidate {
		if p.has(peer) {
			p.remove(peer)
			touched, added = append(touched, peer), append(added, peer.lease)
		}
	}
	p.revalidate = nil
	for _, l := range added { // after all removals, because a resource may move from one peer to another
		peer := p.newPeer(l)
		p.add(peer)
		touched = append(touched, peer)
	}
	return touched
}

// activate updates which of the peers are active, and returns the resulting changes of the paths, sorted by destination.
func (p *Plan) activate(peers []*peer) (pathChanges []reconcile.Change[dataplane.Path]) {
	pathChanges = make([]reconcile.Change[dataplane.Path], 0, len(peers))
	for _, peer := range peers {
		active := p.has(peer) && peer.reason == "" && p.conflicting[peer] == ""
		if active == peer.active {
			continue
		}
		peer.active = active
		for _, path := range peer.paths {
			if active {
				pathChanges = append(pathChanges, reconcile.Change[dataplane.Path]{New: path})
			} else {
				pathChanges = append(pathChanges, reconcile.Change[dataplane.Path]{Old: path})
			}
		}
	}
	slices.SortStableFunc(pathChanges, func(a, b reconcile.Change[dataplane.Path]) int {
		return comparePaths(a.Either(), b.Either())
	})
	return pathChanges
}

// comparePaths orders paths by subnet.
func comparePaths(a, b *dataplane.Path) int { return a.Dst.Compare(b.Dst) }

// listRejects returns the invalid peers and those in conflicts, in the order of their leases.
func (p *Plan) listRejects() (rejects []subnet.Rejected) {
	rejected := slices.AppendSeq(slices.Collect(maps.Keys(p.invalid)), maps.Keys(p.conflicting))
	slices.SortFunc(rejected, comparePeers)
	for _, peer := range rejected {
		rejects = append(rejects, subnet.Rejected{
			Name: peer.lease.Name, Reason: cmp.Or(peer.reason, p.conflicting[peer]), Local: peer.local})
	}
	return rejects
}

// has reports whether the peer was added and not removed since; its lease may have another peer by now.
func (p *Plan) has(peer *peer) bool {
	current, _ := p.peers.Get(peer.lease)
	return current == peer
}

// isPending reports whether the owner of a lease has not published backend data yet, and the lease is not rejected.
func (p *Plan) isPending(peer *peer) bool { return peer.reason == "" && p.wire.Pending(peer.lease) }

// add puts the peer into the indexes of the Plan, which the type explains: holders has one
// of the peers that claim a resource, and claimants all of them, if there are several.
func (p *Plan) add(added *peer) {
	p.peers.Set(added.lease, added)
	if added.reason != "" {
		p.invalid[added] = struct{}{}
	}
	if added.unusual {
		p.unusual[added] = struct{}{}
	}
	if added.twin {
		p.twins[added] = struct{}{}
	}
	if added.outranks != nil {
		p.outranking[added] = struct{}{}
	}
	switch {
	case p.isPending(added): // newPeer accepts it unvalidated, so its public IP must not get other peers rejected
		p.pending++
	case added.reason == "" && p.isInside(added):
		p.inside[added] = struct{}{}
		for s := range p.hostSubnetsOf(added) {
			p.hostSubnets[s]++
		}
	}
	for r := range added.claims() {
		holder := p.holders.get(r)
		switch claimants := p.claimants[r]; {
		case holder == nil:
			p.holders.set(r, added)
		case claimants == nil:
			p.claimants[r] = []*peer{holder, added}
		default:
			p.claimants[r] = append(claimants, added)
		}
	}
	p.needsResolve = p.needsResolve || p.mayConflict(added)
}

// remove undoes add.
func (p *Plan) remove(peer *peer) {
	p.needsResolve = p.needsResolve || p.mayConflict(peer)
	p.peers.Delete(peer.lease)
	delete(p.invalid, peer)
	delete(p.twins, peer)
	delete(p.unusual, peer)
	delete(p.outranking, peer)
	if _, inside := p.inside[peer]; inside {
		delete(p.inside, peer)
		for s := range p.hostSubnetsOf(peer) {
			if p.hostSubnets[s]--; p.hostSubnets[s] == 0 {
				delete(p.hostSubnets, s)
			}
		}
	}
	if p.isPending(peer) {
		p.pending--
	}
	for r := range peer.claims() {
		claimants := p.claimants[r]
		if claimants == nil {
			p.holders.remove(r)
			continue
		}
		i := slices.Index(claimants, peer) // add has put it there
		claimants = slices.Delete(claimants, i, i+1)
		p.holders.set(r, claimants[0]) // one at least is left: there were several
		if p.claimants[r] = claimants; len(claimants) == 1 {
			delete(p.claimants, r)
		}
	}
}

// mayConflict reports whether a peer may be in a conflict or a loop with another one. If it is not, it can be added and
// removed without a look at any other peer. The peer is in the indexes: add calls mayConflict last, and remove first.
func (p *Plan) mayConflict(peer *peer) bool {
	if peer.unusual {
		return true
	}
	for r := range peer.claims() { // without a subnet, r is a tunnel end, and hostSubnets has no such key
		if p.claimants[r] != nil || p.hostSubnets[r.subnet] > 0 { // somebody claims the same, or has a public IP in the subnet
			return true
		}
	}
	if _, inside := p.inside[peer]; inside {
		for s := range p.hostSubnetsOf(peer) { // the public IP is in somebody's subnet, or maybe in one of unusual size
			if p.holders.subnets.Has(s) || len(p.unusual) > 0 {
				return true
			}
		}
	}
	for unusual := range p.unusual {
		for _, theirs := range unusual.paths {
			if slices.ContainsFunc(peer.paths, func(path *dataplane.Path) bool { return path.Dst.Overlaps(theirs.Dst) }) {
				return true
			}
		}
	}
	return false
}
