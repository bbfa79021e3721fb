package rollout

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

const stagger = 2 * time.Minute

// world is a cluster of nodes with a Rollout each, whose time is a number.
type world struct {
	now     time.Time
	nodes   []*Rollout
	adopted []bool
	due     []time.Time // when each wants to be called though nothing has changed; zero: never
	changed bool        // what a node says of itself
	log     []string    // "<seconds> <node> adopts"
	// reach says whether two nodes that have both adopted the configuration reach each other.
	reach func(a, b int) bool
	// deaf nodes do not follow at all, as a flannel.
	deaf map[int]bool
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
		if !w.deaf[i] {
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

// run lets d pass, a second at a time, and returns the most nodes that were on trial at once.
func (w *world) run(d time.Duration) (most int) {
	start := w.now
	for end := w.now.Add(d); w.now.Before(end); w.now = w.now.Add(time.Second) {
		trying, all := 0, w.changed
		w.changed = false
		for i, r := range w.nodes {
			action, mark := Nothing, r.Mark()
			if due := w.due[i]; all || !due.IsZero() && !w.now.Before(due) {
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

func (w *world) count() (adopted int) {
	for _, is := range w.adopted {
		if is {
			adopted++
		}
	}
	return adopted
}

func TestSpreads(t *testing.T) {
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
				t.Errorf("%d nodes: node %d is in state %d, says %v", n, i, r.State(), r.Mark())
			}
		}
	}
}

// A configuration in which nobody reaches anybody: two nodes at a time try it, eight in all; then it is refused.
func TestWrongOneStops(t *testing.T) {
	w := newWorld(50)
	w.reach = func(a, b int) bool { return false }
	w.offer("wrong")
	if most := w.run(10 * stagger); most > perTurn {
		t.Errorf("%d nodes were cut off at once", most)
	}
	if len(w.log) != 2*turns*perTurn || w.count() != 0 {
		t.Errorf("%d nodes have it in the end:\n%v", w.count(), w.log)
	}
	for i, r := range w.nodes {
		if r.State() != Refused || r.Mark() != (Mark{}) {
			t.Errorf("node %d is in state %d, says %v", i, r.State(), r.Mark())
		}
	}
	w.offer("wrong") // again, in a file that was written again
	if w.run(10 * stagger); w.count() != 0 || len(w.log) != 2*turns*perTurn {
		t.Errorf("refused, it was tried again:\n%v", w.log)
	}
	w.reach = func(a, b int) bool { return true }
	w.offer("right")
	if w.run(stagger); w.count() != 50 {
		t.Errorf("after a refused one, another was adopted by %d", w.count())
	}
}

func TestTakenBack(t *testing.T) {
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

// Nodes that do not follow use their turn up, and the others go on; with too many of them nobody stays cut off.
func TestDeafNodes(t *testing.T) {
	w := newWorld(10)
	order := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	probe := Rollout{id: "new"}
	slices.SortFunc(order, func(a, b int) int { return probe.rank(w.cluster(a)) - probe.rank(w.cluster(b)) })
	w.deaf = map[int]bool{order[0]: true, order[1]: true, order[3]: true}
	w.offer("new")
	if w.run(6 * stagger); w.count() != 7 {
		t.Errorf("%d have adopted, want 7\n%v", w.count(), w.log)
	}
	w = newWorld(10)
	w.deaf = map[int]bool{}
	for _, i := range order[1:] {
		w.deaf[i] = true
	}
	w.offer("new")
	if w.run(6 * stagger); w.count() != 0 || len(w.log) != 2 {
		t.Errorf("%v", w.log)
	}
}

// A node that cannot reach those who have proven a configuration goes back alone.
func TestOneCannotFollow(t *testing.T) {
	w := newWorld(10)
	first := 0
	probe := Rollout{id: "new"}
	for i := range w.nodes {
		if probe.rank(w.cluster(i)) == 9 {
			first = i
		}
	}
	w.reach = func(a, b int) bool { return a != first && b != first }
	w.offer("new")
	if w.run(6 * stagger); w.count() != 9 || w.nodes[first].State() != Refused {
		t.Errorf("%v", w.log)
	}
}

// A follower waits for proof, however long, and takes it also after it gave up.
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
