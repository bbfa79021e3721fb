// This file says which peers take part in the rollout of a configuration (ADR 4,
// package rollout), and which of them have adopted it. The loop calls all of it,
// from the parts configuration and trial.

package daemon

import (
	"errors"
	"net/netip"
	"slices"

	"flannel/pkg/daemon/rollout"
	"flannel/pkg/dataplane"
	"flannel/pkg/plan"
	"flannel/subnet"
)

// cluster returns the input of the rollout. Peers that this node rejects are left
// out, since junk must not take turns. Peers that the store has lost are there,
// without their marks. In the state Unproven, the peers matter only until one of
// them has a proof.
func (d *Daemon) cluster(p *pass, set subnet.Set, seen markTimes) rollout.Cluster {
	a, n := &d.adoption, p.node
	c := rollout.Cluster{Self: n.lease.Name, Alone: len(set.Leases) == 0, Follower: d.Settings.OS == "windows",
		Answers: len(d.sources(n, a.offered.wire)) > 0, Published: p.in.hasPublished(&n.lease) && markOf(&n.lease) == a.rollout.Mark()}
	retained := map[string]bool{}
	for _, r := range set.Retained {
		retained[r.Lease.Name] = true
	}
	if a.rollout.State() == rollout.Unproven && a.rollout.ProvenElsewhere() {
		return c
	}
	if !a.participants.isFor(n, set.Leases) {
		a.participants = d.findParticipants(n, set.Leases)
	}
	for _, l := range a.participants.accepted {
		peer := rollout.Peer{Name: l.Name}
		if !retained[l.Name] {
			peer.Mark, peer.Seen = markOf(l), seen[l.Name]
		}
		c.Peers = append(c.Peers, peer)
	}
	return c
}

// participants are the peers that take part in a rollout, and what they were
// computed from beside the configurations. A pass has others only if one of these
// has changed: each judgement costs as much as the first pass of a node.
type participants struct {
	accepted []*subnet.Lease
	plan     *plan.Plan // the one in force, which changes with the underlay and this node's lease
	addrs    []netip.Addr
	leases   []*subnet.Lease // of all peers
}

// isFor reports whether p was computed from this input.
func (p *participants) isFor(n *node, leases []*subnet.Lease) bool {
	return p.plan == n.plan && slices.Equal(p.addrs, n.host.addrs) && slices.Equal(p.leases, leases)
}

// findParticipants judges peers that have adopted the offered configuration by
// it, and the others by the configuration that this node had before.
func (d *Daemon) findParticipants(n *node, leases []*subnet.Lease) participants {
	a, former := &d.adoption, n.validConfig()
	if former.wire == a.offered.wire {
		former = a.former
	}
	var moved, stayed []*subnet.Lease
	for _, l := range leases {
		switch m := markOf(l); {
		case m.ID == rollout.ID(a.offered.wire.Name) && m.Phase != rollout.Ready && m.Phase != rollout.Reverted:
			moved = append(moved, l)
		default:
			stayed = append(stayed, l)
		}
	}
	return participants{slices.Concat(d.accepted(n, former, stayed), d.accepted(n, a.offered, moved)), n.plan, n.host.addrs, leases}
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
	with.config.Underlay = n.host.link.Prefixes()
	b, _, err := d.newBackend(&with)
	if err != nil {
		return nil, err
	}
	p := plan.New(with.config, n.lease, b)
	p.SetAddrs(n.host.addrs)
	return p.Judge(), nil
}

// usedPeers returns the leases that the pass made paths for, without those that the
// store has lost.
func (p *pass) usedPeers() (used []*subnet.Lease) {
	left := reasonsByName(slices.Concat(p.rejects, p.refused))
	for _, r := range p.set.Retained {
		left[r.Lease.Name] = "retained"
	}
	for _, l := range p.set.Leases {
		if _, out := left[l.Name]; !out && !p.backend.Wire().Pending(l) {
			used = append(used, l)
		}
	}
	return used
}

// adopters returns the peers that have the configuration on trial: those whose
// mark says so. If there are none, they are the peers whose lease shows that it is
// not of the former configuration: nodes that read the new one at their start, or
// whose lease cannot hold a mark.
func (d *Daemon) adopters(p *pass) (adopters []*subnet.Lease) {
	a, used := &d.adoption, p.usedPeers()
	for _, l := range used {
		if m := markOf(l); m.ID == a.rollout.Mark().ID && m.Answers && m.Phase != rollout.Ready && m.Phase != rollout.Reverted {
			adopters = append(adopters, l)
		}
	}
	if len(adopters) > 0 {
		return adopters
	}
	former, err := d.judge(p.node, a.former)
	if err != nil { // the former configuration does not fit the present underlay
		return nil
	}
	for _, l := range used {
		if errors.Is(former.Check(l), subnet.ErrOtherConfig) {
			adopters = append(adopters, l)
		}
	}
	return adopters
}

// preferTunnelled returns the peers that this node reaches by a tunnel, or all of
// them if there are none. With DirectRouting, an answer of a peer on the same link
// says nothing about the tunnel.
func (n *node) preferTunnelled(peers []*subnet.Lease) (tunnelled []*subnet.Lease) {
	for _, l := range peers {
		paths, _ := n.backend.Paths(l) // an error: the plan has rejected the peer
		if slices.ContainsFunc(paths, func(p *dataplane.Path) bool { return p.Encap != dataplane.Direct{} }) {
			tunnelled = append(tunnelled, l)
		}
	}
	if len(tunnelled) == 0 {
		return peers
	}
	return tunnelled
}
