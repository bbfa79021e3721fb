// This file says which peers take part in the rollout of a configuration (ADR 4,
// package rollout), and which of them have adopted it. The loop calls all of it,
// from the parts configuration and trial.
//
// The words of a rollout: nodes take turns to try the offered configuration, that is to
// adopt it until a peer answers by its way. An answer is the proof. Each node has a mark
// in its lease, which says how far it is (rollout.Phase) with which configuration (ID).
// The wire of a configuration is what nodes must have in common to reach each other,
// such as the VNI; wires are compared by all their fields.

package daemon

import (
	"errors"
	"net/netip"
	"slices"
	"time"

	"flannel/backend"
	"flannel/pkg/daemon/rollout"
	"flannel/pkg/dataplane"
	"flannel/pkg/plan"
	"flannel/subnet"
)

// cluster returns the input of the rollout's next step. Peers that this node rejects are
// left out, since an invalid lease must not take a turn before valid ones. Peers that
// the store has lost (retained) are there, without their marks. In the state Unproven
// (adopted, and no answer is possible), the peers matter only until one of them has a
// proof. seen has when this node saw the mark of each peer change, by its own clock.
//
// A Windows node is a Follower: it takes no turn, but waits for the proof of others,
// because its host has no address in an overlay from which it could ask. Answers: this
// node has one (sources). Published: the store has this node's lease with its mark, so
// that the others count it.
func (d *Daemon) cluster(p *pass, set subnet.Set, seen markTimes) rollout.Cluster {
	a, n := &d.adoption, p.node
	c := rollout.Cluster{Self: n.lease.Name, Nodes: len(set.Leases) + 1, Follower: d.Settings.OS == "windows",
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
	c.Peers = slices.Clone(a.participants.peers)
	for i := range c.Peers {
		if peer := &c.Peers[i]; retained[peer.Name] {
			peer.Mark = rollout.Mark{}
		} else {
			at := seen[peer.Name] // zero: its mark does not count
			peer.Seen, peer.Missed = at.seen, at.missed
		}
	}
	return c
}

// participants are the peers that take part in a rollout, and what they were
// computed from. A pass has others only if one of these has changed: each judgement
// costs as much as the first pass of a node, and to decode the marks of thousands of peers
// takes tens of milliseconds. The configurations are not compared:
// setOffered drops the participants with the offered one, and another one in force comes
// with another plan (build).
type participants struct {
	peers  []rollout.Peer  // with the marks of their leases, and without Seen and Missed
	plan   *plan.Plan      // the one in force, which changes with the underlay and this node's lease
	addrs  []netip.Addr    // of this node: a peer that has one of them is rejected
	leases []*subnet.Lease // of all peers; one that is unchanged keeps its pointer
	found  time.Time       // when they were computed
}

// judgeEach, times the number of peers, is the shortest time between two computations of the
// participants while lasts is true: 10 s among 10,000.
const judgeEach = time.Millisecond

// lasts reports whether the rollout is in a state that may last for days, and the node has the
// configuration of that state in force. A later step is then due only if other nodes change.
func (a *adoption) lasts(inForce backend.Wire) bool {
	switch a.rollout.State() {
	case rollout.Refused:
		return inForce != a.offered.wire // else the former one must be restored
	case rollout.Unproven:
		return inForce == a.offered.wire // else the offered one must be put in force again
	}
	return false
}

// isFor reports whether p was computed from this input.
func (p *participants) isFor(n *node, leases []*subnet.Lease) bool {
	return p.plan == n.plan && slices.Equal(p.addrs, n.host.addrs) && slices.Equal(p.leases, leases)
}

// findParticipants judges peers that have adopted the offered configuration by
// it, and the others by the configuration that this node had before. A peer whose mark
// has the phase Ready has not adopted it yet, and one that is Reverted has it no more;
// in all other phases the peer has it (hasAdopted).
func (d *Daemon) findParticipants(n *node, leases []*subnet.Lease) participants {
	a, former := &d.adoption, n.validConfig()
	if former.wire == a.offered.wire { // this node tries, or keeps, the offered one
		former = a.former
	}
	var moved, stayed []*subnet.Lease
	for _, l := range leases {
		if hasAdopted(markOf(l), rollout.ID(a.offered.wire.Name)) {
			moved = append(moved, l)
		} else {
			stayed = append(stayed, l)
		}
	}
	found := participants{plan: n.plan, addrs: n.host.addrs, leases: leases, found: time.Now()}
	for _, l := range slices.Concat(d.accepted(n, former, stayed), d.accepted(n, a.offered, moved)) {
		found.peers = append(found.peers, rollout.Peer{Name: l.Name, Mark: markOf(l)})
	}
	return found
}

// hasAdopted reports whether a node with this mark has the configuration with an ID in
// force.
func hasAdopted(m rollout.Mark, id string) bool {
	return m.ID == id && m.Phase != rollout.Ready && m.Phase != rollout.Reverted
}

// accepted returns the leases for which this node would have paths with a
// configuration: those that are valid (Check), and lose no conflict with another one
// (Losers).
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
// configuration, on the present underlay. It changes nothing: the node is a copy, and
// backends are pure. The warnings of newBackend were logged when the configuration was
// built.
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
// store has lost, whose nodes may be gone, and those whose node has reserved its subnet
// and not published how to reach it (Pending). rejects are invalid leases, and refused
// are peers of which the operating system did not take an entry.
func (p *pass) usedPeers() (used []*subnet.Lease) {
	omit := reasonsByName(slices.Concat(p.rejects, p.refused)) // only the names matter
	for _, r := range p.set.Retained {
		omit[r.Lease.Name] = "retained"
	}
	for _, l := range p.set.Leases {
		if _, omitted := omit[l.Name]; !omitted && !p.backend.Wire().Pending(l) {
			used = append(used, l)
		}
	}
	return used
}

// adopters returns the peers that have the configuration on trial, which askPeers asks:
// those whose mark says so, and that they can answer (Mark.Answers). If there are none,
// they are the peers whose lease shows that it is not of the former configuration: nodes
// that read the new one at their start, or whose lease cannot hold a mark.
func (d *Daemon) adopters(p *pass) (adopters []*subnet.Lease) {
	a, used := &d.adoption, p.usedPeers()
	for _, l := range used {
		if m := markOf(l); m.Answers && hasAdopted(m, a.rollout.Mark().ID) {
			adopters = append(adopters, l)
		}
	}
	if len(adopters) > 0 {
		return adopters
	}
	former, err := d.judge(p.node, a.former)
	if err != nil { // the former configuration does not fit the present underlay: nobody is asked in this pass
		return nil
	}
	for _, l := range used {
		if errors.Is(former.Check(l), subnet.ErrOtherConfig) { // valid, but of another configuration
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
