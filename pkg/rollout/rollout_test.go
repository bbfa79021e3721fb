package rollout

import (
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
	changed bool        // the offer, or a node's Mark, since the last second
	log     []string    // like "15s 3 adopts"
	// reach reports whether two nodes with the offered configuration reach each
	// other.
	reach func(a, b int) bool
	// without are nodes that never adopt the configuration, such as a flannel.
	without map[int]bool
}

func newWorld(n int) *world {
	w := &world{now: time.Unix(1e9, 0), adopted: make([]bool, n), due: make([]time.Time, n), reach: func(a, b int) bool { return true }}
	for range n {
		w.nodes = append(w.nodes, &Rollout{Stagger: stagger})
	}
	return w
}

func (w *world) offer(id string) {
	w.changed = true
	for i, r := range w.nodes {
		if !w.without[i] {
			r.Offer(id, w.now)
		}
	}
}

func (w *world) cluster(i int) Cluster {
	c := Cluster{Self: fmt.Sprint("node", i)}
	for k, r := range w.nodes {
		if k != i {
			c.Peers = append(c.Peers, Peer{Name: fmt.Sprint("node", k), Mark: r.Mark()})
		}
	}
	return c
}

// run advances the time by d in steps of a second. It returns the highest
// number of nodes that were on trial at the same time.
func (w *world) run(d time.Duration) (most int) {
	start := w.now
	for end := w.now.Add(d); w.now.Before(end); w.now = w.now.Add(time.Second) {
		trying, stepAll := 0, w.changed
		w.changed = false
		for i, r := range w.nodes {
			action, mark := Nothing, r.Mark()
			if due := w.due[i]; stepAll || !due.IsZero() && !w.now.Before(due) {
				var again time.Duration
				action, again = r.Step(w.cluster(i), w.now)
				if w.due[i] = w.now.Add(again); again == 0 {
					w.due[i] = time.Time{}
				}
			}
			switch action {
			case Adopt:
				w.adopted[i] = true
				w.log = append(w.log, fmt.Sprintf("%v %d adopts", w.now.Sub(start), i))
			case GoBack:
				w.adopted[i] = false
				w.log = append(w.log, fmt.Sprintf("%v %d goes back", w.now.Sub(start), i))
			}
			for k := range w.nodes {
				if k != i && r.State() == Trying && w.nodes[k].Mark().ID == r.Mark().ID && w.adopted[k] && w.reach(i, k) {
					r.Answered()
				}
			}
			if r.State() == Trying {
				trying++
			}
			w.changed = w.changed || r.Mark() != mark
		}
		most = max(most, trying)
	}
	return most
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

func TestAllAdopt(t *testing.T) {
	for _, n := range []int{1, 2, 3, 10, 100} {
		w := newWorld(n)
		w.offer("new")
		if w.run(stagger / 4); n > 1 && w.count() != 0 {
			t.Errorf("%d nodes: %d have adopted before the hold is over", n, w.count())
		}
		w.run(stagger/4 + 5*time.Second)
		if w.count() != n {
			t.Errorf("%d nodes: %d have adopted\n%v", n, w.count(), w.log)
		}
		for i, r := range w.nodes {
			if r.State() != Settled || n > 1 && r.Mark() != (Mark{"new", true}) {
				t.Errorf("%d nodes: node %d is in state %d with mark %v", n, i, r.State(), r.Mark())
			}
		}
	}
}

// TestWrongConfigurationIsRefused offers a configuration with which no nodes
// reach each other. Two nodes try it at the same time, eight in all, and then
// all refuse it.
func TestWrongConfigurationIsRefused(t *testing.T) {
	w := newWorld(50)
	w.reach = func(a, b int) bool { return false }
	w.offer("wrong")
	if most := w.run(10 * stagger); most > perTurn {
		t.Errorf("%d nodes were on trial at the same time", most)
	}
	if len(w.log) != 2*turns*perTurn || w.count() != 0 {
		t.Errorf("%d nodes have it at the end:\n%v", w.count(), w.log)
	}
	for i, r := range w.nodes {
		if r.State() != Refused || r.Mark() != (Mark{}) {
			t.Errorf("node %d is in state %d with mark %v", i, r.State(), r.Mark())
		}
	}
	w.offer("wrong") // the same again
	if w.run(10 * stagger); w.count() != 0 || len(w.log) != 2*turns*perTurn {
		t.Errorf("the refused configuration was tried again:\n%v", w.log)
	}
	w.reach = func(a, b int) bool { return true }
	w.offer("right")
	if w.run(stagger); w.count() != 50 {
		t.Errorf("%d of 50 nodes have adopted the next configuration", w.count())
	}
}

func TestWithdrawnDuringHold(t *testing.T) {
	w := newWorld(10)
	w.offer("wrong")
	w.run(stagger/4 - 5*time.Second)
	for _, r := range w.nodes {
		r.Withdraw()
	}
	if w.run(10 * stagger); len(w.log) != 0 {
		t.Errorf("%v", w.log)
	}
}

// TestNodesWithoutRollout checks that nodes which never adopt a configuration
// only use up their turns. If all other nodes are such, the one that tries it
// goes back.
func TestNodesWithoutRollout(t *testing.T) {
	w := newWorld(10)
	order := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	r := Rollout{id: "new"}
	slices.SortFunc(order, func(a, b int) int { return r.rank(w.cluster(a)) - r.rank(w.cluster(b)) })
	w.without = map[int]bool{order[0]: true, order[1]: true, order[3]: true}
	w.offer("new")
	if w.run(6 * stagger); w.count() != 7 {
		t.Errorf("%d have adopted, want 7\n%v", w.count(), w.log)
	}
	w = newWorld(10)
	w.without = map[int]bool{}
	for _, i := range order[1:] {
		w.without[i] = true
	}
	w.offer("new")
	if w.run(6 * stagger); w.count() != 0 || len(w.log) != 2 {
		t.Errorf("%v", w.log)
	}
}

// TestUnreachableNode checks that a node that gets no answer from the others
// with a proven configuration goes back, and the others do not.
func TestUnreachableNode(t *testing.T) {
	w := newWorld(10)
	last := 0
	r := Rollout{id: "new"}
	for i := range w.nodes {
		if r.rank(w.cluster(i)) == 9 {
			last = i
		}
	}
	w.reach = func(a, b int) bool { return a != last && b != last }
	w.offer("new")
	if w.run(6 * stagger); w.count() != 9 || w.nodes[last].State() != Refused {
		t.Errorf("%v", w.log)
	}
}

// TestFollower checks that a follower waits for another node's proof, and
// adopts the configuration even if the proof comes after all turns.
func TestFollower(t *testing.T) {
	r := Rollout{Stagger: stagger}
	now := time.Unix(1e9, 0)
	c := Cluster{Self: "w", Peers: []Peer{{Name: "a"}}, Follower: true}
	r.Offer("new", now)
	if action, again := r.Step(c, now); action != Nothing || again != stagger/4+turns*stagger {
		t.Errorf("%v, again after %v", action, again)
	}
	now = now.Add(10 * stagger)
	if action, again := r.Step(c, now); action != Nothing || again != 0 || r.State() != Refused {
		t.Errorf("%v, again after %v, state %v", action, again, r.State())
	}
	c.Peers[0].Mark = Mark{"other", true}
	if action, again := r.Step(c, now); action != Nothing || again != 0 {
		t.Errorf("for another configuration: %v, again after %v", action, again)
	}
	c.Peers[0].Mark = Mark{"new", true}
	action, again := r.Step(c, now)
	if action != Nothing || again <= 0 || again > r.Spread() {
		t.Fatalf("%v, again after %v", action, again)
	}
	if action, _ = r.Step(c, now.Add(again)); action != Adopt || r.State() != Trying || r.Mark() != (Mark{ID: "new"}) {
		t.Errorf("%v, state %v, mark %v", action, r.State(), r.Mark())
	}
}
