// This file chooses whom to ask next, and what. The states are in reach.go, and what follows
// from answers and misses is in judge.go. A Prober calls Turn and SendFailed with its lock
// held. The constants, such as paused, are in reach.go, and so are Addressing (None, Tunnels,
// Bridges), purpose, and check with its confirmation; the addresses of a target are in
// update.go.

package reach

import (
	"net/netip"
	"slices"
)

// focus is how many suspects are asked in turn: with many at once, the first are decided
// before others are asked again.
const focus = 4

// Turn is due once an interval, or twice every other one, after everything that was received was passed to
// Received. It returns the request to send, if any. After a pause, in which the daemon
// was stopped, such as with its virtual machine or by SIGSTOP, requests that are not
// answered prove nothing: forgetMisses (update.go) forgets the misses of suspects, and keeps
// open requests from becoming misses.
//
// Every other turn is for suspects (peers that missed a request) and for those that are down
// (known not to answer), with growing pauses. The rest are rounds over all peers, in an order
// that is new in each round and different on each node: so in a cluster of n nodes, each
// takes n seconds for a round, and each is asked by some other node about every second.
func (m *mesh) Turn(now moment) (r request, due bool) {
	if !m.last.IsZero() && now.Sub(m.last) > paused {
		m.forgetMisses()
	}
	m.last = now
	m.expire(now) // first: it makes suspects
	m.turn++
	t := m.pick(now)
	if t == nil {
		return r, false
	}
	return m.ask(now, t), true
}

// expire counts the misses, once for each request, and deletes requests whose answers do
// not count any more. No request is deleted before it was counted: turns are at most paused
// apart (after a longer pause, the misses are forgotten), so one of them is between timeout and
// timeout+paused (6 s) after the request, and lateness is 20 s.
func (m *mesh) expire(now moment) {
	for token, s := range m.waiting {
		if now.Sub(s.at) >= lateness || s.target.gone {
			delete(m.waiting, token)
		} else if !s.missed && now.Sub(s.at) >= timeout {
			s.missed = true
			m.missed(now, s)
		}
	}
}

// pick returns the target to ask in this turn, from the first source that has one; nil:
// nobody.
func (m *mesh) pick(now moment) *target {
	sources := []func(moment) *target{m.nextInRound, m.nextDown, m.nextSuspect} // of odd turns
	switch m.turn % 4 {
	case 0:
		sources = []func(moment) *target{m.nextSuspect, m.nextDown, m.nextInRound}
	case 2:
		sources = []func(moment) *target{m.nextDown, m.nextSuspect, m.nextInRound}
	}
	for _, source := range sources {
		if t := source(now); t != nil {
			return t
		}
	}
	return nil
}

// nextInRound returns the next target of the round that is not down.
func (m *mesh) nextInRound(moment) *target {
	for range 2 { // what is left of this round, and a new one
		for m.position < len(m.order) {
			t := m.order[m.position]
			m.position++
			if !m.down.Has(t) && !t.gone {
				return t
			}
		}
		m.order = deleteFrom(m.order, func(t *target) bool { return t.gone })
		for i := len(m.order) - 1; i > 0; i-- {
			j := m.random(i + 1)
			m.order[i], m.order[j] = m.order[j], m.order[i]
		}
		m.position = 0
	}
	return nil
}

// deleteFrom deletes elements of a list. The result does not keep the memory of a list that
// was several times as long.
func deleteFrom(list []*target, del func(*target) bool) []*target {
	if list = slices.DeleteFunc(list, del); len(list) < cap(list)/4 {
		return slices.Clone(list)
	}
	return list
}

// askToldFirst continues the round with the targets that were told that this node does not
// forward, since they believe it until they are asked again. The others keep their order.
// Update calls it when this node forwards again.
func (m *mesh) askToldFirst() {
	m.order = slices.Concat(m.order[m.position:], m.order[:m.position])
	m.position = 0
	later := map[bool]int{true: 0, false: 1}
	slices.SortStableFunc(m.order, func(a, b *target) int { return later[a.told] - later[b.told] })
}

// nextDown returns the target that has been due for the longest time.
func (m *mesh) nextDown(now moment) (due *target) {
	var earliest moment
	for t, r := range m.down.All() {
		if !r.next.After(now) && (due == nil || r.next.Before(earliest)) {
			due, earliest = t, r.next
		}
	}
	return due
}

// nextSuspect returns the suspect that was not asked for the longest time, of those that
// have been waiting longest. Turns are on beats, and the next one may come soon after a
// late one: interval/2 keeps that from asking the same suspect.
func (m *mesh) nextSuspect(now moment) (next *target) {
	m.suspects = deleteFrom(m.suspects, func(t *target) bool {
		t.suspect = !m.down.Has(t) && !t.gone && (t.counting().missed > 0 || t.full.suspicious() || t.forwarding.suspicious())
		return !t.suspect
	})
	for _, t := range m.suspects[:min(focus, len(m.suspects))] {
		if now.Sub(t.probed) >= interval/2 && (next == nil || t.probed.Before(next.probed)) {
			next = t
		}
	}
	return next
}

// counting returns the tally by which the state is decided: with Bridges, that of the public
// IP until the bridge has answered.
func (t *target) counting() *tally {
	if t.kind == Bridges && !t.hasPods {
		return t.under
	}
	return &t.main
}

// ask returns a request to a target. Its source is our address of the kind that is asked;
// to a public IP, it is zero, and the system chooses. A negative heard means never, and
// notForwarding is about IPv4 alone, as Network.NotForwarding is.
func (m *mesh) ask(now moment, t *target) request {
	to, purpose := t.choose(now, m.network.Hops)
	own := m.local(to)
	r := request{to: to}
	switch {
	case to == t.at.PublicIP:
	case t.kind == Tunnels:
		r.from = own.Subnet.Addr()
	case t.kind == Bridges:
		r.from = own.Subnet.Addr().Next()
	}
	size := 0 // encode makes it minBody
	switch purpose {
	case fullSize:
		size = sizeOf(m.network.MTU, to)
		t.full.sent, t.full.due = now, now.Add(checkEvery)
	case forwarded:
		r.hops = m.network.Hops
		t.forwarding.sent, t.forwarding.due = now, now.Add(checkEvery)
	}
	body := message{subnet: own.Subnet, heard: -1, token: m.token(), notForwarding: m.network.NotForwarding && to.Is4()}
	if heard := t.tally(to).heard; !heard.IsZero() {
		body.heard = now.Sub(heard)
	}
	r.body = body.encode(size)
	m.waiting[body.token] = &sent{target: t, to: to, at: now, purpose: purpose, told: t.told}
	t.asked++
	t.probed, t.latest, t.told = now, purpose, body.notForwarding
	if r, down := m.down.Get(t); down {
		r.retryAfter = min(2*r.retryAfter, maxRetryAfter)
		r.next = now.Add(r.retryAfter)
		m.down.Set(t, r)
	}
	m.counts.Sent++
	return r
}

// choose returns the address that is asked next, and what for. hops is Network.Hops.
//
// Of a peer with a tunnel, this is the address of the device, and if that does not
// answer, that of the bridge, too: kernels before 5.14 take the former for a broadcast
// address if the bridge is older than the device. A bridge exists once a pod has run on
// the node, so until it has answered, the public IP counts. Whether both stop together
// tells a reboot from an outage of the pods' way. tunnel is what answered last, device or
// bridge; after a miss, device (base) and bridge are asked in turn.
func (t *target) choose(now moment, hops int) (to netip.Addr, why purpose) {
	odd := t.asked%2 == 1
	switch {
	case t.kind == None, t.kind == Bridges && odd && (!t.hasPods || t.main.missed > 0):
		return t.at.PublicIP, small
	case t.kind == Bridges:
		to = t.bridge()
	default:
		to = t.tunnel()
		if t.main.missed > 0 && odd {
			to = t.bridge()
		} else if t.main.missed > 0 {
			to = t.base()
		}
	}
	// Every other request to a peer is small at least, since only these count for an outage.
	// While a check is suspicious, chooseCheck decides, by confirmed.
	checked := t.latest != small && !t.full.suspicious() && !t.forwarding.suspicious()
	if checked || !t.main.ever() || t.main.missed > 0 || t.kind == Bridges && !t.hasPods {
		return to, small
	}
	return t.chooseCheck(now, to, hops)
}

// chooseCheck returns a request of a check that is due, or a small one to an address that
// answers. With hops 0, nothing asks whether the peer forwards.
//
// While a check is suspicious (it has missed requests, and the cause is not known), its
// requests alternate with others that may confirm that only the check fails. confirmed means
// that one of these was answered since the last miss, so that the check's own request is next.
func (t *target) chooseCheck(now moment, to netip.Addr, hops int) (netip.Addr, purpose) {
	forwards := func() (netip.Addr, purpose) {
		if t.forwarding.confirmed {
			return t.pod(), forwarded
		}
		return t.bridge(), atBridge
	}
	switch {
	case t.full.suspicious() && t.full.confirmed:
		return to, fullSize
	case t.full.suspicious():
		return to, small
	case t.forwarding.suspicious():
		return forwards()
	case hops > 0 && !now.Before(t.forwarding.due) && t.forwarding.due.Before(t.full.due): // due for longer
		return forwards()
	case !now.Before(t.full.due):
		return to, fullSize
	}
	return to, small
}

// SendFailed is called for the request that Turn has just returned, if it could not be sent for
// a reason that says nothing about the peer. The request does not count as a miss, and has told
// the peer nothing. What sets the pace stays as after a request that was sent: this one may fail
// each time, such as one of the full size for which the MTU of an interface is too small.
func (m *mesh) SendFailed(r request) {
	body, _ := decode(r.body)  // ours, so it can be decoded
	s := m.waiting[body.token] // ask has just put it there
	s.target.told = s.told
	delete(m.waiting, body.token)
	m.counts.Sent--
	m.counts.Failed++
}
