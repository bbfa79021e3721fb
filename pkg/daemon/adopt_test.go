package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"flannel/internal/test/logtest"
	"flannel/pkg/daemon/rollout"
	"flannel/pkg/reconcile"
	"flannel/subnet"
)

// adopting is a daemon with the backend "one" among nine peers, and its loop's part that follows the configuration.
type adopting struct {
	*loop
	t   *testing.T
	n   *node
	log *logtest.Log
}

const adoptStagger = time.Minute

// untilTrial is more than the time until a node tries a configuration whose peers, which run flannel, do not say that they
// have received it.
const untilTrial = adoptStagger * 3 / 2

func newAdopting(t *testing.T, peers int) *adopting {
	d, _, log := newDaemon(t)
	d.Settings.ConfigStagger = adoptStagger
	d.Echo = func(context.Context, netip.Addr, netip.Addr) error { return errors.New("silence") }
	n := &node{}
	a := &adopting{d.newLoop(n, newInbox()), t, n, log}
	a.in.setConfig([]byte("one 10.5.0.0/16"))
	if err := d.prepare(t.Context(), a.n, a.in); err != nil {
		t.Fatal(err)
	}
	a.n.lease = subnet.Lease{Name: "self", V4: subnet.Endpoint{Subnet: netip.MustParsePrefix("10.5.1.0/24"), PublicIP: a.n.host.link.PublicV4}}
	a.in.published = new(a.n.lease) // it has joined
	a.peers(peers, "one", "")
	return a
}

// peers has the store have n peers that publish a backend and data.
func (a *adopting) peers(n int, backend, data string) {
	var set subnet.Set
	for i := range n {
		l := &subnet.Lease{Name: fmt.Sprint("peer", i), Backend: backend, V4: subnet.Endpoint{
			Subnet:   netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte(i + 2), 0}), 24),
			PublicIP: netip.AddrFrom4([4]byte{192, 168, 0, byte(i + 2)}), Data: []byte(data)}}
		c := reconcile.Change[subnet.Lease]{New: l}
		if before := a.in.set.Leases; i < len(before) {
			c.Old = before[i]
		}
		set.Leases, set.Changes = append(set.Leases, l), append(set.Changes, c)
	}
	a.in.setPeers(set)
}

// proven has all peers adopt a configuration, one after the other, with a proof.
func (a *adopting) proven(n int, backend string) {
	a.peers(n, backend, fmt.Sprintf(`{"VNI":1,"Adopting":%q}`, rollout.ID(backend)))
	a.peers(n, backend, fmt.Sprintf(`{"VNI":1,"Adopted":%q}`, rollout.ID(backend)))
}

// run lets d pass, with a pass whenever something calls for one, and returns how often the backend was another.
func (a *adopting) run(d time.Duration) (changes int) {
	a.t.Helper()
	was, due := a.n.backend, time.Time{}
	for end := time.Now().Add(d); time.Now().Before(end); {
		if due.IsZero() || due.After(end) {
			due = end
		}
		reconcile.Wait(a.t.Context(), due, a.in.changed)
		p := a.newPass()
		if err := a.only(a.t, p, partConfig); err != nil {
			a.t.Fatal(err)
		}
		due = p.due
		before := a.n.lease
		a.n.lease.V4.Data = nil
		a.n.lease = withMark(a.n.lease, a.adoption.rollout.Mark())
		if !a.n.lease.Equal(&before) { // published at once
			a.in.published = new(a.n.lease)
			reconcile.Notify(a.in.changed)
		}
		p.set = a.in.set
		_ = a.only(a.t, p, "trial")
		if a.n.backend != was {
			was = a.n.backend
			changes++
		}
	}
	return changes
}

func (a *adopting) has(when, backend string, state rollout.State, pending bool) {
	a.t.Helper()
	reason, _ := a.adoption.pendingReason()
	if got := a.n.backend.Wire().Name; got != backend || a.adoption.rollout.State() != state || (reason != "") != pending {
		a.t.Errorf("%s: backend %s, state %v, pending %q; want %s, %v\n%s", when, got, a.adoption.rollout.State(), reason, backend, state, a.log)
	}
}

func TestDisruptiveConfigurationIsTried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdopting(t, 1) // of two nodes, both are among the first
		a.in.setConfig([]byte("two 10.5.0.0/16"))
		a.run(adoptStagger/4 - time.Second)
		a.has("before its turn", "one", rollout.Waiting, true)
		a.in.setConfig([]byte("one 10.5.0.0/16"))
		if a.run(2*adoptStagger) != 0 {
			t.Error("it was adopted after it was taken back")
		}
		a.has("taken back", "one", rollout.Settled, false)

		a.in.setConfig([]byte("two 10.5.0.0/16"))
		a.run(untilTrial)
		a.has("on trial", "two", rollout.Trying, true)
		a.in.setConfig([]byte("one 10.5.0.0/16"))
		a.run(time.Second)
		a.has("taken back while on trial", "one", rollout.Settled, false)

		a.in.setConfig([]byte("two 10.5.0.0/16"))
		a.run(untilTrial + adoptStagger)
		a.has("without an answer", "one", rollout.Refused, true)
		a.in.setConfig([]byte("none 10.5.0.0/16")) // leads to nobody
		a.run(2 * adoptStagger)
		if len(a.log.With("cause="+causeConfigRefused).Naming("error", "none")) == 0 {
			t.Errorf("log:\n%s", a.log)
		}
		for i, refused := range []string{"none 10.5.0.0/16", "garbage"} { // the watch may skip what was there in between
			a.in.setConfig(fmt.Appendf(nil, "six%d 10.5.0.0/16", i))
			a.run(time.Second)
			a.in.setConfig([]byte(refused))
			a.run(2 * adoptStagger)
			a.has("refused while another one waited", "one", rollout.Settled, true)
		}
		a.in.setConfig([]byte("three 10.5.0.0/16"))
		a.run(untilTrial)
		a.has("another one", "three", rollout.Trying, true)
		a.in.setConfig([]byte("four 10.5.0.0/16"))
		a.run(time.Second)
		a.has("another one in the middle of a trial", "one", rollout.Waiting, true)
	})
}

// Junk takes no turns, and nobody waits for it: neither rejected leases nor such as the store has lost.
func TestJunkTakesNoTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdopting(t, 1)
		id := rollout.ID("two")
		for _, data := range []string{"", fmt.Sprintf(`{"VNI":1,"Offered":%q,"Answers":true}`, id)} {
			before := a.in.set.Leases
			set := subnet.Set{Leases: []*subnet.Lease{new(*before[0])}}
			set.Leases[0].V4.Data = []byte(data)
			for i := range 60 {
				junk := new(*before[0])
				junk.Name, junk.V4.Data = fmt.Sprint("junk", i), []byte(data)
				junk.V4.Subnet = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i + 100), 0, 0}), 16)
				set.Leases = append(set.Leases, junk)
			}
			for i, l := range set.Leases {
				c := reconcile.Change[subnet.Lease]{New: l}
				if i < len(before) {
					c.Old = before[i]
				}
				set.Changes = append(set.Changes, c)
			}
			a.in.setPeers(set)
			if data == "" {
				a.in.setConfig([]byte("two 10.5.0.0/16"))
				a.run(adoptStagger/4 - time.Second)
			}
		}
		a.run(2 * time.Second)
		a.has("among junk", "two", rollout.Trying, true)
	})
}

// Peers that do not answer, however many and wherever they stand, do not keep the others from being asked.
func TestAsksEveryPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdopting(t, 20)
		a.Echo = func(_ context.Context, _, addr netip.Addr) error {
			if addr == netip.MustParseAddr("10.5.21.0") { // the last peer
				return nil
			}
			return errors.New("silence")
		}
		a.in.setConfig([]byte("two 10.5.0.0/16"))
		a.run(time.Second)
		a.proven(20, "two")
		a.run(2 * adoptStagger)
		a.has("the last peer answers", "two", rollout.Settled, false)
	})
}

// cannotGoBack returns a node whose trial has ended without an answer, and which cannot go back to the former configuration,
// because of its underlay, until mend is called.
func cannotGoBack(t *testing.T) (a *adopting, mend func()) {
	t.Helper()
	a = newAdopting(t, 1)
	a.in.setConfig([]byte("two 10.5.0.0/16"))
	a.run(untilTrial)
	a.has("on trial", "two", rollout.Trying, true)
	usual := a.n.host.link
	a.n.host.link.V4 = netip.MustParseAddr("10.5.1.7") // inside this node's subnet
	time.Sleep(adoptStagger)
	for range 2 {
		if a.reconfigured(t, false) == nil {
			t.Error("there is no error")
		}
		a.has("it cannot go back", "two", rollout.Refused, true)
	}
	return a, func() { a.n.host.link = usual }
}

// A node that cannot go back when a trial ends goes back as soon as it can.
func TestGoingBackFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, mend := cannotGoBack(t)
		mend()
		a.run(time.Millisecond)
		if a.reconfigured(t, false) != nil {
			t.Error("there is still an error")
		}
		a.has("it can", "one", rollout.Refused, true)
	})
}

// A node that cannot go back, and tries the configuration again because another node has proven it, goes back to the former
// one when that trial ends.
func TestFollowingInsteadOfGoingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, mend := cannotGoBack(t)
		a.proven(1, "two")
		for range 2 { // the first one sees the proof
			_ = a.reconfigured(t, false)
			time.Sleep(time.Second)
		}
		a.has("it follows", "two", rollout.Trying, true)
		mend()
		a.run(2 * adoptStagger)
		a.has("without an answer", "one", rollout.Refused, true)
	})
}

// A configuration that the last node cannot adopt, because its underlay has changed since the offer, stays pending until the
// node can.
func TestAdoptingAloneFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdopting(t, 1)
		a.in.setConfig([]byte("two 10.5.0.0/16"))
		a.run(time.Second)
		usual := a.n.host.link
		a.n.host.link.V4 = netip.MustParseAddr("10.5.1.7") // inside this node's subnet
		a.peers(0, "one", "")
		for range 2 {
			p := a.newPass()
			if a.only(t, p, partConfig) == nil || !p.due.IsZero() {
				t.Errorf("there is no error, or a pass is due before the retry, at %v", p.due)
			}
			a.has("it cannot adopt it", "one", rollout.Waiting, true)
		}
		a.n.host.link = usual
		a.run(time.Second)
		a.has("it can", "two", rollout.Settled, false)
	})
}

// A trial whose beginning or end fails, because of the underlay, ends when the store has the former configuration again.
func TestTakenBackAfterFailure(t *testing.T) {
	for name, begin := range map[string]bool{"the beginning fails": true, "the end fails": false} {
		synctest.Test(t, func(t *testing.T) {
			a := newAdopting(t, 1)
			a.in.setConfig([]byte("two 10.5.0.0/16"))
			a.run(adoptStagger)
			usual := a.n.host.link
			wait, inForce, state := untilTrial-adoptStagger, "one", rollout.Trying
			if !begin {
				a.run(untilTrial - adoptStagger)
				a.has("on trial", "two", rollout.Trying, true)
				wait, inForce, state = adoptStagger, "two", rollout.Refused
			}
			a.n.host.link.V4 = netip.MustParseAddr("10.5.1.7") // inside this node's subnet
			for range 10 {
				time.Sleep(wait / 10)
				_ = a.reconfigured(t, false) // its error is the subject
			}
			for a.adoption.rollout.State() != state {
				time.Sleep(time.Second)
				_ = a.reconfigured(t, false)
			}
			a.has(name, inForce, state, true)
			a.n.host.link = usual
			a.in.setConfig([]byte("one 10.5.0.0/16"))
			a.run(4 * adoptStagger)
			a.has(name+", and the former one is back", "one", rollout.Settled, false)
			if a.log.Count("cause="+causeConfigTrial) != map[bool]int{true: 0, false: 1}[begin] {
				t.Errorf("%s:\n%s", name, a.log)
			}
		})
	}
}

// Each configuration that waits is announced once, also one that takes the place of another.
func TestDisruptiveConfigurationIsAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdopting(t, 1)
		for _, offered := range []string{"two", "three", "three", "four"} {
			a.in.setConfig([]byte(offered + " 10.5.0.0/16"))
			a.run(time.Second)
			a.has(offered, "one", rollout.Waiting, true)
		}
		for _, to := range []string{"two", "three", "four"} {
			if a.log.Count("to="+to) != 1 {
				t.Errorf("%s is not announced once:\n%s", to, a.log)
			}
		}
	})
}

func TestConfigurationWithoutNeighbours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdopting(t, 0)
		a.in.setConfig([]byte("two 10.5.0.0/16"))
		a.run(time.Second)
		a.has("alone", "two", rollout.Settled, false)
		a.Settings.ConfigStagger = 0
		a.peers(5, "two", "")
		a.in.setConfig([]byte("none 10.5.0.0/16"))
		a.run(time.Second)
		a.has("without a stagger", "none", rollout.Settled, false)
		a.Settings.ConfigStagger = adoptStagger
		a.in.setConfig([]byte("three 10.5.0.0/16"))
		a.run(time.Second)
		a.has("there was nothing to lose", "three", rollout.Settled, false)
	})
}

// With --config-follow=false, another configuration waits until the node joins again. It is refused only while it is invalid.
func TestConfigurationIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdopting(t, 1)
		a.Manager = &movingManager{subnets: []netip.Prefix{netip.MustParsePrefix("10.5.7.0/24")}}
		a.Settings.SubnetFile, a.Settings.KeepConfig = t.TempDir()+"/subnet.env", true
		a.in.setConfig([]byte(`"one 10.5.0.0/16"`))
		if err := a.prepare(t.Context(), a.n, a.in); err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct {
			config           string
			pending, refused bool
		}{
			{"\"one 10.5.0.0/16\"\n", false, false}, // the same value, another text
			{`"two 10.5.0.0/16"`, true, false},
			{"garbage", true, true},
			{`"three 10.5.0.0/16"`, true, false},
			{`"one 10.5.0.0/16"`, false, false},
			{`"two 10.5.0.0/16"`, true, false},
		} {
			a.in.setConfig([]byte(step.config))
			a.run(2 * adoptStagger)
			a.has(step.config, "one", rollout.Settled, step.pending)
			if reason, refused := a.adoption.pendingReason(); refused != step.refused {
				t.Errorf("%s: refused is %v: %s", step.config, refused, reason)
			}
		}
		if a.log.Count("cause="+causeConfigKept) != 4 {
			t.Errorf("it does not log once that each other configuration is kept:\n%s", a.log)
		}
		a.in.reset()
		a.n = a.join(t.Context(), a.in)
		a.has("joined again", "two", rollout.Settled, false)
	})
}

// What is added to the backend data can be read again; other data, of whatever kind, holds no mark.
func TestMarks(t *testing.T) {
	for _, data := range []string{"", "null", "{}", `{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}`} {
		for _, m := range []rollout.Mark{{}, {ID: "ab", Phase: rollout.Ready}, {ID: "ab", Phase: rollout.OnTrial, Answers: true},
			{ID: "ab", Phase: rollout.Proven, Answers: true}, {ID: "ab", Phase: rollout.WithoutTest}, {ID: "ab", Phase: rollout.Reverted, Answers: true}} {
			l := subnet.Lease{V4: subnet.Endpoint{Subnet: netip.MustParsePrefix("10.5.1.0/24"), Data: []byte(data)}}
			if l = withMark(l, m); markOf(&l) != m {
				t.Errorf("%s with %v became %s", data, m, l.V4.Data)
			}
		}
	}
	for data, want := range map[string]rollout.Mark{ // what the former release publishes
		`{"VNI":1,"Adopting":"ab"}`: {ID: "ab", Phase: rollout.OnTrial, Answers: true},
		`{"VNI":1,"Adopted":"ab"}`:  {ID: "ab", Phase: rollout.Proven, Answers: true},
	} {
		if m := markOf(&subnet.Lease{V4: subnet.Endpoint{Subnet: netip.MustParsePrefix("10.5.1.0/24"), Data: []byte(data)}}); m != want {
			t.Errorf("%s: %v", data, m)
		}
	}
	for _, data := range []string{`"Adopted"`, `{"Adopted":1}`, `Adopting`, `{"Answers":true}`} {
		if m := markOf(&subnet.Lease{V4: subnet.Endpoint{Subnet: netip.MustParsePrefix("10.5.1.0/24"), Data: []byte(data)}}); m != (rollout.Mark{}) {
			t.Errorf("%s: %v", data, m)
		}
	}
}

// reportedState is a lease manager that records what is reported to it.
type reportedState struct {
	plainManager
	last subnet.Report
}

func (r *reportedState) Report(report subnet.Report) { r.last = report }

func TestPendingConfigurationIsReportedApartFromAdvice(t *testing.T) {
	a := newAdopting(t, 1)
	state := &reportedState{}
	a.Manager, a.adoption.invalid = state, "VNI 2 is pending"
	a.report(a.newPass())
	if state.last.Advice != "" || state.last.PendingConfig != "VNI 2 is pending" {
		t.Errorf("advice %q, pending configuration %q", state.last.Advice, state.last.PendingConfig)
	}
}
