package reach

import (
	"net/netip"
	"time"

	"flannel/pkg/status"
)

// Received takes the body of an ICMP echo message. A body that is not ours has no
// effect.
func (m *Mesh) Received(now time.Time, from netip.Addr, answer bool, body []byte) (rtt time.Duration, answered bool) {
	b, ok := decode(body)
	if !ok {
		return 0, false
	}
	if answer {
		return m.answered(now, from, b.token, len(body))
	}
	// A pod cannot have one of these addresses. The subnet in the message only tells a
	// request of another network from those of this one.
	if t := m.bySource[from]; t != nil && b.subnet == t.subnet {
		m.heard(now, t, from, b.heard)
	}
	return 0, false
}

// answered takes an answer. The token is only known to the host that received the
// request, and to those on the way; the address is compared so that no other peer can
// use what it saw.
func (m *Mesh) answered(now time.Time, from netip.Addr, token uint64, size int) (rtt time.Duration, first bool) {
	s := m.waiting[token]
	if s == nil || s.target.gone || from != s.to && !s.target.subnet.Contains(from) {
		return 0, false
	}
	t := s.target
	if s.full && size < fullSize(m.network.MTU, s.to) {
		return 0, false
	}
	delete(m.waiting, token)
	m.counts.Answered++
	t.last = now
	if s.full {
		t.fullMisses = 0
		if t.state == status.SmallOnly {
			m.set(now, t, status.Reachable)
		}
	} else if t.rtt = now.Sub(s.at); t.fullMisses > 0 && s.at.After(t.fullSent) {
		t.fullChecked = true
	}
	m.arrived(now, t, s.to, s.at)
	return t.rtt, !s.full
}

// heard takes a request of a peer, which says when it last heard one of ours.
func (m *Mesh) heard(now time.Time, t *target, from netip.Addr, ago time.Duration) {
	t.heard = now
	if ago >= 0 {
		m.arrived(now, t, from, now.Add(-ago))
	}
	if t.state == status.Unreachable && t.counting().missed > 0 {
		m.set(now, t, status.OneWay)
	}
}

// arrived records that a request to an address arrived which was sent at that time.
func (m *Mesh) arrived(now time.Time, t *target, addr netip.Addr, at time.Time) {
	tally := t.tally(addr)
	if tally.arrived(at); tally.missed > 0 {
		return // others, sent later, did not
	}
	switch {
	case t.kind == Bridges && addr == t.bridge():
		t.hasPods = true
	case t.kind == Tunnels:
		t.answers = addr
	}
	if tally != t.counting() {
		return
	}
	t.backoff = 0
	delete(m.down, t)
	if t.state == status.SmallOnly {
		return
	}
	if t.state != status.Reachable {
		t.fullMisses, t.fullDue = 0, now
		m.set(now, t, status.Reachable)
	}
	if t.fullMisses >= misses && t.fullChecked {
		t.fullDue = now.Add(fullSizeEvery)
		m.set(now, t, status.SmallOnly)
	}
}

// tally returns the one of an address.
func (t *target) tally(addr netip.Addr) *tally {
	if t.kind == Bridges && addr == t.public {
		return &t.under
	}
	return &t.main
}

// missed counts a request that was not answered in time.
func (m *Mesh) missed(now time.Time, s *sent) {
	t := s.target
	if !m.judging || s.at.Before(m.since) {
		return
	}
	if s.full {
		t.fullMisses++
		t.fullChecked = false
	} else {
		t.tally(s.to).miss(s.at)
	}
	// Both stopped: the node was started again, and may have no bridge yet.
	if t.kind == Bridges && t.hasPods && t.main.out() && t.under.missed >= 2 {
		t.hasPods, t.fullMisses = false, 0
	}
	if !m.decide(now, t) && !t.suspect {
		t.suspect = true
		m.suspects = append(m.suspects, t)
	}
}

// decide reports whether a target does not answer any more.
func (m *Mesh) decide(now time.Time, t *target) bool {
	if !t.counting().out() || t.kind == Bridges && t.hasPods && t.under.alive.Before(t.main.first) {
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
	case t.heard.After(t.counting().first) && now.Sub(t.heard) < heardFor:
		m.set(now, t, status.OneWay)
	case t.kind != Tunnels && !t.main.ever() && !t.under.ever():
		// Firewalls of hosts often drop echo requests.
	default:
		m.set(now, t, status.Unreachable)
	}
	return true
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (m *Mesh) set(now time.Time, t *target, s status.ReachState) {
	if t.state != s {
		t.state, t.since = s, now
		m.changed[t.peer] = struct{}{}
	}
}
