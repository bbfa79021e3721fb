package reach

import (
	"net/netip"
	"time"
)

// This file changes the states of peers by what arrives (Received, which a Prober calls with
// its lock held), and by what does not arrive in time (missed, which expire calls). The table
// of states, the purposes of requests, and what a target, a tally, a check and its
// confirmation are, are in reach.go; the choice of the next request is in schedule.go.

// Received takes the body of an ICMP message: an echo request, an answer to one of ours,
// or (expired) the message that the hop limit of one of ours has ended. A body that is
// not ours has no effect. measured: rtt is that of a small request; others are not
// measured.
func (m *mesh) Received(now moment, from netip.Addr, answer, expired bool, body []byte) (rtt time.Duration, measured bool) {
	b, ok := decode(body)
	if !ok {
		return 0, false
	}
	if answer || expired { // the body repeats that of our request, with its token
		return m.receiveAnswer(now, from, b.token, expired, len(body))
	}
	// bySource has the addresses of peers' tunnel devices, or their bridges and public IPs.
	// A pod cannot have such an address. The subnet in the message only tells a request of
	// another network from those of this one.
	if t, known := m.bySource.Get(from); known && b.subnet == t.at.Subnet {
		m.receiveRequest(now, t, from, b)
	}
	return 0, false
}

// receiveAnswer takes an answer. Its results are those of Received. The token is only
// known to the host that received the request, and to those on the way; the address is
// compared so that no other peer can use what it saw. The kernel of the peer chooses the
// source address of an expired message among its own, so that may be any address of the
// peer.
func (m *mesh) receiveAnswer(now moment, from netip.Addr, token uint64, expired bool, size int) (rtt time.Duration, measured bool) {
	s := m.waiting[token]
	if s == nil || s.target.gone || expired && s.purpose != forwarded { // nil: answered before, or after lateness
		return 0, false
	}
	t := s.target
	if from != s.to && !t.at.Subnet.Contains(from) && (!expired || from != t.at.PublicIP) {
		return 0, false
	}
	if s.purpose == fullSize && size < sizeOf(m.network.MTU, s.to) {
		return 0, false // proves nothing of the full size, so the request stays unanswered
	}
	delete(m.waiting, token)
	m.counts.Answered++
	t.last = now
	switch s.purpose {
	case fullSize:
		t.full.misses, t.full.failed, t.full.answered = 0, false, true
	case forwarded:
		t.forwarding.misses, t.forwarding.failed, t.forwarding.answered = 0, false, true
	case atBridge:
		// An answer to an earlier request than the last forwarded one confirms nothing: the
		// bridge is asked again.
		t.bridgeLost, t.forwarding.confirmed = 0, s.at.After(t.forwarding.sent)
	case small:
		measured = true
		m.found(t, s.to)
		t.rtt = now.Sub(s.at)
	}
	if s.purpose == small || s.purpose == atBridge {
		t.full.confirmed = t.full.confirmed || s.at.After(t.full.sent)
	}
	m.arrived(now, t, t.tally(s.to), s.at)
	return t.rtt, measured
}

// found records that an address of a peer answers, or hears this node.
func (m *mesh) found(t *target, addr netip.Addr) {
	switch {
	case t.kind == Bridges && addr == t.bridge():
		t.hasPods = true
	case t.kind == Tunnels:
		t.viaBridge = addr == t.bridge()
	}
}

// receiveRequest takes a request of a peer. The request says when the peer last received
// one of ours on the same way. If it did, our requests arrive, even if no answer comes
// back. Requests between public IPs show nothing of the pods' way, and the reverse.
func (m *mesh) receiveRequest(now moment, t *target, from netip.Addr, b message) {
	tally := t.tally(from)
	back := t.state == unreachable && tally == t.counting() && !tally.heard.After(t.since) // the first request in the outage
	tally.heard = now
	t.refuses = 0
	if b.notForwarding {
		t.refuses = now
	}
	if b.heard >= 0 { // negative: the peer has not received any
		m.found(t, from)
		m.arrived(now, t, tally, now.Add(-b.heard))
	}
	switch {
	case isAlive(t.state): // refuses may have changed, which is a part of alive
		m.set(now, t, m.alive(now, t))
	case back:
		// The outage may be over. Only a request that is sent from now on shows whether the peer is
		// oneWay: it is the first one that nextDown sends.
		for _, s := range m.waiting {
			s.missed = s.missed || s.target == t // an answer still counts
		}
		m.down.Set(t, retry{retryAfter: interval}) // next is zero, before those of all others
	}
}

// arrived records that a request of ours that was sent at that time arrived. It makes the
// target alive, unless requests that were sent later are missed, or the state is decided by
// another tally (see counting).
func (m *mesh) arrived(now moment, t *target, tally *tally, at moment) {
	if tally.arrived(at); tally.missed > 0 {
		return // others, sent later, did not
	}
	if tally != t.counting() {
		return
	}
	m.down.Delete(t)       // the rounds ask it again
	if !isAlive(t.state) { // what was missed during an outage fails no check
		t.full.restart(now)
		t.forwarding.restart(now)
	}
	t.full.judge(now)
	t.forwarding.judge(now)
	m.set(now, t, m.alive(now, t))
}

// isAlive reports whether a state is one of a peer that answers.
func isAlive(s state) bool {
	switch s {
	case reachable, unproven, smallOnly, notForwarding:
		return true
	}
	return false
}

// alive returns the state of a peer that answers. What a peer says of itself counts until
// the peer would have said it again. A peer asks each node once in a round, in a new order
// each time, so up to two rounds pass between two of its requests. The third one is for
// turns of the peer that are not part of its rounds (see Turn).
func (m *mesh) alive(now moment, t *target) state {
	refuses := !t.refuses.IsZero() && now.Sub(t.refuses) < heardFor+3*interval*time.Duration(len(m.order))
	switch {
	case refuses:
		return notForwarding
	case t.kind == None, t.kind == Bridges && !t.hasPods:
		return unproven
	case t.forwarding.failed:
		return notForwarding
	case t.full.failed:
		return smallOnly
	}
	return reachable
}

// tally returns the tally of the way to an address.
func (t *target) tally(addr netip.Addr) *tally {
	if t.kind == Bridges && addr == t.at.PublicIP {
		return t.under
	}
	return &t.main
}

// missed counts a request that was not answered in time. Then it decides whether the
// target does not answer any more; a target of which this is not certain yet becomes a
// suspect, which is asked again soon.
func (m *mesh) missed(now moment, s *sent) {
	t := s.target
	if !m.judging || s.at.Before(m.since) { // sent before judging began
		return // this node itself may be the cause
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
		// Without a bridge, the peer has no pods that it could forward packets to, and the
		// check has to wait for one. A single loss does not make it wait if requests to be
		// forwarded were missed: their cause is looked for.
		if t.bridgeLost++; t.bridgeLost >= missLimit || t.forwarding.misses == 0 {
			t.forwarding.restart(now.Add(bridgeEvery))
			if isAlive(t.state) {
				m.set(now, t, m.alive(now, t))
			}
		}
	case small:
		t.tally(s.to).miss(s.at)
	}
	// The bridge and the public IP stopped together: the node was started again, and may
	// have no bridge yet. Two misses are enough for the public IP, which is asked less often:
	// only after the bridge's first miss, and in turn with the bridge.
	if t.kind == Bridges && t.hasPods && t.main.out() && t.under.missed >= 2 {
		t.hasPods = false
		t.full.restart(now)
		t.forwarding.restart(now)
	}
	switch {
	case m.isDown(now, t):
		m.setDown(now, t)
	case !t.suspect:
		t.suspect = true
		m.suspects = append(m.suspects, t)
	}
}

// isDown reports whether a target does not answer any more.
func (m *mesh) isDown(now moment, t *target) bool {
	// A bridge may be out because the node was started again. So the public IP is asked
	// first: either it has answered since the bridge's first miss, or it is out, too, and
	// missed has set hasPods to false.
	if t.kind == Bridges && t.hasPods && t.under.alive.Before(t.main.first) {
		return false
	}
	return t.counting().out() && now.Sub(latest(t.added, m.since)) >= grace
}

// setDown sets the state of a target that does not answer any more. From now on it is
// asked with growing pauses.
func (m *mesh) setDown(now moment, t *target) {
	counting := t.counting()
	if !m.down.Has(t) {
		m.down.Set(t, retry{now.Add(interval), interval}) // ask makes the pauses longer
	}
	switch {
	case t.peer.behind: // the state stays
		// This node lacks entries for the peer, so the silence shows nothing of the peer.
	case counting.heard.After(counting.first) && now.Sub(counting.heard) < heardFor:
		m.set(now, t, oneWay)
	case t.kind != Tunnels && !t.main.ever() && (t.under == nil || !t.under.ever()): // nothing has ever arrived; the state stays
		// Firewalls of hosts often drop echo requests.
	default:
		m.set(now, t, unreachable)
	}
}

// latest returns the later one of two moments.
func latest(a, b moment) moment {
	if a.After(b) {
		return a
	}
	return b
}

// set changes the state of a target, and has Changes look at its peer.
func (m *mesh) set(now moment, t *target, s state) {
	if t.state != s {
		t.state, t.since = s, now
		m.changed.Set(t.peer, struct{}{})
	}
}
