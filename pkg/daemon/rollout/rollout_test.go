package rollout

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func TestAllAdopt(t *testing.T) {
	for _, n := range []int{1, 2, 3, 10, 100} {
		w := newWorld(n)
		w.offer("new")
		if w.run(stagger / 4); n > 1 && w.count() != 0 {
			t.Errorf("%d nodes: %d have adopted before the hold is over", n, w.count())
		}
		w.run(stagger / 2)
		w.expect(t, fmt.Sprint(n, " nodes"), n, Settled)
		for i, r := range w.nodes {
			if n > 1 && r.Mark() != (Mark{"new", Proven, true}) {
				t.Errorf("%d nodes: node %d has mark %v", n, i, r.Mark())
			}
		}
		if n <= 3 && w.split > 500*time.Millisecond || w.split > 5*time.Second {
			t.Errorf("%d nodes: they are apart for %v", n, w.split)
		}
	}
	if got := (&Rollout{Stagger: stagger}).spread(5000); got != stagger/4 {
		t.Errorf("5,000 nodes write within %v", got)
	}
}

// TestWrongConfigurationIsRefused offers a configuration with which no nodes
// reach each other. Two nodes try it at the same time, eight in all, and then
// all refuse it.
func TestWrongConfigurationIsRefused(t *testing.T) {
	w := newWorld(50)
	w.reach = func(a, b int) bool { return false }
	w.offer("wrong")
	if w.run(10 * stagger); w.most > perTurn || len(w.log) != 2*turns*perTurn {
		t.Errorf("%d nodes were on trial at the same time\n%v", w.most, w.log)
	}
	w.expect(t, "wrong", 0, Refused)
	for _, r := range w.nodes {
		if r.Offer("wrong", w.now) {
			t.Error("the refused configuration is a new one")
		}
	}
	w.changed = true
	if w.run(10 * stagger); w.count() != 0 || len(w.log) != 2*turns*perTurn {
		t.Errorf("the refused configuration was tried again:\n%v", w.log)
	}
	w.reach = func(a, b int) bool { return true }
	w.offer("right")
	w.run(stagger)
	w.expect(t, "right", 50, Settled)
}

func TestWithdrawnDuringHold(t *testing.T) {
	w := newWorld(10)
	w.offer("wrong")
	w.run(stagger/4 - 5*time.Second)
	w.offer("")
	for _, r := range w.nodes {
		if r.Mark() != (Mark{}) {
			t.Errorf("something was published during the hold: %v", r.Mark())
		}
		r.Withdraw(w.now)
	}
	if w.run(10 * stagger); len(w.log) != 0 {
		t.Errorf("%v", w.log)
	}
}

// TestSkew: nodes receive the configuration at different times, and try it when
// all have it.
func TestSkew(t *testing.T) {
	for _, late := range []map[int]time.Duration{
		{0: time.Minute}, {1: time.Minute}, {2: time.Minute}, {0: 20 * time.Second, 1: time.Minute}, {1: 119 * time.Second, 2: time.Second},
	} {
		w := newWorld(3)
		w.late = late
		w.offer("new")
		w.run(2 * stagger)
		w.expect(t, fmt.Sprint(late), 3, Settled)
		if w.split > 500*time.Millisecond {
			t.Errorf("%v: the nodes were apart for %v\n%v", late, w.split, w.log)
		}
	}
	// The turns may be shorter than the skew.
	w := newWorld(3)
	for _, r := range w.nodes {
		r.Stagger, r.Skew = 4*time.Second, 2*time.Minute
	}
	w.late = map[int]time.Duration{1: time.Minute}
	w.offer("new")
	w.run(2 * stagger)
	w.expect(t, "short turns", 3, Settled)
	if w.split > 500*time.Millisecond {
		t.Errorf("the nodes were apart for %v\n%v", w.split, w.log)
	}
	// A node that receives it when the others no longer wait follows at once.
	w = newWorld(10)
	w.late = map[int]time.Duration{4: 10 * time.Minute}
	w.offer("new")
	w.run(9 * time.Minute)
	if w.count() != 9 {
		t.Errorf("%v", w.log)
	}
	w.run(time.Minute + time.Second)
	w.expect(t, "ten minutes late", 10, Settled)
}

// TestNodesWithoutRollout checks that nodes which never become ready, because
// they run flannel or are down, only delay the turns. If all other nodes are
// such, the one that tries it goes back.
func TestNodesWithoutRollout(t *testing.T) {
	w := newWorld(10)
	order := w.order("new")
	w.without = map[int]bool{order[0]: true, order[1]: true, order[3]: true}
	w.offer("new")
	if w.run(stagger/4 + stagger - time.Second); w.count() != 0 {
		t.Errorf("the turns began before the patience was over\n%v", w.log)
	}
	w.run(stagger / 4)
	w.expect(t, "three without", 7, Settled)
	w = newWorld(10)
	w.without = map[int]bool{}
	for _, i := range order[1:] {
		w.without[i] = true
	}
	w.offer("new")
	w.run(7 * stagger)
	w.expect(t, "alone", 0, Refused)
	if len(w.log) != 2 {
		t.Errorf("%v", w.log)
	}
}

// TestUnpublished: nodes that cannot publish their Marks try one after the other.
func TestUnpublished(t *testing.T) {
	for _, count := range []int{1, 50} { // of 50
		w := newWorld(50)
		w.reach = func(a, b int) bool { return false }
		w.silent = map[int]bool{}
		for i := range count {
			w.silent[i] = true
		}
		w.offer("wrong")
		w.run(12 * stagger)
		w.expect(t, fmt.Sprint(count, " cannot publish"), 0, Refused)
		if w.most > perTurn+count/25 { // the one beside those that can
			t.Errorf("%d: %d on trial at the same time\n%v", count, w.most, w.log)
		}
	}
}

// TestJunk: Marks that were there before, or that no node can have published in
// this rollout, hold no turns.
func TestJunk(t *testing.T) {
	for _, m := range []Mark{{"new", Ready, true}, {"new", OnTrial, true}, {"new", Reverted, true}, {"old", Ready, true}, {}} {
		w := newWorld(5)
		for i := range 60 {
			w.others = append(w.others, Peer{Name: fmt.Sprint("junk", i), Mark: m})
		}
		w.offer("new")
		w.run(stagger/4 + stagger + 5*time.Second)
		w.expect(t, fmt.Sprint(m), 5, Settled)
	}
}

// TestStaleProof: the Mark of a node that died before is no proof.
func TestStaleProof(t *testing.T) {
	w := newWorld(5)
	w.reach = func(a, b int) bool { return false }
	w.others = []Peer{{Name: "dead", Mark: Mark{"wrong", Proven, true}}}
	w.offer("wrong")
	if w.run(stagger); len(w.log) != 0 {
		t.Errorf("a stale proof was followed\n%v", w.log)
	}
	w.run(10 * stagger)
	w.expect(t, "a stale proof", 0, Refused)
	if w.most > perTurn {
		t.Errorf("%d on trial at the same time\n%v", w.most, w.log)
	}
	// A node that died with a proof of an earlier rollout, which was then undone.
	w = newWorld(5)
	w.offer("new")
	w.run(stagger)
	w.expect(t, "at first", 5, Settled)
	w.others = []Peer{{Name: "dead", Mark: Mark{"new", Proven, true}, Seen: w.now.Add(-time.Minute)}}
	w.offer("old")
	w.run(3 * stagger)
	w.expect(t, "undone", 5, Settled)
	w.reach = func(a, b int) bool { return false }
	w.adopted = make([]bool, 5)
	w.offer("new")
	w.most, w.log = 0, nil
	if w.run(stagger); len(w.log) != 0 {
		t.Errorf("the proof of an earlier rollout was followed\n%v", w.log)
	}
	w.run(10 * stagger)
	w.expect(t, "again, and broken now", 0, Refused)
}

// result is what some peers publish.
type result struct {
	peers int // the next ones
	phase Phase
	at    time.Duration // since the offer
	seen  bool          // this node has seen the steps before
}

// follows returns how long after the offer a node follows others, although it never gets an answer.
func follows(in Cluster, turn time.Duration, results []result) (times []time.Duration) {
	r, start := Rollout{Stagger: turn}, time.Unix(1e9, 0)
	r.Offer("new", start)
	for now := start; ; {
		var next time.Time
		first := 0
		for _, c := range results {
			seen := start.Add(c.at)
			for i := range c.peers {
				if p := &in.Peers[first+i]; !now.Before(seen) {
					*p = Peer{Name: p.Name, Mark: Mark{"new", c.phase, c.phase == Proven}, Seen: seen, Missed: !c.seen}
				}
			}
			if first += c.peers; now.Before(seen) {
				next = earliest(next, seen)
			}
		}
		adopt, again := r.Step(in, now)
		if adopt && r.followed {
			times = append(times, now.Sub(start))
		}
		if again > 0 {
			next = earliest(next, now.Add(again))
		}
		if next.IsZero() {
			return times
		}
		now = next
	}
}

// TestMissedResults: results of peers that this node did not see to take part count if more than half of all nodes have had
// them for missedWait, and for one trial.
func TestMissedResults(t *testing.T) {
	const before = -time.Hour
	for _, c := range []struct {
		name    string
		peers   int
		turn    time.Duration
		results []result
		follows []time.Duration
	}{
		{"one peer", 1, stagger, []result{{1, Proven, before, false}}, nil},
		{"one of two peers", 2, stagger, []result{{1, Proven, before, false}}, nil},
		{"two peers", 2, stagger, []result{{2, Proven, before, false}}, []time.Duration{missedWait}},
		{"one", 9, stagger, []result{{1, Proven, before, false}}, nil},
		{"half of ten nodes", 9, stagger, []result{{5, Proven, before, false}}, nil},
		{"more than half", 9, stagger, []result{{6, Proven, before, false}}, []time.Duration{missedWait}},
		{"short turns", 9, time.Second, []result{{6, Proven, time.Minute, false}}, []time.Duration{missedWait + time.Minute}},
		{"long turns", 9, time.Hour, []result{{6, Proven, before, false}}, []time.Duration{time.Hour / 4}},
		{"after the offer", 9, stagger, []result{{6, Proven, time.Second, false}}, []time.Duration{missedWait + time.Second}},
		{"after all turns", 9, stagger, []result{{6, Proven, 10 * stagger, false}}, []time.Duration{missedWait + 10*stagger}},
		{"others later", 9, stagger, []result{{6, Proven, before, false}, {1, Proven, time.Second, false}, {1, Proven, time.Minute, false}},
			[]time.Duration{missedWait}},
		{"some went back", 9, stagger, []result{{4, Proven, before, false}, {2, Reverted, before, false}}, []time.Duration{missedWait}},
		{"more went back", 9, stagger, []result{{3, Proven, before, false}, {4, Reverted, before, false}}, nil},
		{"untested", 9, stagger, []result{{9, WithoutTest, before, false}}, nil},
		{"some are untested", 9, stagger, []result{{5, Proven, before, false}, {4, WithoutTest, before, false}}, nil},
		{"with one that was seen", 9, stagger, []result{{6, Proven, before, false}, {1, Reverted, before, true}}, []time.Duration{missedWait}},
		{"half of ten with one that was seen", 9, stagger, []result{{5, Proven, before, false}, {1, Reverted, before, true}}, nil},
		{"others after the trial", 9, stagger, []result{{6, Proven, before, false}, {1, Proven, 10 * stagger, false},
			{1, Proven, 20 * stagger, true}, {1, Proven, 30 * stagger, true}}, []time.Duration{missedWait, 20 * stagger}},
	} {
		for _, kind := range []Cluster{{Answers: true}, {}, {Answers: true, Follower: true}, {Follower: true}} {
			in, want := kind, c.follows
			in.Self, in.Nodes, in.Published = "n", c.peers+1, true
			for i := range c.peers {
				in.Peers = append(in.Peers, Peer{Name: fmt.Sprint("peer", i)})
			}
			if !in.Answers {
				want = want[:min(1, len(want))] // it keeps the configuration as unproven
			}
			got := follows(in, c.turn, c.results)
			if !slices.EqualFunc(got, want, func(got, want time.Duration) bool { return got >= want && got <= want+9*perNode }) {
				t.Errorf("%s, %+v: follows after %v, want %v", c.name, kind, got, want)
			}
		}
	}
	in := Cluster{Self: "n", Nodes: 10, Peers: make([]Peer, 9), Answers: true}
	if got := follows(in, stagger, []result{{9, Proven, -time.Hour, false}}); len(got) > 0 {
		t.Errorf("follows after %v, and its Mark is not in the store", got)
	}
	in.Published, in.Nodes = true, 20
	if got := follows(in, stagger, []result{{9, Proven, -time.Hour, false}}); len(got) > 0 {
		t.Errorf("follows after %v, and most nodes are rejected", got)
	}
}

// TestRestoredStore: the results in a store that was restored from a backup prove nothing, although those of all nodes are
// about a configuration that is offered at the same time.
func TestRestoredStore(t *testing.T) {
	w := newWorld(10)
	for _, id := range []string{"former", "present"} {
		w.offer(id)
		w.run(stagger)
		w.expect(t, id, 10, Settled)
		w.adopted = make([]bool, 10)
	}
	w.reach = func(a, b int) bool { return false }
	for i := range w.nodes {
		w.put(i, Mark{"former", Proven, true})
	}
	w.silent = map[int]bool{}
	for i := 1; i < len(w.nodes); i++ { // one reads the store, and writes its lease, before the others
		w.silent[i] = true
	}
	w.log, w.most = nil, 0
	w.offer("former")
	if w.run(90 * time.Second); len(w.log) != 0 {
		t.Errorf("the results were followed\n%v", w.log)
	}
	w.silent, w.changed = nil, true
	if w.run(10 * stagger); w.most > perTurn {
		t.Errorf("%d on trial at the same time\n%v", w.most, w.log)
	}
	w.expect(t, "former", 0, Refused)
}

// TestWithdrawnProof: the Mark of a node that died in a rollout that was then withdrawn or replaced is no proof in the next
// one, whether the configuration in force is proven or not.
func TestWithdrawnProof(t *testing.T) {
	for _, c := range []struct {
		name string
		mute map[int]bool
		next string // is offered in place of the first one
	}{{"settled", nil, ""}, {"unproven", map[int]bool{0: true, 1: true, 2: true, 3: true, 4: true}, ""}, {"replaced", nil, "third"}} {
		w := newWorld(5)
		w.mute = c.mute
		w.offer("usual")
		w.run(stagger)
		w.mute, w.reach, w.adopted, w.log = nil, func(a, b int) bool { return false }, make([]bool, 5), nil
		w.offer("wrong")
		w.run(time.Second)
		w.others = []Peer{{Name: "dead", Mark: Mark{"wrong", Proven, true}, Seen: w.now}}
		w.run(time.Second)
		w.offer(c.next)
		for _, r := range w.nodes {
			if c.next == "" {
				r.Withdraw(w.now)
			}
		}
		w.run(time.Second)
		if len(w.log) != 0 {
			t.Fatalf("%s: adopted before the hold is over\n%v", c.name, w.log)
		}
		w.offer("wrong")
		if w.run(stagger); len(w.log) != 0 {
			t.Errorf("%s: the proof of a former rollout was followed\n%v", c.name, w.log)
		}
		w.run(10 * stagger)
		w.expect(t, c.name, 0, Refused)
	}
}

// TestOfferedAgain: nodes that are Ready when another configuration is offered for a moment, or the former one is restored,
// take turns afterwards, too, also if the store gets the Marks of that time late.
func TestOfferedAgain(t *testing.T) {
	for _, c := range []struct {
		other   string // "": the former one
		blocked time.Duration
	}{{"third", 0}, {"third", stagger / 8}, {"third", stagger/4 + 20*time.Second}, {"", 0}, {"", stagger/4 + 20*time.Second}} {
		w := newWorld(20)
		w.reach = func(a, b int) bool { return false }
		w.without = map[int]bool{w.order("wrong")[10]: true} // so that the others wait when they are Ready
		w.offer("wrong")
		w.run(stagger/4 + 10*time.Second)
		w.offer(c.other)
		for _, r := range w.nodes {
			if c.other == "" {
				r.Withdraw(w.now)
			}
		}
		w.blocked = w.now.Add(c.blocked)
		w.run(time.Second)
		w.offer("wrong")
		if w.run(12 * stagger); w.most > perTurn || len(w.log) != 2*turns*perTurn {
			t.Errorf("%+v: %d were on trial at the same time\n%v", c, w.most, w.log)
		}
		w.expect(t, fmt.Sprint(c), 0, Refused)
	}
}

// TestFalseProof: a proof that appears during the rollout, and is false, makes no
// more nodes try than go on in one group, and not all of them.
func TestFalseProof(t *testing.T) {
	for _, proofs := range []int{1, 2} {
		w := newWorld(50)
		w.reach = func(a, b int) bool { return false }
		w.offer("wrong")
		w.run(time.Second)
		for i := range proofs {
			w.others = append(w.others, Peer{Name: fmt.Sprint("liar", i), Mark: Mark{"wrong", Proven, true}, Seen: w.now})
		}
		w.changed = true
		w.run(20 * stagger)
		w.expect(t, fmt.Sprint(proofs, " false proofs"), 0, Refused)
		if w.most > growth*proofs+perTurn {
			t.Errorf("%d nodes were on trial at the same time\n%v", w.most, w.log)
		}
	}
}

// TestGroups: nodes that became ready and died do not hold the others for ever.
func TestGroups(t *testing.T) {
	w := newWorld(20)
	order := w.order("new")
	w.offer("new")
	w.run(stagger/4 + 250*time.Millisecond) // all are ready, or nearly so
	for _, i := range order[2:10] {
		if !w.adopted[i] {
			w.nodes[i].state = Settled // it does nothing any more
		}
	}
	w.run(3 * stagger)
	for _, i := range order[10:] {
		if !w.adopted[i] || w.nodes[i].State() != Settled {
			t.Errorf("node %d is in state %d\n%v", i, w.nodes[i].State(), w.log)
		}
	}
}

// TestUnreachableNode checks that a node that gets no answer from the others
// with a proven configuration goes back, and the others do not.
func TestUnreachableNode(t *testing.T) {
	w := newWorld(10)
	last := w.order("new")[9]
	w.reach = func(a, b int) bool { return a != last && b != last }
	w.offer("new")
	if w.run(6 * stagger); w.count() != 9 || w.nodes[last].State() != Refused || w.nodes[last].Mark().Phase != Reverted {
		t.Errorf("%v", w.log)
	}
}

// TestFollower checks that a follower waits for another node's proof, and
// adopts the configuration even if the proof comes after all turns.
func TestFollower(t *testing.T) {
	r := Rollout{Stagger: stagger}
	now := time.Unix(1e9, 0)
	c := Cluster{Self: "w", Nodes: 2, Peers: []Peer{{Name: "a"}}, Answers: true, Published: true, Follower: true}
	r.Offer("new", now)
	for range 10 {
		if adopt, _ := r.Step(c, now); adopt {
			t.Error("it adopts the configuration without a proof")
		}
		now = now.Add(stagger)
	}
	if adopt, again := r.Step(c, now); adopt || again != 0 || r.State() != Refused || r.Mark() != (Mark{"new", Ready, true}) {
		t.Errorf("%v, again after %v, state %v, mark %v", adopt, again, r.State(), r.Mark())
	}
	c.Peers[0] = Peer{Name: "a", Mark: Mark{"other", Proven, true}, Seen: now}
	if adopt, again := r.Step(c, now); adopt || again != 0 {
		t.Errorf("for another configuration: %v, again after %v", adopt, again)
	}
	c.Peers[0].Mark.ID = "new"
	adopt, again := r.Step(c, now)
	if adopt || again <= 0 || again > perNode {
		t.Fatalf("%v, again after %v", adopt, again)
	}
	if adopt, _ = r.Step(c, now.Add(again)); !adopt || r.State() != Trying || r.Mark() != (Mark{"new", OnTrial, true}) {
		t.Errorf("%v, state %v, mark %v", adopt, r.State(), r.Mark())
	}
}

// TestFormerRelease: nodes with the former release publish no Ready. They try
// when their hold is over, and the others follow their proof.
func TestFormerRelease(t *testing.T) {
	r := Rollout{Stagger: stagger}
	now := time.Unix(1e9, 0)
	c := Cluster{Self: "n", Nodes: 3, Answers: true, Published: true, Peers: []Peer{{Name: "a"}, {Name: "b"}}}
	r.Offer("new", now)
	r.Step(c, now)
	now = now.Add(stagger / 4)
	for i := range c.Peers {
		c.Peers[i].Mark, c.Peers[i].Seen = Mark{"new", OnTrial, true}, now
	}
	if adopt, _ := r.Step(c, now); adopt {
		t.Error("it follows while they try")
	}
	c.Peers[0].Mark.Phase = Proven
	_, again := r.Step(c, now.Add(time.Second))
	if adopt, _ := r.Step(c, now.Add(time.Second+again)); !adopt || again > growth*perNode {
		t.Errorf("after the proof: %v, after %v", adopt, again)
	}
}
