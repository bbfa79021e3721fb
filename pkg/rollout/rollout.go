// Package rollout decides when a running node adopts a disruptive network
// configuration, and when it restores the former one. A configuration is
// disruptive if a node with it cannot reach the nodes that have the former one,
// for example because of another VNI. Two nodes try it first. When these reach
// each other, the configuration is proven, and the others follow.
//
//	state     cause                                                next      action
//	settled   a disruptive configuration is offered                waiting
//	waiting   there are no other nodes                             settled   Adopt
//	waiting   it is this node's turn to try it                     trying    Adopt
//	waiting   another node has proven it, and the jitter is over   trying    Adopt
//	waiting   all turns are over, and nobody has proven it         refused
//	waiting   the configuration in force is offered                settled
//	trying    another node that has it answers                     settled   (the Mark becomes Proven)
//	trying    none answers for as long as Stagger                  refused   GoBack
//	trying    the former configuration is offered                  settled   (the caller restores it)
//	refused   another node has proven it; not tried since          trying    Adopt
//	refused   another configuration is offered                     as settled
//
// Example with a Stagger of 60 s: nothing happens for the first 15 s (Hold), so
// that the operator can correct a mistake. Then nodes A and B try the
// configuration. If one of them gets an answer from the other, both publish a
// proven Mark, and the other nodes follow within 15 s (Spread), each at a
// random time. Otherwise A and B restore the former configuration at 75 s, and
// C and D try it; after four such turns all nodes refuse it.
//
// The package does no I/O: the caller passes in the time, the peers and the
// answers, and does what an Action says.
package rollout

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"time"
)

// State is the state of a node's rollout; see the table above. It concerns the
// configuration that was offered last.
type State int

// The states.
const (
	Settled State = iota
	Waiting
	Trying
	Refused
)

// Action is what the caller must do.
type Action int

// The actions. When Step returns Adopt or GoBack, the state is already the next
// one.
const (
	Nothing Action = iota
	Adopt
	GoBack
)

const (
	// turns is how often perTurn nodes try. The nodes of one turn may be unable
	// to adopt the configuration (flannel, or a Windows node), or to reach each
	// other for another reason.
	turns = 4
	// perTurn is how many nodes try at the same time.
	perTurn = 2
)

// Mark is what a node publishes in its lease about the rollout. The zero Mark
// means that it has adopted nothing while it ran.
type Mark struct {
	ID     string // of the configuration that the node has adopted while it ran
	Proven bool   // another node that has it has answered
}

// Peer is another node.
type Peer struct {
	Name string // comparable with Cluster.Self
	Mark Mark
}

// Cluster is the input of Step. All nodes must use the same names, because the
// turns depend on them.
type Cluster struct {
	Self     string
	Peers    []Peer
	Follower bool // this node takes no turn; it waits until other nodes have proven the configuration
}

// Rollout is the state machine of one node. The zero Rollout is settled, with a
// Stagger of 0.
type Rollout struct {
	// Stagger is the duration of one turn. Hold and Spread are fractions of it.
	Stagger time.Duration

	state     State
	id        string    // of the offered configuration; "" when settled
	since     time.Time // of the offer; when trying, of the adoption
	proofSeen time.Time // when another node's proof was first seen; zero: not yet
	turn      time.Time // when this node's turn begins; zero: it has none
	failed    bool      // this node tried it after another node's proof, and got no answer
	mark      Mark
}

// ID returns the ID of a configuration, given the part that nodes must have in
// common to reach each other.
func ID(common string) string {
	sum := sha256.Sum256([]byte(common))
	return hex.EncodeToString(sum[:6])
}

// Hold is the time between an offer and the first turn, in which the operator
// can withdraw the configuration.
func (r *Rollout) Hold() time.Duration { return r.Stagger / 4 }

// Spread is the maximum jitter with which nodes follow a proof.
func (r *Rollout) Spread() time.Duration { return r.Stagger / 4 }

// State returns the state.
func (r *Rollout) State() State { return r.state }

// Mark returns the Mark that this node must publish.
func (r *Rollout) Mark() Mark { return r.mark }

// Turn returns when this node tries the configuration unless another node
// proves it before; zero: never.
func (r *Rollout) Turn() time.Time { return r.turn }

// Deadline returns when a trial ends.
func (r *Rollout) Deadline() time.Time { return r.since.Add(r.Stagger) }

// Offer starts the rollout of a disruptive configuration, and returns whether
// it is a new one. If it is the current or the refused one, nothing changes.
// The caller must end a trial by Withdraw before.
func (r *Rollout) Offer(id string, now time.Time) bool {
	if r.state != Settled && r.id == id {
		return false
	}
	*r = Rollout{Stagger: r.Stagger, state: Waiting, id: id, since: now, mark: r.mark}
	return true
}

// Withdraw ends the rollout. The configuration in force stays; during a trial,
// the caller restores the former one.
func (r *Rollout) Withdraw() {
	mark := r.mark
	if r.state == Trying {
		mark = Mark{}
	}
	*r = Rollout{Stagger: r.Stagger, mark: mark}
}

// Answered records that another node with the configuration on trial has
// answered.
func (r *Rollout) Answered() {
	if r.state == Trying {
		r.state, r.mark.Proven = Settled, true
	}
}

// Step returns the action that is due, and after what time to call Step again
// if nothing changes before (0: never).
func (r *Rollout) Step(c Cluster, now time.Time) (Action, time.Duration) {
	switch r.state {
	case Trying:
		if left := r.Deadline().Sub(now); left > 0 {
			return Nothing, left
		}
		r.state, r.failed, r.mark = Refused, !r.proofSeen.IsZero(), Mark{}
		return GoBack, 0
	case Waiting, Refused:
		return r.wait(c, now)
	}
	return Nothing, 0
}

// wait is Step for the states Waiting and Refused.
func (r *Rollout) wait(c Cluster, now time.Time) (Action, time.Duration) {
	if len(c.Peers) == 0 {
		r.state, r.mark = Settled, Mark{}
		return Adopt, 0
	}
	var due time.Time // when this node adopts the configuration; zero: never
	if r.proven(c.Peers) && !r.failed {
		if r.proofSeen.IsZero() {
			r.proofSeen = now
		}
		due = r.proofSeen.Add(time.Duration(float64(r.Spread()) * float64(r.hash(c.Self)) / (1 << 64)))
	}
	r.turn = time.Time{}
	turnsEnd := r.since.Add(r.Hold() + turns*r.Stagger)
	if rank := r.rank(c) / perTurn; r.state == Waiting && rank < turns && !c.Follower {
		r.turn = r.since.Add(r.Hold() + time.Duration(rank)*r.Stagger)
		if due.IsZero() || r.turn.Before(due) {
			due = r.turn
		}
	}
	switch {
	case !due.IsZero() && !now.Before(due):
		r.state, r.since, r.mark = Trying, now, Mark{ID: r.id}
		return Adopt, r.Stagger
	case !due.IsZero():
		return Nothing, due.Sub(now)
	case r.state == Waiting && now.Before(turnsEnd):
		return Nothing, turnsEnd.Sub(now)
	}
	r.state = Refused
	return Nothing, 0
}

// proven reports whether one of the peers has proven the offered configuration.
func (r *Rollout) proven(peers []Peer) bool {
	return slices.ContainsFunc(peers, func(p Peer) bool { return p.Mark == Mark{ID: r.id, Proven: true} })
}

// rank returns how many nodes come before this one, in an order that differs
// between configurations, so that not the same nodes try each of them.
func (r *Rollout) rank(c Cluster) (rank int) {
	own := r.hash(c.Self)
	for _, p := range c.Peers {
		if h := r.hash(p.Name); h < own || h == own && p.Name < c.Self {
			rank++
		}
	}
	return rank
}

// hash returns a number that is the same on all nodes for a node and the
// offered configuration. It determines the node's rank and jitter.
func (r *Rollout) hash(name string) uint64 {
	sum := sha256.Sum256([]byte(r.id + "\n" + name))
	return binary.BigEndian.Uint64(sum[:])
}
