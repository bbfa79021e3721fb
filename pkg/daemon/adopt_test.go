package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/logtest"
	"flannel/pkg/rollout"
	"flannel/subnet"
)

// adopting is a daemon with the backend "one" among nine peers, and its loop's part that follows the configuration.
type adopting struct {
	*Daemon
	t   *testing.T
	n   *node
	in  *inbox
	log *logtest.Log
}

const adoptStagger = time.Minute

func newAdopting(t *testing.T, peers int) *adopting {
	d, _, log := newDaemon(t)
	d.Settings.ConfigStagger = adoptStagger
	d.Echo = func(context.Context, netip.Addr) error { return errors.New("silence") }
	a := &adopting{d, t, &node{}, newInbox(), log}
	a.in.setConfig([]byte("one 10.5.0.0/16"))
	if err := d.prepare(t.Context(), a.n, a.in); err != nil {
		t.Fatal(err)
	}
	a.n.lease = subnet.Lease{Name: "self", V4: subnet.Endpoint{Subnet: netip.MustParsePrefix("10.5.1.0/24")}}
	a.peers(peers, "")
	return a
}

func (a *adopting) peers(n int, mark string) {
	var set subnet.Set
	for i := range n {
		set.Leases = append(set.Leases, &subnet.Lease{Name: fmt.Sprint("peer", i), Backend: "two", V4: subnet.Endpoint{
			Subnet: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte(i + 2), 0}), 24), Data: []byte(mark)}})
	}
	a.in.setPeers(set)
}

// run lets d pass, with a pass whenever something calls for one, and returns how often the backend was another.
func (a *adopting) run(d time.Duration) (changes int) {
	a.t.Helper()
	was := a.n.backend
	for end := time.Now().Add(d); time.Now().Before(end); {
		select {
		case <-a.in.changed:
		case <-time.After(time.Until(end)):
		}
		if err := a.reconfigure(a.t.Context(), a.n, a.in); err != nil {
			a.t.Fatal(err)
		}
		a.n.lease = withMark(a.n.lease, a.adoption.rollout.Mark())
		if a.n.backend != was {
			was = a.n.backend
			changes++
		}
	}
	return changes
}

func (a *adopting) has(when, backend string, state rollout.State, pending bool) {
	a.t.Helper()
	if got := a.n.backend.(namedBackend).name; got != backend || a.adoption.rollout.State() != state || (a.n.pendingConfig != "") != pending {
		a.t.Errorf("%s: backend %s, state %v, pending %q; want %s, %v\n%s", when, got, a.adoption.rollout.State(), a.n.pendingConfig, backend, state, a.log)
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
		a.run(adoptStagger / 2)
		a.has("on trial", "two", rollout.Trying, true)
		a.in.setConfig([]byte("one 10.5.0.0/16"))
		a.run(time.Second)
		a.has("taken back while on trial", "one", rollout.Settled, false)

		a.in.setConfig([]byte("two 10.5.0.0/16"))
		a.run(2 * adoptStagger)
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
		a.run(adoptStagger / 2)
		a.has("another one", "three", rollout.Trying, true)
		a.in.setConfig([]byte("four 10.5.0.0/16"))
		a.run(time.Second)
		a.has("another one in the middle of a trial", "one", rollout.Waiting, true)
	})
}

func TestDisruptiveConfigurationIsProven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdopting(t, 9)
		var asked, answers atomic.Bool
		a.Echo = func(_ context.Context, addr netip.Addr) error {
			asked.Store(addr.IsValid())
			if answers.Load() && addr == netip.MustParseAddr("10.5.3.1") { // that of a bridge, see ask
				return nil
			}
			return errors.New("silence")
		}
		a.in.setConfig([]byte("two 10.5.0.0/16"))
		a.run(time.Second)
		a.peers(9, fmt.Sprintf(`{"VNI":1,"Adopted":%q}`, rollout.ID("two")))
		a.run(adoptStagger / 3)
		a.has("others have proven it", "two", rollout.Trying, true)
		if m := markOf(&a.n.lease); m != (rollout.Mark{ID: rollout.ID("two")}) || !asked.Load() {
			t.Errorf("it says %v of itself; asked a peer: %t", m, asked.Load())
		}
		answers.Store(true)
		a.run(2 * adoptStagger)
		a.has("a peer answers", "two", rollout.Settled, false)
		a.n.lease.V4.Data = nil
		a.n.lease = withMark(a.n.lease, a.adoption.rollout.Mark())
		if m := markOf(&a.n.lease); !m.Proven {
			t.Errorf("it says %v of itself", m)
		}
	})
}

// negotiating is a dataplane that knows when keys were negotiated with 10.5.3.0/24.
type negotiating struct {
	dataplane.Dataplane
	at atomic.Pointer[time.Time]
}

func (n *negotiating) Traffic() map[netip.Prefix]dataplane.Traffic {
	return map[netip.Prefix]dataplane.Traffic{netip.MustParsePrefix("10.5.3.0/24"): {Handshake: *n.at.Load()}}
}

// Where no address answers, keys prove a configuration, but not those of before.
func TestKeysProveAConfiguration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, tunnels := newAdopting(t, 9), &negotiating{}
		a.Dataplane = tunnels
		tunnels.at.Store(new(time.Now()))
		a.peers(9, fmt.Sprintf(`{"VNI":1,"Adopted":%q}`, rollout.ID(negotiates)))
		a.in.setConfig([]byte(negotiates + " 10.5.0.0/16"))
		a.run(adoptStagger / 2)
		a.has("with former keys", negotiates, rollout.Trying, true)
		if !strings.Contains(fmt.Sprint(*a.adoption.probeErr.Load()), "10.5.") {
			t.Errorf("the error is %v", a.adoption.probeErr.Load())
		}
		tunnels.at.Store(new(time.Now()))
		a.run(time.Second)
		a.has("with new keys", negotiates, rollout.Settled, false)
	})
}

// Peers that do not answer, however many and wherever they stand, do not keep the others from being asked.
func TestAsksEveryPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdopting(t, 20)
		a.Echo = func(_ context.Context, addr netip.Addr) error {
			if addr == netip.MustParseAddr("10.5.21.0") { // the last peer
				return nil
			}
			return errors.New("silence")
		}
		a.peers(20, fmt.Sprintf(`{"VNI":1,"Adopted":%q}`, rollout.ID("two")))
		a.in.setConfig([]byte("two 10.5.0.0/16"))
		a.run(2 * adoptStagger)
		a.has("the last peer answers", "two", rollout.Settled, false)
	})
}

// A former configuration that this node cannot go back to when a trial ends, because of its underlay, it goes back to
// as soon as it can.
func TestGoingBackFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdopting(t, 1)
		a.in.setConfig([]byte("two 10.5.0.0/16"))
		a.run(adoptStagger / 2)
		a.has("on trial", "two", rollout.Trying, true)
		usual := a.n.link
		a.n.link.V4 = netip.MustParseAddr("10.5.1.7") // inside this node's subnet
		time.Sleep(adoptStagger)
		for range 2 {
			if a.reconfigure(t.Context(), a.n, a.in) == nil {
				t.Error("there is no error")
			}
			a.has("it cannot go back", "two", rollout.Refused, true)
		}
		a.n.link = usual
		a.run(time.Millisecond)
		if a.reconfigure(t.Context(), a.n, a.in) != nil {
			t.Error("there is still an error")
		}
		a.has("it can", "one", rollout.Refused, true)
	})
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
		a.Settings.KeepConfig = true
		a.in.setConfig([]byte("one 10.5.0.0/16"))
		a.run(time.Second)
		a.has("not followed", "two", rollout.Settled, false)
		a.Settings.KeepConfig, a.Settings.ConfigStagger = false, 0
		a.peers(5, "")
		a.in.setConfig([]byte("none 10.5.0.0/16"))
		a.run(time.Second)
		a.has("without a stagger", "none", rollout.Settled, false)
		a.Settings.ConfigStagger = adoptStagger
		a.in.setConfig([]byte("three 10.5.0.0/16"))
		a.run(time.Second)
		a.has("there was nothing to lose", "three", rollout.Settled, false)
	})
}

// What is added to the backend data can be read again; other data, of whatever kind, holds no mark.
func TestMarks(t *testing.T) {
	for _, data := range []string{"", "null", "{}", `{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}`} {
		for _, m := range []rollout.Mark{{}, {ID: "ab"}, {ID: "ab", Proven: true}} {
			l := subnet.Lease{V4: subnet.Endpoint{Subnet: netip.MustParsePrefix("10.5.1.0/24"), Data: []byte(data)}}
			if l = withMark(l, m); markOf(&l) != m {
				t.Errorf("%s with %v became %s", data, m, l.V4.Data)
			}
		}
	}
	for _, data := range []string{`"Adopted"`, `{"Adopted":1}`, `Adopting`} {
		if m := markOf(&subnet.Lease{V4: subnet.Endpoint{Subnet: netip.MustParsePrefix("10.5.1.0/24"), Data: []byte(data)}}); m != (rollout.Mark{}) {
			t.Errorf("%s: %v", data, m)
		}
	}
}

// reportedState is a lease manager that records what is reported to it.
type reportedState struct {
	subnet.Manager
	advice, pendingConfig string
}

func (r *reportedState) Report(_ error, _ []subnet.Rejected, advice, pendingConfig string) {
	r.advice, r.pendingConfig = advice, pendingConfig
}

func TestPendingConfigurationIsReportedApartFromAdvice(t *testing.T) {
	a := newAdopting(t, 1)
	state := &reportedState{Manager: a.Manager}
	a.Manager, a.n.pendingConfig = state, "VNI 2 is pending"
	a.report(a.n, nil, 0)
	if state.advice != "" || state.pendingConfig != "VNI 2 is pending" {
		t.Errorf("advice %q, pending configuration %q", state.advice, state.pendingConfig)
	}
}
