package daemon

import (
	"flannel/pkg/plan"
	"flannel/pkg/rollout"
	"flannel/subnet"
)

// cluster returns the input of the rollout. Peers that this node rejects are
// left out, since junk must not take turns: those that have adopted the offered
// configuration are judged by it, and the others by the configuration that this
// node had before. Peers that the store has lost are there, without their marks.
func (d *Daemon) cluster(n *node, in *inbox, set subnet.Set, seen markTimes) rollout.Cluster {
	a := &d.adoption
	c := rollout.Cluster{Self: n.lease.Name, Alone: len(set.Leases) == 0, Follower: d.Settings.OS == "windows",
		Answers: len(d.sources(n, a.offered.wire)) > 0, Published: in.hasPublished(&n.lease) && markOf(&n.lease) == a.rollout.Mark()}
	retained := map[string]bool{}
	for _, r := range set.Retained {
		retained[r.Lease.Name] = true
	}
	former := n.validConfig()
	if former.wire == a.offered.wire {
		former = a.former
	}
	var moved, stayed []*subnet.Lease
	for _, l := range set.Leases {
		switch m := markOf(l); {
		case m.ID == rollout.ID(a.offered.wire.Name) && m.Phase != rollout.Ready && m.Phase != rollout.Reverted:
			moved = append(moved, l)
		default:
			stayed = append(stayed, l)
		}
	}
	for _, l := range append(d.accepted(n, former, stayed), d.accepted(n, a.offered, moved)...) {
		p := rollout.Peer{Name: l.Name}
		if !retained[l.Name] {
			p.Mark, p.Seen = markOf(l), seen[l.Name]
		}
		c.Peers = append(c.Peers, p)
	}
	return c
}

// accepted returns the leases for which this node would have paths with a
// configuration.
func (d *Daemon) accepted(n *node, c validConfig, leases []*subnet.Lease) (valid []*subnet.Lease) {
	judge, err := d.judge(n, c)
	if err != nil { // the configuration does not fit the present underlay
		return nil
	}
	losers := judge.Losers(leases)
	for _, l := range leases {
		if !losers[l] && judge.Check(l) == nil {
			valid = append(valid, l)
		}
	}
	return valid
}

// judge returns the rules by which this node would validate leases with a
// configuration, on the present underlay.
func (d *Daemon) judge(n *node, c validConfig) (subnet.Judge, error) {
	with := *n
	with.config, with.maker = c.config, c.maker
	with.config.Underlay = n.link.Prefixes()
	b, _, err := d.newBackend(&with)
	if err != nil {
		return nil, err
	}
	p := plan.New(with.config, n.lease, b)
	p.SetAddrs(n.addrs)
	return p.Judge(), nil
}
