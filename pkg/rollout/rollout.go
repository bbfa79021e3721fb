// Package rollout decides when a running node adopts a network configuration that cuts it off from all nodes that have
// the former one, and when it goes back. Two nodes try it first; the others follow once these have reached each other.
//
//	state     cause                                                next      action
//	settled   a disruptive configuration is offered                waiting
//	waiting   no other node is there                               settled   Adopt
//	waiting   its turn to be among the first has come              trying    Adopt
//	waiting   another node has proven it, and the jitter passed    trying    Adopt
//	waiting   all turns have passed, and nobody has proven it      refused
//	waiting   the one in force is offered                          settled
//	trying    a node that has it, too, answers                     settled   (Mark says so)
//	trying    none does for as long as Stagger                     refused   GoBack
//	trying    the former one is offered                            settled   (the caller goes back)
//	refused   another node has proven it; not tried since          trying    Adopt
//	refused   another one is offered                               as settled
//
// The package is pure: time, peers and answers are handed in, and the caller does what an Action says.
package rollout

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"time"
)

// State is where a node stands with the configuration that was offered last.
type State int

// The states; see the table above.
const (
	Settled State = iota
	Waiting
	Trying
	Refused
)

// Action is what the caller must do.
type Action int

// The actions. After Adopt and GoBack the state is already the next one.
const (
	Nothing Action = iota
	Adopt
	GoBack
)

const (
	// turns is how often two nodes try: those of one turn may not be able to follow (a flannel, a Windows node) or to
	// reach each other for reasons of their own.
	turns = 4
	// perTurn is how many nodes try at the same time.
	perTurn = 2
)

// Mark is what a node says of itself in its lease. The zero Mark says nothing.
type Mark struct {
	ID     string // of the configuration that the node has adopted while it ran
	Proven bool   // a node that has it, too, has answered
}

// Peer is another node.
type Peer struct {
	Name string // as Cluster.Self is this node's
	Mark Mark
}

// Cluster is what a decision depends on. Every node must see the same names.
type Cluster struct {
	Self  string
	Peers []Peer
	// Follower nodes are never among the first.
	Follower bool
}

// Rollout is a node's state. The zero Rollout is settled, with a Stagger of 0.
type Rollout struct {
	// Stagger is how long two nodes try, and the measure of all other times.
	Stagger time.Duration

	state  State
	id     string
	since  time.Time // of the offer; when trying, of the adoption
	seen   time.Time // when another node's proof was first seen
	turn   time.Time // when this node's turn is; zero: it has none
	tried  bool      // after another node's proof, and nobody answered
	marked Mark
}

// ID names a configuration by what nodes must have in common.
func ID(wire string) string {
	sum := sha256.Sum256([]byte(wire))
	return hex.EncodeToString(sum[:6])
}

// Hold is how long nothing happens after an offer, so that it can be taken back.
func (r *Rollout) Hold() time.Duration { return r.Stagger / 4 }

// Spread bounds the jitter with which nodes follow a proof.
func (r *Rollout) Spread() time.Duration { return r.Stagger / 4 }

// State returns the state.
func (r *Rollout) State() State { return r.state }

// Mark is what this node's lease should say.
func (r *Rollout) Mark() Mark { return r.marked }

// Turn is when this node tries if nobody else proves the configuration before; zero: never.
func (r *Rollout) Turn() time.Time { return r.turn }

// Deadline is when a trial ends.
func (r *Rollout) Deadline() time.Time { return r.since.Add(r.Stagger) }

// Offer takes in a disruptive configuration and reports whether it is another one than before. What is offered already,
// or was refused, stays so. A trial must have been ended by Withdraw.
func (r *Rollout) Offer(id string, now time.Time) bool {
	if r.state != Settled && r.id == id {
		return false
	}
	*r = Rollout{Stagger: r.Stagger, state: Waiting, id: id, since: now, marked: r.marked}
	return true
}

// Withdraw ends everything that is under way: the configuration in force, or at a trial the former one, counts.
func (r *Rollout) Withdraw() {
	marked := r.marked
	if r.state == Trying {
		marked = Mark{}
	}
	*r = Rollout{Stagger: r.Stagger, marked: marked}
}

// Answered takes in that a node with the configuration on trial has answered.
func (r *Rollout) Answered() {
	if r.state == Trying {
		r.state, r.marked.Proven = Settled, true
	}
}

// Step returns what is due, and after how long to call again although nothing else has changed (0: never).
func (r *Rollout) Step(c Cluster, now time.Time) (Action, time.Duration) {
	switch r.state {
	case Trying:
		if left := r.Deadline().Sub(now); left > 0 {
			return Nothing, left
		}
		r.state, r.tried, r.marked = Refused, !r.seen.IsZero(), Mark{}
		return GoBack, 0
	case Waiting, Refused:
		return r.wait(c, now)
	}
	return Nothing, 0
}

func (r *Rollout) wait(c Cluster, now time.Time) (Action, time.Duration) {
	if len(c.Peers) == 0 {
		r.state, r.marked = Settled, Mark{}
		return Adopt, 0
	}
	var due time.Time
	if r.proven(c.Peers) && !r.tried {
		if r.seen.IsZero() {
			r.seen = now
		}
		due = r.seen.Add(time.Duration(float64(r.Spread()) * float64(r.hash(c.Self)) / (1 << 64)))
	}
	r.turn = time.Time{}
	end := r.since.Add(r.Hold() + turns*r.Stagger)
	if rank := r.rank(c) / perTurn; r.state == Waiting && rank < turns && !c.Follower {
		r.turn = r.since.Add(r.Hold() + time.Duration(rank)*r.Stagger)
		if due.IsZero() || r.turn.Before(due) {
			due = r.turn
		}
	}
	switch {
	case !due.IsZero() && !now.Before(due):
		r.state, r.since, r.marked = Trying, now, Mark{ID: r.id}
		return Adopt, r.Stagger
	case !due.IsZero():
		return Nothing, due.Sub(now)
	case r.state == Waiting && now.Before(end):
		return Nothing, end.Sub(now)
	}
	r.state = Refused
	return Nothing, 0
}

func (r *Rollout) proven(peers []Peer) bool {
	for _, p := range peers {
		if p.Mark.Proven && p.Mark.ID == r.id {
			return true
		}
	}
	return false
}

// rank is how many nodes come before this one, in an order that differs from one configuration to the next.
func (r *Rollout) rank(c Cluster) (rank int) {
	own := r.hash(c.Self)
	for _, p := range c.Peers {
		if h := r.hash(p.Name); h < own || h == own && p.Name < c.Self {
			rank++
		}
	}
	return rank
}

func (r *Rollout) hash(name string) uint64 {
	sum := sha256.Sum256([]byte(r.id + "\n" + name))
	return binary.BigEndian.Uint64(sum[:])
}
