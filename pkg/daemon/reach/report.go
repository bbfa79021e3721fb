// This file tells what is known of peers: to status and metrics (Reach, Summary), to
// the log (Changes) and to the store (Lasting). A Prober calls it with its lock held.
//
// reach.go has the types. A target is one address family of a peer. Its states, each worse than
// the one before it, are: unknown, reachable, unproven, smallOnly, notForwarding, oneWay,
// unreachable. A mesh is judging while this node is up to date and its underlay is up; otherwise
// missed requests do not count, and reports say unknown. A moment is a time in less memory
// (moment.go); zero is no time.

package reach

import (
	"slices"
	"strings"
	"time"

	"flannel/pkg/status"
)

// worst returns the target in the worst state; p must have one.
func (p *peer) worst() *target {
	return slices.MaxFunc(p.targets, func(a, b *target) int { return int(a.state) - int(b.state) })
}

// bad reports whether the peer is not reachable as it should be; p must have a target.
func (p *peer) bad() bool { return p.worst().state > unproven }

// alarming reports whether operators must know that the peer is bad. A retained peer may be gone for good.
func (p *peer) alarming() bool { return p.bad() && p.retained.IsZero() }

// Reach returns what is known of a peer, by its worst target; nil: it is not probed.
func (m *mesh) Reach(name string) *status.Reach {
	p, known := m.peers.Get(name)
	if !known || len(p.targets) == 0 {
		return nil
	}
	t := p.worst()
	r := &status.Reach{State: t.state.status(), Since: m.time(t.since), Probed: m.time(t.probed), Answered: m.time(t.last), Heard: m.time(t.counting().heard), RTT: status.Duration(t.rtt)}
	r.Via, r.Target = status.ViaTunnel, t.tunnel()
	switch { // Target is the address whose answers decide the state; counting has its tally. None: only the public IP is asked
	case t.kind == None || t.kind == Bridges && !t.hasPods:
		r.Via, r.Target = status.ViaUnderlay, t.at.PublicIP
	case t.kind == Bridges:
		r.Via, r.Target = status.ViaPods, t.bridge()
	}
	if state := m.stateOf(t); r.State != state { // not judging: unknown, since judging ended
		r.State, r.Since = state, m.time(m.since)
	}
	return r
}

// stateOf returns the state of a target in reports.
func (m *mesh) stateOf(t *target) status.ReachState {
	if !m.judging {
		return status.UnknownReach
	}
	return t.state.status()
}

// Summary returns what is known of all peers. There is an alert on it: a retained peer, which
// may be gone, counts as unknown if it is in a bad state.
func (m *mesh) Summary() status.Probes {
	s := m.counts
	s.Peers = map[status.ReachState]int{}
	for _, p := range m.peers.All() {
		if len(p.targets) > 0 {
			state := m.stateOf(p.worst())
			if p.bad() && !p.alarming() {
				state = status.UnknownReach
			}
			s.Peers[state]++
		}
	}
	return s
}

// change is a change of a peer that operators must know of.
type change struct {
	Peer   string
	Reach  status.Reach
	Outage time.Duration // that has ended, above 0; 0: it begins, or is of another kind now
}

// Changes returns the changes since the call before, sorted by name. A retained peer (one
// that the store has lost, and that may be gone) begins no outage; the outage begins when the
// peer is no longer retained, because the store has its lease again. An outage that began before the
// peer was retained goes on.
func (m *mesh) Changes(now moment) (changes []change) {
	if !m.judging { // Reach has no states; they are reported when it has them again
		return nil
	}
	for p := range m.changed.All() {
		m.changed.Delete(p)
		if current, _ := m.peers.Get(p.lease.Name); current != p || len(p.targets) == 0 {
			continue // the peer is gone, perhaps with another one under its name, or is not probed
		}
		state := p.worst().state
		// alarm is when the logged outage began, alarmed its state as logged last; zero and unknown: there is none.
		switch {
		case p.alarming() && state != p.alarmed:
			if p.alarmed = state; p.alarm.IsZero() {
				p.alarm = now
			}
			changes = append(changes, change{Peer: p.lease.Name, Reach: *m.Reach(p.lease.Name)})
		case !p.bad() && state != unknown && !p.alarm.IsZero():
			changes = append(changes, change{Peer: p.lease.Name, Reach: *m.Reach(p.lease.Name), Outage: max(1, now.Sub(p.alarm))})
			p.alarm, p.alarmed = 0, unknown
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return strings.Compare(a.Peer, b.Peer) })
	return changes
}

// Lasting returns the names of the peers, sorted, that have not been reachable for at
// least that long, or do not forward. A peer that only lacks packets of the full size is not one of them.
// The time in which a peer is retained does not count, so that its outage is not reported then. If it was
// reported before, it has not ended.
func (m *mesh) Lasting(now moment, least time.Duration) (names []string) {
	for _, p := range m.peers.All() {
		until := now
		if !p.retained.IsZero() {
			until = p.retained
		}
		if len(p.targets) > 0 && !p.alarm.IsZero() && p.alarmed > smallOnly && until.Sub(p.alarm) >= least {
			names = append(names, p.lease.Name)
		}
	}
	slices.Sort(names)
	return names
}
