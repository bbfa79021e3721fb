// This file takes over what the passes of the loop have left: which peers there are, and
// how packets reach them. A Prober calls it with its lock held.

package reach

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"slices"
	"time"

	"flannel/subnet"
)

// newMesh returns a mesh without peers. random returns a number below n, and token any
// number.
func newMesh(random func(n int) int, token func() uint64) *mesh {
	return &mesh{began: time.Now(), waiting: map[uint64]*sent{}, linkUp: true, random: random, token: token}
}

// Update takes what a pass has left. A peer whose lease is unchanged keeps its state,
// unless this node has changed (moved). A peer is probed if it has a path: not if it is rejected,
// nor, with Typed, if it has not published yet how to reach it. With None, no peer is.
func (m *mesh) Update(now moment, n Network) {
	moved := !n.Local.Equal(&m.network.Local) || n.Addressing != m.network.Addressing || n.MTU != m.network.MTU || n.LinkIndex != m.network.LinkIndex
	if m.network.NotForwarding && !n.NotForwarding {
		m.askToldFirst()
	}
	m.network = n
	m.passes++
	rejected, refused, retained := names(n.Rejects), names(n.Refused), map[string]bool{}
	for _, r := range n.Retained {
		retained[r.Lease.Name] = true
	}
	if n.Addressing != None {
		m.peers.Reserve(len(n.Peers))
	}
	for _, l := range n.Peers {
		if n.Addressing == None || rejected[l.Name] || n.Typed && l.Backend == "" {
			continue
		}
		p, known := m.peers.Get(l.Name)
		if !known {
			p = &peer{}
			m.peers.Set(l.Name, p)
		}
		if p.lease != l && (p.lease == nil || !sameWay(p.lease, l)) || moved {
			m.replace(now, p, l) // all that is known of the peer is forgotten: its state is unknown
		}
		if p.lease != l { // another copy of the lease, on the same way
			p.follow(l)
		}
		switch {
		case !retained[l.Name] && !p.retained.IsZero(): // while it was, Changes has dropped its changes for the worse
			p.retained = 0
			m.changed.Set(p, struct{}{})
		case retained[l.Name] && p.retained.IsZero():
			p.retained = now
		}
		p.lease, p.behind, p.seen = l, refused[l.Name], m.passes
	}
	for name, p := range m.peers.All() {
		if p.seen != m.passes {
			m.drop(p)
			m.peers.Delete(name)
		}
	}
	m.setJudging(now)
}

// names returns the set of the names.
func names(rejects []subnet.Rejected) map[string]bool {
	all := make(map[string]bool, len(rejects))
	for _, r := range rejects {
		all[r.Name] = true
	}
	return all
}

// sameWay reports whether packets take the same way to both leases. All keys of the backend
// data count, those of a rollout, too: only they show that a node has, for example, another
// port or secret, which no other key has.
func sameWay(a, b *subnet.Lease) bool {
	same := func(a, b subnet.Endpoint) bool {
		return a.Subnet == b.Subnet && a.PublicIP == b.PublicIP && bytes.Equal(a.Data, b.Data)
	}
	return a.Backend == b.Backend && same(a.V4, b.V4) && same(a.V6, b.V6)
}

// follow makes the targets refer to a lease with the same endpoints as before, so that the
// former one does not stay in memory.
func (p *peer) follow(l *subnet.Lease) {
	for _, t := range p.targets {
		t.at = endpoint(l, t.base())
	}
}

// drop forgets the targets of a peer. order, suspects and waiting may have them for a while;
// who takes a target from there looks at gone.
func (m *mesh) drop(p *peer) {
	for _, t := range p.targets {
		t.gone = true
		m.down.Delete(t)
		for _, a := range t.sources() {
			if current, _ := m.bySource.Get(a); current == t { // else another peer has taken over the address
				m.bySource.Delete(a)
			}
		}
	}
	p.targets = nil
}

// replace makes new targets for a peer, in the families that this node has, too.
func (m *mesh) replace(now moment, p *peer, l *subnet.Lease) {
	m.drop(p)
	for _, e := range l.Endpoints() {
		if !m.local(e.Subnet.Addr()).On() {
			continue
		}
		t := &target{peer: p, at: endpoint(l, e.Subnet.Addr()), kind: m.network.Addressing,
			state: unknown, since: now, added: now, full: check{due: now}, forwarding: check{due: now}}
		if isWindows(e.Data) {
			t.kind = None
		}
		if t.kind == Bridges {
			t.under = &tally{}
		}
		p.targets = append(p.targets, t)
		for _, a := range t.sources() {
			m.bySource.Set(a, t)
		}
		// Anywhere in what is left of the round: it changes places with one of the rest.
		m.order = append(m.order, t)
		if at := min(m.position, len(m.order)-1); at < len(m.order)-1 {
			at += m.random(len(m.order) - at)
			last := len(m.order) - 1
			m.order[at], m.order[last] = m.order[last], m.order[at]
		}
	}
}

// local returns this node's endpoint of the family of an address.
func (m *mesh) local(a netip.Addr) subnet.Endpoint { return *endpoint(&m.network.Local, a) }

// endpoint returns the endpoint of a lease in the family of an address.
func endpoint(l *subnet.Lease, a netip.Addr) *subnet.Endpoint {
	if a.Is4() {
		return &l.V4
	}
	return &l.V6
}

// isWindows reports whether the backend data of a peer is that of a Windows node: HNS
// takes the address of its router from Microsoft's range, whereas on Linux the address
// is random, with the bit of local administration, or chosen by an operator. The host
// has no address in the overlay.
func isWindows(data json.RawMessage) bool {
	var d struct{ VtepMAC string }
	if !bytes.Contains(data, []byte("VtepMAC")) || json.Unmarshal(data, &d) != nil || len(d.VtepMAC) < 8 {
		return false
	}
	prefix := []byte(d.VtepMAC[:8]) // the first three bytes of the MAC address, as text
	prefix[2], prefix[5] = ':', ':' // whatever is between them
	return bytes.EqualFold(prefix, []byte("00:15:5d"))
}

// base is the address of the tunnel device, bridge that of the pods' bridge.
func (t *target) base() netip.Addr   { return t.at.Subnet.Addr() }
func (t *target) bridge() netip.Addr { return t.at.Subnet.Addr().Next() }

// tunnel is the address that answered last; at first, that of the tunnel device.
func (t *target) tunnel() netip.Addr {
	if t.viaBridge {
		return t.bridge()
	}
	return t.base()
}

// pod is an address of pods: the first one, which exists or not.
func (t *target) pod() netip.Addr { return t.bridge().Next() }

// sources are the addresses from which the peer sends requests.
func (t *target) sources() []netip.Addr {
	switch t.kind {
	case Tunnels:
		return []netip.Addr{t.base()}
	case Bridges:
		return []netip.Addr{t.bridge(), t.at.PublicIP}
	}
	return nil
}

// setJudging decides whether misses count, and forgets those of before. The state of a
// target stays, but reports say unknown while nothing is judged (report.go).
func (m *mesh) setJudging(now moment) {
	judging := m.network.Synced && m.linkUp
	if judging == m.judging {
		return
	}
	m.judging, m.since = judging, now
	m.forgetMisses()
}

// SetLink sets whether the underlay is up. Each turn calls it.
func (m *mesh) SetLink(now moment, up bool) {
	m.linkUp = up
	m.setJudging(now)
}

// forgetMisses keeps requests that are not answered yet from becoming misses, and forgets the
// misses of suspects. A target that is down stays down.
func (m *mesh) forgetMisses() {
	for _, s := range m.waiting {
		s.missed = true // an answer still counts
	}
	for _, t := range m.suspects {
		t.main.missed, t.full.misses, t.forwarding.misses, t.suspect = 0, 0, 0, false
		if t.under != nil {
			t.under.missed = 0
		}
	}
	m.suspects = slices.Delete(m.suspects, 0, len(m.suspects))
}
