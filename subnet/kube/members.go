package kube

import (
	"hash/fnv"
	"sync"

	"flannel/subnet"
	"flannel/subnet/kube/format"
)

// members are the nodes that take part in the network, of which each should find the same peers at fault. A few of them
// write the Event about one: so many nodes would else write the same at the same moment.
type members struct {
	mu    sync.Mutex
	names map[string]struct{}
}

// writers is how many nodes write an Event about what all of them see. One of them may be down, or at fault itself.
const writers = 3

// update takes in changes.
func (m *members) update(changes []change) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.names == nil {
		m.names = map[string]struct{}{}
	}
	for _, c := range changes {
		if c.node != nil && c.node.Notes[format.Managed] == "true" {
			m.names[c.name] = struct{}{}
		} else {
			delete(m.names, c.name)
		}
	}
}

// share returns the peers about which it is ours to write: those that other nodes may accept, and our part of the others.
func (m *members) share(own string, rejects []subnet.Rejected) (ours []subnet.Rejected) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range rejects {
		if r.Local || m.writes(own, r.Name) {
			ours = append(ours, r)
		}
	}
	return ours
}

// writes reports whether fewer than writers others come before us when all are put in an order that is different for
// each peer and the same on every node. Most nodes find so many after a few names. m.mu must be held.
func (m *members) writes(own, peer string) bool {
	ours, before := rank(own, peer), 0
	for name := range m.names {
		if name == own || name == peer || rank(name, peer) >= ours {
			continue
		}
		if before++; before == writers {
			return false
		}
	}
	return true
}

func rank(name, peer string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(peer + "\x00" + name)) // it cannot fail; the end of a text counts for the least in this hash
	x := h.Sum64()
	x ^= x >> 33 // names that differ in their last letter only would else be neighbours
	x *= 0xff51afd7ed558ccd
	return x ^ x>>33
}
