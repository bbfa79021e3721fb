package reach

import (
	"net/netip"
	"time"

	"flannel/pkg/status"
)

// Received takes the body of an ICMP message: an echo request, an answer to one of ours,
// or (expired) the message that the hop limit of one of ours has ended. A body that is
// not ours has no effect.
func (m *Mesh) Received(now moment, from netip.Addr, answer, expired bool, body []byte) (rtt time.Duration, answered bool) {
	b, ok := decode(body)
	if !ok {
		return 0, false
	}
	if answer || expired {
		return m.answered(now, from, b.token, expired, len(body))
	}
	// A pod cannot have one of these addresses. The subnet in the message only tells a
	// request of another network from those of this one.
	if t := m.bySource[from]; t != nil && b.subnet == t.subnet {
		m.heard(now, t, from, b)
	}
	return 0, false
}

// answered takes an answer. The token is only known to the host that received the
// request, and to those on the way; the address is compared so that no other peer can
// use what it saw.
func (m *Mesh) answered(now moment, from netip.Addr, token uint64, expired bool, size int) (rtt time.Duration, first bool) {
	s := m.waiting[token]
	if s == nil || s.target.gone || expired && s.purpose != forwarded {
		return 0, false
	}
	t := s.target
	if from != s.to && !t.subnet.Contains(from) && (!expired || from != t.public) {
		return 0, false
	}
	if s.purpose == fullSize && size < sizeOf(m.network.MTU, s.to) {
		return 0, false
	}
	delete(m.waiting, token)
	m.counts.Answered++
	t.last = now
	isSmall := false
	switch s.purpose {
	case fullSize:
		t.full.misses, t.full.failed, t.full.answered = 0, false, true
	case forwarded:
		t.forwarding.misses, t.forwarding.failed, t.forwarding.answered = 0, false, true
	case atBridge:
		t.bridgeLost, t.forwarding.confirmed = 0, s.at.After(t.forwarding.sent)
	case small:
		isSmall = true
		m.found(t, s.to)
		t.rtt = now.Sub(s.at)
	}
	if s.purpose == small || s.purpose == atBridge {
		t.full.confirmed = t.full.confirmed || s.at.After(t.full.sent)
	}
	m.arrived(now, t, t.tally(s.to), s.at)
	return t.rtt, isSmall
}

// found records that an address of a peer answers.
func (m *Mesh) found(t *target, addr netip.Addr) {
	switch {
	case t.kind == Bridges && addr == t.bridge():
		t.hasPods = true
	case t.kind == Tunnels:
		t.answers = addr
	}
}

// heard takes a request of a peer, which says when it last heard one of ours that took
// the same way: one that went to its public IP shows nothing of the pods' way.
func (m *Mesh) heard(now moment, t *target, from netip.Addr, b message) {
	tally := t.tally(from)
	tally.heard = now
	t.refuses = 0
	if b.notForwarding {
		t.refuses = now
	}
	if b.heard >= 0 {
		m.found(t, from)
		m.arrived(now, t, tally, now.Add(-b.heard))
	}
	switch {
	case t.state == status.Unreachable && tally == t.counting() && tally.missed > 0:
		m.set(now, t, status.OneWay)
	case isAlive(t.state):
		m.set(now, t, m.alive(now, t))
	}
}

// arrived records that a request arrived which was sent at that time.
func (m *Mesh) arrived(now moment, t *target, tally *tally, at moment) {
	if tally.arrived(at); tally.missed > 0 {
		return // others, sent later, did not
	}
	if tally != t.counting() {
		return
	}
	t.backoff = 0
	delete(m.down, t)
	if !isAlive(t.state) {
		t.full.restart(now)
		t.forwarding.restart(now)
	}
	t.full.judge(now)
	t.forwarding.judge(now)
	m.set(now, t, m.alive(now, t))
}

// isAlive reports whether a state is one of a peer that answers.
func isAlive(s status.ReachState) bool {
	switch s {
	case status.Reachable, status.Unproven, status.SmallOnly, status.NotForwarding:
		return true
	}
	return false
}

// alive returns the state of a peer that answers. What a peer says of itself counts until
// it is certain that it would have said it again, since each node is asked once in a round.
func (m *Mesh) alive(now moment, t *target) status.ReachState {
	refuses := !t.refuses.IsZero() && now.Sub(t.refuses) < heardFor+3*interval*time.Duration(len(m.order))
	switch {
	case refuses:
		return status.NotForwarding
	case t.kind == None, t.kind == Bridges && !t.hasPods:
		return status.Unproven
	case t.forwarding.failed:
		return status.NotForwarding
	case t.full.failed:
		return status.SmallOnly
	}
	return status.Reachable
}

// tally returns the one of an address.
func (t *target) tally(addr netip.Addr) *tally {
	if t.kind == Bridges && addr == t.public {
		return &t.under
	}
	return &t.main
}

// missed counts a request that was not answered in time.
func (m *Mesh) missed(now moment, s *sent) {
	t := s.target
	if !m.judging || s.at.Before(m.since) {
		return
	}
	switch s.purpose {
	case fullSize:
		t.full.misses++
		t.full.confirmed = false
	case forwarded:
		if t.forwarding.answered { // else a firewall of the peer may keep its errors back
			t.forwarding.misses++
		}
		t.forwarding.confirmed = false
	case atBridge:
		// Without a bridge, the peer has no pods that it could forward packets to.
		if t.bridgeLost++; t.bridgeLost >= misses || t.forwarding.misses == 0 {
			t.forwarding.restart(now.Add(bridgeEvery))
			if isAlive(t.state) {
				m.set(now, t, m.alive(now, t))
			}
		}
	case small:
		t.tally(s.to).miss(s.at)
	}
	// Both stopped: the node was started again, and may have no bridge yet.
	if t.kind == Bridges && t.hasPods && t.main.out() && t.under.missed >= 2 {
		t.hasPods = false
		t.full.restart(now)
		t.forwarding.restart(now)
	}
	if !m.decide(now, t) && !t.suspect {
		t.suspect = true
		m.suspects = append(m.suspects, t)
	}
}

// decide reports whether a target does not answer any more.
func (m *Mesh) decide(now moment, t *target) bool {
	counting := t.counting()
	if !counting.out() || t.kind == Bridges && t.hasPods && t.under.alive.Before(t.main.first) {
		return false // with Bridges, the underlay is asked first
	}
	if started := latest(t.added, m.since); now.Sub(started) < grace {
		return false
	}
	if t.backoff == 0 {
		t.backoff = interval
		t.next = now.Add(t.backoff)
		m.down[t] = struct{}{}
	}
	switch {
	case t.peer.behind:
	case counting.heard.After(counting.first) && now.Sub(counting.heard) < heardFor:
		m.set(now, t, status.OneWay)
	case t.kind != Tunnels && !t.main.ever() && !t.under.ever():
		// Firewalls of hosts often drop echo requests.
	default:
		m.set(now, t, status.Unreachable)
	}
	return true
}

func latest(a, b moment) moment {
	if a.After(b) {
		return a
	}
	return b
}

func (m *Mesh) set(now moment, t *target, s status.ReachState) {
	if t.state != s {
		t.state, t.since = s, now
		m.changed[t.peer] = struct{}{}
	}
}
