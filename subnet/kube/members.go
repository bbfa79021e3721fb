package kube

import (
	"hash/fnv"
	"sync"

	"flannel/subnet"
)

// members are the names of the nodes in the network. All of them reject the same peers. So that not every node writes
// an Event about a rejected peer, a hash of the names chooses a few that do (see writes). The watch of all Nodes calls
// update, the daemon's loop share, and its probes shareOf. The zero members are empty.
type members struct {
	mu       sync.Mutex          // guards the rest; never held with another lock
	names    map[string]struct{} // of the Nodes that flannel manages, this one too
	rejected map[string]struct{} // the names of peers that every node ignores, as the loop reported last; they write nothing
}

// writers is how many nodes write an Event about the same fact: more than one, because one may be down.
const writers = 3

// update adds and removes members.
func (m *members) update(changes []change) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.names == nil {
		m.names = map[string]struct{}{}
	}
	for _, c := range changes {
		if c.node != nil && c.node.Annotations[managed] == "true" { // else the Node is gone, or flannel does not run there
			m.names[c.name] = struct{}{}
		} else {
			delete(m.names, c.name)
		}
	}
}

// share returns the rejected peers about which this node, called own, writes: those that perhaps only this node rejects
// (Local), and its share of the others. It also sets rejected. rejects are those of the loop's last pass.
func (m *members) share(own string, rejects []subnet.Rejected) (ours []subnet.Rejected) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rejected = make(map[string]struct{}, len(rejects))
	for _, r := range rejects {
		if !r.Local {
			m.rejected[r.Name] = struct{}{}
		}
	}
	accepted := m.accepted()
	for _, r := range rejects {
		if r.Local || writes(accepted, own, r.Name) {
			ours = append(ours, r)
		}
	}
	return ours
}

// shareOf returns those of the unreachable peers about which this node, called own, writes. It uses rejected as share
// has set it last.
func (m *members) shareOf(own string, peers []string) (ours []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	accepted := m.accepted()
	for _, name := range peers {
		if writes(accepted, own, name) {
			ours = append(ours, name)
		}
	}
	return ours
}

// accepted returns the names that are not rejected. Behind a rejected one there may be no node, which would write
// nothing. m.mu must be held.
func (m *members) accepted() (names []string) {
	for name := range m.names {
		if _, rejected := m.rejected[name]; !rejected {
			names = append(names, name)
		}
	}
	return names
}

// writes reports whether this node is among the first writers in the order of rank, which is different for each peer and
// the same on every node. Most nodes return after a few names.
func writes(accepted []string, own, peer string) bool {
	ours, before := rank(own, peer), 0 // before: how many others have a lower rank
	for _, name := range accepted {
		if name == own || name == peer || rank(name, peer) >= ours {
			continue
		}
		if before++; before == writers {
			return false
		}
	}
	return true
}

// rank is a hash of both names that orders the nodes for one peer.
func rank(name, peer string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(peer + "\x00" + name)) // it cannot fail
	x := h.Sum64()
	x ^= x >> 33 // mix the bits, as MurmurHash3 does: FNV gives names that differ only in their last letter similar values
	x *= 0xff51afd7ed558ccd
	return x ^ x>>33
}
