package rollout

import (
	"cmp"
	"slices"
	"time"
)

// Step returns whether the caller must adopt the offered configuration now, and after what
// time to call Step again if nothing changes before (0: never). The state is already the next
// one: a trial that it ends as Refused must be undone. Each pass of the daemon's loop calls it. In
// rollout.go are the states, the words (Mark, turn, proof, group), and the times that
// the functions below add up (Hold, patience, spread, jitter).
func (r *Rollout) Step(c Cluster, now time.Time) (adopt bool, again time.Duration) {
	switch r.mark.Phase {
	case Ready, OnTrial, WithoutTest: // by now, this node may have got an address by which it can answer
		if r.state != Settled && r.mark.ID == r.id {
			r.mark.Answers = c.Answers
		}
	}
	switch r.state {
	case Trying:
		return r.try(c, now)
	case Waiting, Refused:
		return r.wait(c, now)
	case Unproven:
		r.elsewhere = r.elsewhere || r.count(c).proven > 0
	}
	return false, 0
}

// try is Step for the state Trying.
func (r *Rollout) try(c Cluster, now time.Time) (bool, time.Duration) {
	if g := r.count(c); g.peers > 0 && (!c.Answers || g.answering == 1) { // 1: only this node can answer
		r.elsewhere = g.proven > 0
		r.state, r.mark.Phase, r.unproven = Unproven, WithoutTest, nil
		return false, 0
	}
	if left := r.Deadline().Sub(now); left > 0 {
		return false, left
	}
	r.state, r.mark.Phase = Refused, Reverted
	r.failed = r.followed && !r.missed // if it is set, no trial begins
	r.missedFailed = r.missedFailed || r.followed && r.missed
	return false, 0
}

// wait is Step for the states Waiting and Refused. In Refused, this node has no turn any
// more, but may follow a proof.
func (r *Rollout) wait(c Cluster, now time.Time) (bool, time.Duration) {
	if c.Nodes == 1 {
		r.settle(now)
		r.mark = Mark{}
		return true, 0
	}
	if r.hold.IsZero() && c.Published {
		r.hold = now
	}
	hold := r.Hold() + r.jitter(c.Self, r.spread(len(c.Peers)+1)) // with jitter, so that not all nodes publish at once
	readyAt := cmp.Or(r.hold, r.since).Add(hold)                  // for turns, also of a node that cannot publish
	switch ready := r.mark.ID == r.id && r.mark.Phase == Ready; {
	case r.state == Waiting && !ready && !r.hold.IsZero() && !now.Before(readyAt):
		r.mark = Mark{r.id, Ready, c.Answers} // not published yet: c.Published is about the Mark before
	case ready && c.Published && r.readySince[c.Self].IsZero():
		r.readySince[c.Self] = now
	}
	missedDue := r.missedDue(c) // it may move, as the leases change
	r.missed = isDue(missedDue, now)
	g := r.count(c)
	follow, again := r.follow(c, g, now)     // sets r.mayFollow
	turn, end := r.turns(c, g, readyAt, now) // sets r.start and r.turn
	switch waiting := r.state == Waiting; {
	case isDue(follow, now), waiting && isDue(turn, now):
		r.followed = isDue(follow, now)
		r.state, r.since, r.mark = Trying, now, Mark{r.id, OnTrial, c.Answers}
		return true, r.Stagger
	case waiting && isDue(end, now):
		r.state, r.turn = Refused, time.Time{}
	}
	next := earliest(follow, again)
	if !r.missed {
		next = earliest(next, missedDue)
	}
	if r.state == Waiting && now.Before(readyAt) {
		next = earliest(next, readyAt)
	} else if r.state == Waiting {
		next = earliest(next, turn, end)
	}
	if next.IsZero() {
		return false, 0
	}
	return false, next.Sub(now)
}

// group is what the peers' Marks about the offered configuration say.
type group struct {
	peers         int       // with such a Mark, in any phase
	missing       int       // peers without one that counts (isRecent, missedDue), for which the turns wait
	missingBefore int       // those of them that are before this node in the order of hash
	lastReady     time.Time // when the last node became Ready, as far as this node saw
	answering     int       // nodes that can ask and answer, this one included
	rank          int       // nodes before this one in the order of hash, in which they take turns
	rankOfThose   int       // nodes before this one that can ask and answer
	behind        int       // nodes that come before this one when nodes follow a proof: those on trial, and Ready ones before it in the order
	proven, kept  int       // nodes with a proof; nodes that keep the configuration without one
	reverted      int       // nodes that went back
}

// isRecent reports whether the Mark of a peer is about the offered configuration, and
// appeared while the present one was in force, after the last offer that was withdrawn or
// replaced (epoch).
func (r *Rollout) isRecent(p Peer) bool { return p.Mark.ID == r.id && p.Seen.After(r.epoch) }

// missedDue returns when the results that this node has missed (Peer.Missed) begin to count;
// zero: they do not. More than half of all nodes must have a missed result other than
// WithoutTest, which says nothing about reachability: the leases of a few dead nodes are not
// enough. They must have had it for missedWait. Until then, live nodes restore their Marks
// in a store that has lost them. In a store without this node's Mark, they may not have done
// so. Nor do missed results count after a trial without an answer that they caused.
func (r *Rollout) missedDue(c Cluster) time.Time {
	var seen []time.Time
	for _, p := range c.Peers {
		if p.Missed && r.isRecent(p) && p.Mark.Phase != WithoutTest {
			seen = append(seen, p.Seen)
		}
	}
	majority := c.Nodes/2 + 1
	if len(seen) < majority || !c.Published || r.missedFailed {
		return time.Time{}
	}
	slices.SortFunc(seen, time.Time.Compare)
	last := seen[majority-1]
	if last.Before(r.since) {
		last = r.since
	}
	return last.Add(max(missedWait, r.Hold()))
}

// count evaluates the peers' Marks, and records which of them are Ready.
func (r *Rollout) count(c Cluster) (g group) {
	own := r.hash(c.Self)
	g.lastReady = r.readySince[c.Self]
	if c.Answers {
		g.answering = 1
	}
	for _, p := range c.Peers {
		h := r.hash(p.Name)
		before := h < own || h == own && p.Name < c.Self
		if !r.isRecent(p) || p.Missed && !r.missed {
			g.missing++
			if before {
				g.missingBefore++
			}
			continue
		}
		if _, known := r.readySince[p.Name]; !known {
			r.readySince[p.Name] = p.Seen
		}
		if at := r.readySince[p.Name]; at.After(g.lastReady) {
			g.lastReady = at
		}
		g.peers++
		g.add(p.Mark, before)
	}
	if r.start.IsZero() { // those that are missing may still become Ready
		g.behind += g.missingBefore
	}
	return g
}

// add counts the Mark of a peer, which is before this node in the order or not.
func (g *group) add(m Mark, before bool) {
	if m.Answers {
		g.answering++
	}
	if before {
		g.rank++
		if m.Answers {
			g.rankOfThose++
		}
	}
	if m.Phase == OnTrial || m.Phase == Ready && before {
		g.behind++
	}
	switch m.Phase {
	case Proven:
		g.proven++
	case WithoutTest:
		g.kept++
	case Reverted:
		g.reverted++
	}
}

// provable reports whether two nodes can ask each other.
func (g group) provable() bool { return g.answering >= 2 }

// follow returns two times. At due, this node adopts the configuration because others keep
// it, proven or not; zero: not yet. At again, the caller looks again: from then on, this
// node may follow although the group before it has not finished, because nodes of that
// group may be down.
func (r *Rollout) follow(c Cluster, g group, now time.Time) (due, again time.Time) {
	support := g.proven
	if !g.provable() { // nobody can prove it
		support += g.kept
	}
	if support <= g.reverted || r.failed {
		r.mayFollow = time.Time{}
		return due, again
	}
	if r.proofSeen.IsZero() {
		r.proofSeen = now
	}
	again = r.proofSeen.Add(2 * r.Stagger) // the group before has had its time, and its result is known
	size := growth * support               // of the group that follows now: after the first proof, two nodes
	switch {
	case g.behind < size: // fewer nodes are before this one: it is in the group
	case now.Before(again): // others are first
		r.mayFollow = time.Time{}
		return due, again
	default: // all that are left follow
		size = len(c.Peers)
	}
	if r.mayFollow.IsZero() {
		r.mayFollow = now
	}
	return r.mayFollow.Add(r.jitter(c.Self, r.spread(min(size, len(c.Peers))))), time.Time{}
}

// turns returns when this node's turn to try the configuration begins (zero: it
// has none), and when all turns are over. While nodes are missing, both move with
// each node that becomes Ready.
func (r *Rollout) turns(c Cluster, g group, readyAt, now time.Time) (turn, end time.Time) {
	announced := !r.readySince[c.Self].IsZero() // this node's Mark is published
	start, rank := g.lastReady, g.rank
	if g.provable() {
		rank = g.rankOfThose
	}
	switch {
	case !announced: // others do not count this node, so it counts all that may be before it
		start, rank = readyAt.Add(r.patience()), rank+g.missingBefore
	case !r.start.IsZero(): // the turns have begun
		start = r.start
	case g.missing > 0: // which may still become Ready
		start = start.Add(r.patience())
	}
	if announced && !now.Before(start) {
		r.start = start
	}
	r.turn = time.Time{}
	if rank < turns*perTurn && !c.Follower && (c.Answers || !g.provable()) {
		turn = start.Add(time.Duration(rank/perTurn) * r.Stagger)
		if !r.start.IsZero() {
			r.turn = turn
		}
	}
	return turn, start.Add(turns * r.Stagger)
}

// isDue reports whether a time has come; the zero Time never does.
func isDue(t, now time.Time) bool { return !t.IsZero() && !now.Before(t) }

// earliest returns the first of the times that are not zero; zero: all are.
func earliest(times ...time.Time) (first time.Time) {
	for _, t := range times {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return first
}
