package plan

import (
	"cmp"
	"maps"
	"slices"

	"flannel/pkg/changes"
	"flannel/pkg/dataplane"
	"flannel/subnet"
)

// Outcome is what the leases come to. Its slices are never written to again.
type Outcome struct {
	Paths   []*dataplane.Path                // of the peers that can be believed, in the order of their destinations
	Since   []*dataplane.Path                // Paths as the Update before returned them, none by the first one
	Changes []changes.Change[dataplane.Path] // how Paths differ from these
	Rejects []subnet.Rejected                // the other peers, in the order of their leases
}

// Update takes in how the others' leases changed since the last Update. The first one goes through the whole set, all
// others only through what changed. A path whose lease keeps its pointer keeps its own.
func (p *Plan) Update(leases []*subnet.Lease, changed []changes.Change[subnet.Lease]) Outcome {
	if !p.begun {
		p.begun, changed = true, changes.Added(leases)
		// To grow them step by step takes longer than all else here.
		p.peers, p.claims = make(map[*subnet.Lease]*peer, len(leases)), make(map[claim]*peer, 2*len(leases))
	}
	touched := p.replace(changed)
	listed := slices.ContainsFunc(touched, func(one *peer) bool { return one.reason != "" }) // the rejects are others
	if p.contested {
		p.contested, listed = false, true
		touched = slices.AppendSeq(touched, maps.Keys(p.lost))
		p.lost = p.rejectLoops(p.resolveConflicts())
		touched = slices.AppendSeq(touched, maps.Keys(p.lost))
	}
	if listed {
		p.rejects = p.listRejects()
	}
	made, since := p.use(touched), p.paths
	p.paths = changes.Apply(since, made, comparePaths)
	return Outcome{Paths: p.paths, Since: since, Changes: made, Rejects: p.rejects}
}

// replace forgets the peers of leases that are no more, judges those that are new or to be judged again, and returns all
// of them.
func (p *Plan) replace(changed []changes.Change[subnet.Lease]) (touched []*peer) {
	touched = make([]*peer, 0, 2*(len(changed)+len(p.stale)))
	var fresh []*subnet.Lease
	for _, c := range changed {
		if one := p.peers[c.Old]; one != nil {
			p.forget(one)
			touched = append(touched, one)
		}
		if c.New != nil {
			fresh = append(fresh, c.New)
		}
	}
	for _, one := range p.stale {
		if !one.gone {
			p.forget(one)
			touched, fresh = append(touched, one), append(fresh, one.lease)
		}
	}
	p.stale = nil
	for _, l := range fresh { // only now: what one peer gives away, another may have taken
		one := p.judge(l)
		p.enter(one)
		touched = append(touched, one)
	}
	return touched
}

// use decides which of the peers have paths, and returns what that changes, in the order of the paths.
func (p *Plan) use(peers []*peer) (made []changes.Change[dataplane.Path]) {
	for _, one := range peers {
		used := !one.gone && one.reason == "" && p.lost[one] == ""
		if used == one.used {
			continue
		}
		one.used = used
		for _, path := range one.paths {
			if used {
				made = append(made, changes.Change[dataplane.Path]{New: path})
			} else {
				made = append(made, changes.Change[dataplane.Path]{Old: path})
			}
		}
	}
	slices.SortStableFunc(made, func(a, b changes.Change[dataplane.Path]) int { return comparePaths(a.Either(), b.Either()) })
	return made
}

func comparePaths(a, b *dataplane.Path) int { return a.Dst.Compare(b.Dst) }

// listRejects names the peers without paths that should have some.
func (p *Plan) listRejects() (rejects []subnet.Rejected) {
	out := slices.AppendSeq(slices.Collect(maps.Keys(p.bad)), maps.Keys(p.lost))
	slices.SortFunc(out, comparePeers)
	for _, one := range out {
		rejects = append(rejects, subnet.Rejected{Name: one.lease.Name, Reason: cmp.Or(one.reason, p.lost[one]), Local: one.local})
	}
	return rejects
}

// enter keeps the books of who claims what.
func (p *Plan) enter(one *peer) {
	p.peers[one.lease] = one
	if one.reason != "" {
		p.bad[one] = struct{}{}
	}
	if one.odd {
		p.odd[one] = struct{}{}
	}
	if one.better != nil {
		p.better[one] = struct{}{}
	}
	if one.reason == "" && p.isInside(one) {
		p.inside[one] = struct{}{}
		for host := range p.hostsOf(one) {
			p.hosts[host]++
		}
	}
	if one.lease.Backend == "" {
		p.silent++
	}
	for c := range one.claims() {
		holder, taken := p.claims[c]
		switch all := p.rivals[c]; {
		case !taken:
			p.claims[c] = one
		case all == nil:
			p.rivals[c] = []*peer{holder, one}
		default:
			p.rivals[c] = append(all, one)
		}
	}
	p.contested = p.contested || p.hasConflict(one)
}

// forget undoes enter.
func (p *Plan) forget(one *peer) {
	p.contested = p.contested || p.hasConflict(one)
	one.gone = true
	delete(p.peers, one.lease)
	delete(p.bad, one)
	delete(p.odd, one)
	delete(p.better, one)
	if _, inside := p.inside[one]; inside {
		delete(p.inside, one)
		for host := range p.hostsOf(one) {
			if p.hosts[host]--; p.hosts[host] == 0 {
				delete(p.hosts, host)
			}
		}
	}
	if one.lease.Backend == "" {
		p.silent--
	}
	for c := range one.claims() {
		all := p.rivals[c]
		if all == nil {
			delete(p.claims, c)
			continue
		}
		i := slices.Index(all, one)
		all = slices.Delete(all, i, i+1)
		if p.claims[c], p.rivals[c] = all[0], all; len(all) == 1 {
			delete(p.rivals, c)
		}
	}
}

// hasConflict reports whether a peer that is entered may be in another's way, or another in its way. One that is not can
// come and go without a look at any other peer.
func (p *Plan) hasConflict(one *peer) bool {
	if one.odd {
		return true
	}
	for c := range one.claims() {
		if p.rivals[c] != nil || p.hosts[c.subnet] > 0 {
			return true
		}
	}
	if _, inside := p.inside[one]; inside {
		for host := range p.hostsOf(one) {
			if p.claims[claim{subnet: host}] != nil || len(p.odd) > 0 {
				return true
			}
		}
	}
	for odd := range p.odd {
		for _, theirs := range odd.paths {
			if slices.ContainsFunc(one.paths, func(path *dataplane.Path) bool { return path.Dst.Overlaps(theirs.Dst) }) {
				return true
			}
		}
	}
	return false
}
