// Package rollout decides when a running node adopts a disruptive network
// configuration, and when it restores the former one. A configuration is
// disruptive if a node with it cannot reach the nodes that have the former one,
// for example because of another VNI. The nodes wait for each other until all
// have received it. Two nodes try it first. When these reach each other, the
// configuration is proven, and the others follow in growing groups.
//
//	state     cause                                                next      action
//	settled   a disruptive configuration is offered                waiting
//	waiting   the store has no other lease                         settled   adopt
//	waiting   Hold is over                                         waiting   (the Mark becomes Ready)
//	waiting   it is this node's turn to try it                     trying    adopt
//	waiting   it may follow nodes that keep it                     trying    adopt
//	waiting   all turns are over, and nobody has proven it         refused
//	waiting   the configuration in force is offered                settled
//	trying    another node that has it answers                     settled   (the Mark becomes Proven)
//	trying    no answer is possible                                unproven  (the Mark becomes WithoutTest)
//	trying    none answers for as long as Stagger                  refused   (the caller restores it; the Mark becomes Reverted)
//	trying    the former configuration is offered                  settled   (the caller restores it)
//	unproven  another node that has it answers                     settled   (the Mark becomes Proven)
//	unproven  another configuration is offered                     as settled; see Withdraw
//	refused   it may follow nodes that keep it, unless failed      trying    adopt
//	refused   the store has no other lease                         settled   adopt
//	refused   another configuration is offered                     as settled
//
// The turns begin when all peers are Ready, or when no further peer has become
// so for patience: a peer with flannel, or one that is down, never does. The
// order of turns is that of the nodes that are Ready. A node that cannot publish
// its Mark waits for patience, too. It then counts all peers in the order:
// otherwise each of several such nodes would take itself for the first.
//
// A Mark of a peer counts only if this node saw it appear while its present
// configuration was in force, and after the last offer that was withdrawn or
// replaced. The Mark of a node that died earlier proves nothing, and takes no turn.
// A result of a peer that this node did not see to take part may be such a Mark, too,
// after an outage of the store or its restoration from a backup. It may also be that
// this node has missed the rollout, and is cut off until it follows. Therefore these
// results count only together: see missedDue.
//
// A proof may be false. Therefore only a group that is growth times as large as
// the number of nodes with a proof follows at a time, and each node of the group
// needs an answer of its own. Nobody follows any more if as many nodes went back
// as have a proof.
//
// An answer is possible if this node and at least one peer of the rollout have
// an address that the new way leads to. Where the backend has no tunnel device,
// a node has none before its first pod runs. Nodes with such an address take the
// turns if there are two of them, and the others wait for a proof. If there are
// fewer, no proof is possible, and hardly a pod can lose its peers: then all
// nodes take turns, and adopt the configuration as unproven, in growing groups
// as well. A node without any peer that takes part goes back without an answer:
// its peers run flannel, and do not follow, or it rejects their leases, perhaps
// only by the rules of the configuration on trial. It adopts the configuration at
// once only if there is no other lease.
//
// Example with a Stagger of 120 s and three nodes, which receive the
// configuration at 0, 20 and 60 s: each is Ready 30 s (Hold) later. At 90 s all
// are, and nodes A and B try the configuration. If one of them gets an answer
// from the other, it publishes a Proven Mark, and C follows within 20 ms.
// Otherwise A and B restore the former configuration at 210 s, and refuse the
// other one. C tries it alone until 330 s, and does the same. In a larger cluster,
// there are two more turns of two nodes, and nodes without a turn refuse it at 570 s.
//
// The package does no I/O: the caller passes in the time, the peers and the
// answers, and does what Step and the State say.
package rollout

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
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
	Unproven // in force, without evidence
	Refused
)

const (
	// turns is how often perTurn nodes try. The nodes of one turn may be unable
	// to reach each other for another reason.
	turns = 4
	// perTurn is how many nodes try at the same time.
	perTurn = 2
	// growth is how many nodes follow for each node that has a proof.
	growth = 2
	// perNode is the time between two nodes that do the same thing, on average.
	// Every node hears of every other one, so that in a large cluster the API
	// server would be overloaded if all acted at once.
	perNode = 10 * time.Millisecond
	// missedWait is how long a node waits before missed results count. The nodes need
	// it to restore their leases in a store that has lost changes: in Kubernetes up to 30 s
	// until they read the store again, and then up to a minute until they write.
	missedWait = 2 * time.Minute
)

// Phase is how far a node is with a configuration.
type Phase int

// The phases.
const (
	NoPhase     Phase = iota
	Ready             // it was offered the configuration, and Hold is over
	OnTrial           // it has adopted the configuration, and waits for an answer
	Proven            // another node that has it has answered
	WithoutTest       // it keeps the configuration, and no answer is possible
	Reverted          // it had no answer, and has restored the former configuration
)

// Mark is what a node publishes in its lease about the rollout. The zero Mark
// means that no rollout has changed its configuration since it was started.
type Mark struct {
	ID    string // of the configuration
	Phase Phase
	// Answers means that the node has an address that the new way leads to, so
	// that it can ask other nodes and answer them.
	Answers bool
}

// Peer is another node.
type Peer struct {
	Name string // comparable with Cluster.Self
	Mark Mark
	// Seen is when this node saw that the Mark changed to what it is. It is zero if
	// the Mark was already there when this node first saw the peer.
	Seen time.Time
	// Missed means that the Mark is a result (Proven, WithoutTest, Reverted), and that this
	// node saw no Mark of the peer about the same configuration appear before; see missedDue.
	Missed bool
}

// Cluster is the input of Step. All nodes must use the same names, because the
// turns depend on them.
type Cluster struct {
	Self string
	// Peers are the nodes that this node reaches, or would reach with the offered
	// configuration. Rejected leases are not among them.
	Peers     []Peer
	Nodes     int  // this node, and all that have a lease in the store, even a rejected one
	Answers   bool // as in Mark, of this node
	Published bool // the store has this node's Mark
	Follower  bool // this node takes no turn, as it runs Windows; it waits until other nodes have proven the configuration
}

// Rollout is the state machine of one node. The zero Rollout is settled, with a
// Stagger of 0. Only the daemon's loop uses it.
type Rollout struct {
	// Stagger is the duration of one turn. Hold is a fraction of it.
	Stagger time.Duration
	// Skew is by how much one node may receive a configuration later than another.
	Skew time.Duration

	state State
	id    string // of the offered configuration; "" when settled
	mark  Mark
	// since is when the state Settled or Waiting began, or when this node adopted the offered
	// configuration; when unproven, the time of a later Withdraw. Zero: since the start.
	since time.Time
	epoch time.Time // since, when the offer was made: Marks from before do not count
	hold  time.Time // when Hold began: the store had the Mark of the offer; zero: not yet

	readySince map[string]time.Time // when this node and its peers published that they are Ready, or further; nil when settled
	start      time.Time            // when the turns began; zero: not yet
	turn       time.Time            // when this node's turn begins; zero: it has none, or the turns have not begun
	proofSeen  time.Time            // when a proof was first credible (see follow); zero: not yet
	mayFollow  time.Time            // since when this node may follow; zero: it may not
	followed   bool                 // it adopted the configuration because of a proof
	elsewhere  bool                 // other nodes have proven the configuration
	failed     bool                 // it followed a proof that it saw appear, and got no answer
	missed     bool                 // missedDue is over, before a trial: results of Peer.Missed count
	// missedFailed means that this node followed while missed results counted, and got no
	// answer. It may still follow a proof that it sees appear.
	missedFailed bool
	// unproven is set while another configuration is offered than the one that this node
	// keeps as unproven: the rollout of that one, for Withdraw. nil: there is none.
	unproven *Rollout
}

// ID returns the ID of a configuration, given the part that nodes must have in
// common to reach each other.
func ID(common string) string {
	sum := sha256.Sum256([]byte(common))
	return hex.EncodeToString(sum[:6])
}

// Hold is the time between an offer and the moment when this node is Ready. In
// this time the operator can withdraw the configuration, and nothing is written but an empty Mark, if Offer takes one back.
// It begins when the store has the Mark of the offer: to peers that did not see it before Ready, this node is not Ready.
func (r *Rollout) Hold() time.Duration { return r.Stagger / 4 }

// patience is how long nodes wait for further peers to become Ready.
func (r *Rollout) patience() time.Duration { return max(r.Stagger, r.Skew) }

// spread is the maximum jitter with which count nodes do the same thing: at most a
// quarter of a turn, so that most of the turn is left for what they do.
func (r *Rollout) spread(count int) time.Duration {
	return min(time.Duration(count)*perNode, r.Stagger/4)
}

// State returns the state.
func (r *Rollout) State() State { return r.state }

// Mark returns the Mark that this node must publish.
func (r *Rollout) Mark() Mark { return r.mark }

// Turn returns when this node tries the configuration unless it follows a proof
// before; zero: never, or the turns have not begun.
func (r *Rollout) Turn() time.Time { return r.turn }

// Deadline returns when a trial ends.
func (r *Rollout) Deadline() time.Time { return r.since.Add(r.Stagger) }

// InForce reports whether the offered configuration is in force: this node
// tries it, or keeps it as unproven.
func (r *Rollout) InForce() bool { return r.state == Trying || r.state == Unproven }

// ProvenElsewhere reports whether other nodes have proven the configuration that
// this node keeps as unproven.
func (r *Rollout) ProvenElsewhere() bool { return r.elsewhere }

// Offer starts the rollout of a disruptive configuration, and returns whether
// it is a new one. If it is the current or the refused one, nothing changes.
// The caller must end a trial by Withdraw before.
//
// If the configuration was offered before the last one, too, this node may still be Ready for that offer. Peers do not
// count a Mark from that time. Therefore Offer takes it back: when the node is Ready again, they see the Mark appear. Nodes
// that have not received the last offer keep their Marks, so that the two groups count different peers: up to eight nodes
// (turns*perTurn) of each group try the configuration, maybe at overlapping times.
func (r *Rollout) Offer(id string, now time.Time) bool {
	if r.state != Settled && r.id == id {
		return false
	}
	unproven, mark := r.unproven, r.mark
	if r.state == Unproven {
		unproven = new(*r)
	}
	if mark.ID == id && mark.Phase == Ready {
		mark = Mark{}
	}
	*r = Rollout{Stagger: r.Stagger, Skew: r.Skew, state: Waiting, id: id, since: now, mark: mark, epoch: r.since,
		readySince: map[string]time.Time{}, unproven: unproven}
	return true
}

// Withdraw ends the rollout. The configuration in force stays; during a trial,
// the caller restores the former one. If the former one was unproven when the other was
// offered, its rollout continues. Marks from before do not count for the next offer.
func (r *Rollout) Withdraw(now time.Time) {
	if r.unproven != nil {
		*r = *r.unproven
		r.since = now
		return
	}
	if r.state != Settled {
		r.settle(now)
	}
	if r.mark.Phase != Proven { // a proof belongs to the configuration in force
		r.mark = Mark{}
	}
}

// Answered records that another node with the configuration on trial has
// answered.
func (r *Rollout) Answered(now time.Time) {
	if r.InForce() {
		mark := Mark{r.id, Proven, true}
		r.settle(now)
		r.mark = mark
	}
}

// settle ends the rollout; the Mark stays.
func (r *Rollout) settle(now time.Time) {
	*r = Rollout{Stagger: r.Stagger, Skew: r.Skew, mark: r.mark, since: now}
}

// jitter is a part of spread that is the same on all nodes for a node and the
// offered configuration.
func (r *Rollout) jitter(name string, spread time.Duration) time.Duration {
	return time.Duration(float64(spread) * float64(r.hash(name)) / (1 << 64))
}

// hash orders the nodes for the offered configuration, so that not the same
// nodes try each of them first. All nodes compute the same numbers.
func (r *Rollout) hash(name string) uint64 {
	sum := sha256.Sum256([]byte(r.id + "\n" + name))
	return binary.BigEndian.Uint64(sum[:])
}
