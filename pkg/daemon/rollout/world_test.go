package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"
)

const stagger = 2 * time.Minute

// world is a simulated cluster. Each node has a Rollout.
type world struct {
	now     time.Time
	nodes   []*Rollout
	adopted []bool
	due     []time.Time // when Step of each node is called if nothing changes before; zero: never
	changed bool        // an offer, or a Mark in the store, since the last step
	log     []string    // like "15s 3 adopts"
	store   []Mark      // what the store has of each node
	seen    []time.Time // when that changed; zero: not since the start
	missed  []bool      // Peer.Missed of each node
	// reach reports whether two nodes with the offered configuration reach each
	// other.
	reach func(a, b int) bool
	// without are nodes that never adopt the configuration, such as a flannel.
	without map[int]bool
	// mute are nodes without an address that the new way leads to.
	mute map[int]bool
	// silent are nodes whose Marks do not reach the store.
	silent map[int]bool
	// blocked is until when no node can publish; it has then the latest Mark.
	blocked time.Time
	// late is how long after the offer a node receives it.
	late map[int]time.Duration
	// others are peers that are no nodes: what is left of dead ones, and forgeries.
	others []Peer

	offered string
	told    []string // what each node was offered last
	at      time.Time
	most    int // that were on trial at the same time
	// split is for how long some nodes had the configuration and others did not.
	split time.Duration
}

func newWorld(n int) *world {
	w := &world{now: time.Unix(1e9, 0), adopted: make([]bool, n), due: make([]time.Time, n),
		store: make([]Mark, n), seen: make([]time.Time, n), missed: make([]bool, n), told: make([]string, n),
		reach: func(a, b int) bool { return true }}
	for range n {
		w.nodes = append(w.nodes, &Rollout{Stagger: stagger})
	}
	return w
}

func (w *world) offer(id string) { w.offered, w.at = id, w.now }

func (w *world) cluster(i int) Cluster {
	c := Cluster{Self: fmt.Sprint("node", i), Answers: !w.mute[i], Published: w.store[i] == w.nodes[i].Mark(), Peers: slices.Clone(w.others), Nodes: len(w.nodes) + len(w.others)}
	for k := range w.nodes {
		if k != i {
			c.Peers = append(c.Peers, Peer{Name: fmt.Sprint("node", k), Mark: w.store[k], Seen: w.seen[k], Missed: w.missed[k]})
		}
	}
	return c
}

const tick = 50 * time.Millisecond

// run advances the time by d.
func (w *world) run(d time.Duration) {
	start := w.now
	for end := w.now.Add(d); w.now.Before(end); w.now = w.now.Add(tick) {
		for i, r := range w.nodes {
			if w.offered != w.told[i] && !w.without[i] && !w.now.Before(w.at.Add(w.late[i])) {
				w.told[i] = w.offered
				w.changed = w.offered != "" && r.Offer(w.offered, w.now) || w.changed
			}
		}
		trying, stepAll := 0, w.changed
		w.changed = false
		for i, r := range w.nodes {
			w.step(start, i, stepAll)
			if r.State() == Trying && r.Deadline().Sub(w.now) > time.Second { // when one turn ends, the next one begins
				trying++
			}
		}
		w.most = max(w.most, trying)
		if n := w.count(); n > 0 && n < len(w.nodes)-len(w.without) {
			w.split += tick
		}
	}
}

// step is one node's part of run.
func (w *world) step(start time.Time, i int, now bool) {
	r := w.nodes[i]
	before, adopt := r.State(), false
	if due := w.due[i]; now || !due.IsZero() && !w.now.Before(due) {
		var again time.Duration
		adopt, again = r.Step(w.cluster(i), w.now)
		if w.due[i] = w.now.Add(again); again == 0 {
			w.due[i] = time.Time{}
		}
	}
	switch {
	case adopt:
		w.adopted[i] = true
		w.log = append(w.log, fmt.Sprintf("%v %d adopts", w.now.Sub(start), i))
	case before == Trying && r.State() == Refused:
		w.adopted[i] = false
		w.log = append(w.log, fmt.Sprintf("%v %d goes back", w.now.Sub(start), i))
	}
	for k := range w.nodes {
		if k != i && r.State() == Trying && w.nodes[k].Mark().ID == r.Mark().ID && w.adopted[k] && !w.mute[i] && !w.mute[k] && w.reach(i, k) {
			r.Answered(w.now)
		}
	}
	if r.Mark() != w.store[i] && !w.silent[i] && !w.now.Before(w.blocked) {
		w.put(i, r.Mark())
	}
}

// put changes what the store has of a node.
func (w *world) put(i int, m Mark) {
	w.missed[i] = m.Phase > OnTrial && m.ID != w.store[i].ID
	w.store[i], w.seen[i], w.changed = m, w.now, true
}

// count returns how many nodes have the offered configuration.
func (w *world) count() (n int) {
	for _, adopted := range w.adopted {
		if adopted {
			n++
		}
	}
	return n
}

// order returns the nodes in the order of their turns.
func (w *world) order(id string) []int {
	r := Rollout{id: id}
	nodes := make([]int, len(w.nodes))
	for i := range nodes {
		nodes[i] = i
	}
	slices.SortFunc(nodes, func(a, b int) int { return cmp.Compare(r.hash(fmt.Sprint("node", a)), r.hash(fmt.Sprint("node", b))) })
	return nodes
}

func (w *world) expect(t *testing.T, what string, adopted int, state State) {
	t.Helper()
	if w.count() != adopted {
		t.Errorf("%s: %d have adopted, want %d\n%v", what, w.count(), adopted, w.log)
	}
	for i, r := range w.nodes {
		if !w.without[i] && r.State() != state {
			t.Errorf("%s: node %d is in state %d with mark %v, want state %d", what, i, r.State(), r.Mark(), state)
		}
	}
}
