package kube

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"flannel/subnet"
)

// Watch hands over the others' leases; see subnet.Manager.
func (m *Manager) Watch(ctx context.Context, changed func(subnet.Set)) error {
	p := &peers{own: m.ownName(), changed: changed}
	return m.follow(ctx, feed{activity: "watch the nodes", to: p.happened})
}

// peers turns Nodes into Sets. Slices that were handed out are never written to again.
type peers struct {
	own     string // the name of our Node, which is left out
	changed func(subnet.Set)

	known   map[string]entry // by name of the node; those without a part in the network are not in it, but for Windows nodes
	ghosts  map[string]time.Time
	leases  []*subnet.Lease // as handed out last
	rejects []subnet.Rejected
	windows string // as handed out last
}

// entry is what a Node says: a lease, or why not. A node that runs Windows is one before it has a lease.
type entry struct {
	lease   *subnet.Lease
	reject  string
	windows bool
}

// order is that of subnet.Compare; of two nodes with one subnet, every node must see the same one first.
func order(a, b *subnet.Lease) int { return cmp.Or(subnet.Compare(a, b), cmp.Compare(a.Name, b.Name)) }

// ghostLife is how long a peer stays that a replaced store does not know.
const ghostLife = 24 * time.Hour

// haunt sorts out the ghosts, and returns the changes that remain. Their time is looked at whenever anything happens:
// every Node says that it is alive every few minutes.
func (p *peers) haunt(changes []change) (rest []change) {
	for _, c := range changes {
		if c.node == nil && c.replaced && p.known[c.name].lease != nil {
			p.ghosts[c.name] = time.Now().Add(ghostLife)
			continue
		}
		delete(p.ghosts, c.name)
		rest = append(rest, c)
	}
	var present []*subnet.Lease
	for _, c := range rest {
		if l := p.read(c).lease; l != nil {
			present = append(present, l)
		}
	}
	for name, end := range p.ghosts {
		// What the store says of a ghost's subnet or address counts for more.
		displaced := slices.ContainsFunc(present, func(l *subnet.Lease) bool { return l.Displaces(p.known[name].lease) })
		if displaced || !time.Now().Before(end) {
			delete(p.ghosts, name)
			rest = append(rest, change{name: name})
		}
	}
	return rest
}

// many changes are cheaper sorted in than put in one by one.
const many = 64

func (p *peers) happened(_ context.Context, changes []change) error {
	first := p.known == nil
	if first {
		p.known, p.ghosts = make(map[string]entry, len(changes)), map[string]time.Time{}
	}
	if len(p.ghosts) > 0 || len(changes) > 0 && changes[0].replaced {
		changes = p.haunt(changes)
	}
	leases, copied, rejects, windows := p.leases, false, false, false
	for _, c := range changes {
		old, now := p.known[c.name], p.read(c)
		if old == now {
			continue // a heartbeat, most likely
		}
		if p.known[c.name] = now; now == (entry{}) {
			delete(p.known, c.name)
		}
		rejects, windows = rejects || old.reject != now.reject, windows || old.windows != now.windows
		if len(changes) > many {
			continue
		}
		if !copied {
			leases, copied = slices.Clone(leases), true
		}
		leases = replace(leases, old.lease, now.lease)
	}
	if len(changes) > many {
		leases = p.all()
	}
	unreadable := p.rejects
	if rejects {
		unreadable = p.unreadable()
	}
	if first || !slices.Equal(leases, p.leases) || rejects || windows {
		p.leases, p.rejects = leases, unreadable
		if windows {
			p.windows = p.firstWindows()
		}
		p.changed(subnet.Set{Leases: leases, Rejects: unreadable, Windows: p.windows})
	}
	return nil
}

// firstWindows looks at all nodes, which is only for when one begins or ceases to run Windows.
func (p *peers) firstWindows() (first string) {
	for name, e := range p.known {
		if e.windows && (first == "" || name < first) {
			first = name
		}
	}
	return first
}

// read makes of a Node what it says. A lease that says what it said before keeps its pointer.
func (p *peers) read(c change) entry {
	if c.node == nil || c.name == p.own {
		return entry{}
	}
	l, err := leaseOf(c.node)
	switch old := p.known[c.name].lease; {
	case errors.Is(err, errNoPeer):
		return entry{windows: c.node.windows}
	case err != nil:
		return entry{reject: err.Error(), windows: c.node.windows}
	case old != nil && old.Equal(l) && old.Since == l.Since:
		return entry{lease: old, windows: c.node.windows}
	}
	return entry{lease: l, windows: c.node.windows}
}

// replace takes old out of an ordered slice that is ours alone, and puts now in.
func replace(leases []*subnet.Lease, old, now *subnet.Lease) []*subnet.Lease {
	if old != nil {
		if i, found := slices.BinarySearchFunc(leases, old, order); found {
			leases = slices.Delete(leases, i, i+1)
		}
	}
	if now != nil {
		i, _ := slices.BinarySearchFunc(leases, now, order)
		leases = slices.Insert(leases, i, now)
	}
	return leases
}

func (p *peers) all() []*subnet.Lease {
	leases := make([]*subnet.Lease, 0, len(p.known))
	for _, e := range p.known {
		if e.lease != nil {
			leases = append(leases, e.lease)
		}
	}
	slices.SortFunc(leases, order)
	return leases
}

// unreadable are the Nodes whose annotations are no lease, in order.
func (p *peers) unreadable() []subnet.Rejected {
	var rejects []subnet.Rejected
	for name, e := range p.known {
		if e.reject != "" {
			rejects = append(rejects, subnet.Rejected{Name: name, Reason: e.reject})
		}
	}
	slices.SortFunc(rejects, func(a, b subnet.Rejected) int { return cmp.Compare(a.Name, b.Name) })
	return rejects
}
