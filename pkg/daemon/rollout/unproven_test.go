package rollout

import (
	"slices"
	"testing"
	"time"
)

// TestUnproven: where no answer is possible, nodes keep the configuration and do
// not claim a proof. Where one is possible, they need it.
func TestUnproven(t *testing.T) {
	all := func(n int, except ...int) map[int]bool {
		mute := map[int]bool{}
		for i := range n {
			mute[i] = !slices.Contains(except, i)
		}
		return mute
	}
	for _, except := range [][]int{{}, {3}} { // one that can answer has nobody who asks
		w := newWorld(20)
		w.mute = all(20, except...)
		w.offer("new")
		w.run(stagger)
		w.expect(t, "no answer is possible", 20, Unproven)
		for i, r := range w.nodes {
			if r.Mark().Phase != WithoutTest {
				t.Errorf("node %d has mark %v", i, r.Mark())
			}
		}
		w.nodes[3].Answered(w.now)
		if w.nodes[3].State() != Settled || w.nodes[3].Mark() != (Mark{"new", Proven, true}) {
			t.Errorf("with an answer it is in state %d", w.nodes[3].State())
		}
	}
	w := newWorld(20)
	w.mute = all(20, 3, 7)
	w.offer("new")
	w.run(stagger)
	for i, r := range w.nodes {
		if want := map[bool]State{true: Unproven, false: Settled}[w.mute[i]]; !w.adopted[i] || r.State() != want {
			t.Errorf("two prove it: node %d is in state %d, want %d", i, r.State(), want)
		}
	}
	w = newWorld(20)
	w.mute = all(20, 3, 7)
	w.reach = func(a, b int) bool { return false }
	w.offer("wrong")
	w.run(7 * stagger)
	w.expect(t, "two disprove it", 0, Refused)
	if len(w.log) != 4 {
		t.Errorf("%v", w.log)
	}
}

// TestOnlyRejectedPeers: a node whose peers are all rejected, perhaps only now,
// waits like others, and goes back without an answer. It is alone only without
// any lease, also if it has refused the configuration before.
func TestOnlyRejectedPeers(t *testing.T) {
	r := Rollout{Stagger: stagger}
	now := time.Unix(1e9, 0)
	c := Cluster{Self: "n", Nodes: 2, Answers: true, Published: true}
	r.Offer("new", now)
	for _, want := range []struct {
		after time.Duration
		adopt bool
		state State
	}{
		{0, false, Waiting},
		{stagger/4 + perNode, false, Waiting}, // Ready from now on
		{time.Second, true, Trying},
		{stagger, false, Refused},
		{9 * stagger, false, Refused},
	} {
		now = now.Add(want.after)
		if adopt, _ := r.Step(c, now); adopt != want.adopt || r.State() != want.state {
			t.Errorf("%v later: adopt %v, state %v; want %v, %v", want.after, adopt, r.State(), want.adopt, want.state)
		}
	}
	c.Nodes = 1
	if adopt, _ := r.Step(c, now); !adopt || r.State() != Settled {
		t.Errorf("alone: adopt %v, state %v", adopt, r.State())
	}
}

// TestUnprovenAgain: a configuration that was unproven still is when another one
// was offered and taken back, whatever became of that one.
func TestUnprovenAgain(t *testing.T) {
	for _, c := range []struct {
		name string
		wait time.Duration // until the other one is taken back
		want State         // then
	}{{"during the hold", time.Second, Waiting}, {"on trial", stagger / 2, Trying}, {"refused", 9 * stagger, Refused}} {
		w := newWorld(2)
		w.mute = map[int]bool{0: true, 1: true}
		w.offer("new")
		w.run(stagger)
		w.expect(t, "at first", 2, Unproven)
		w.mute, w.reach = nil, func(a, b int) bool { return false }
		w.offer("third")
		w.run(c.wait / 2)
		w.offer("other") // takes its place
		w.run(c.wait)
		for i, r := range w.nodes {
			if r.State() != c.want {
				t.Errorf("%s: node %d is in state %d, want %d\n%v", c.name, i, r.State(), c.want, w.log)
			}
			r.Withdraw(w.now)
			if r.State() != Unproven || r.Mark().ID != "new" || r.Mark().Phase != WithoutTest {
				t.Errorf("%s: node %d is in state %d with mark %v", c.name, i, r.State(), r.Mark())
			}
			r.Answered(w.now)
			if r.Withdraw(w.now); r.State() != Settled || r.Mark() != (Mark{"new", Proven, true}) {
				t.Errorf("%s, with an answer: node %d is in state %d with mark %v", c.name, i, r.State(), r.Mark())
			}
		}
	}
}
