package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"flannel/pkg/daemon/rollout"
	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
	"flannel/subnet"
)

func TestDisruptiveConfigurationIsProven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdopting(t, 9)
		var asked, answers atomic.Bool
		a.Echo = func(_ context.Context, from, to netip.Addr) error {
			if asked.Store(true); from != netip.MustParseAddr("10.5.1.0") {
				t.Errorf("asks from %v, which is not this node's tunnel device", from)
			}
			if answers.Load() && to == netip.MustParseAddr("10.5.3.1") { // that of a bridge, see requestsTo
				return nil
			}
			return errors.New("silence")
		}
		a.in.setConfig([]byte("two 10.5.0.0/16"))
		a.run(time.Second)
		a.proven(9, "two")
		a.run(adoptStagger / 3)
		a.has("others have proven it", "two", rollout.Trying, true)
		if m := markOf(&a.n.lease); m != (rollout.Mark{ID: rollout.ID("two"), Phase: rollout.OnTrial, Answers: true}) || !asked.Load() {
			t.Errorf("it says %v of itself; asked a peer: %t", m, asked.Load())
		}
		answers.Store(true)
		a.run(2 * adoptStagger)
		a.has("a peer answers", "two", rollout.Settled, false)
		if m := markOf(&a.n.lease); m.Phase != rollout.Proven {
			t.Errorf("it says %v of itself", m)
		}
		// Another trial of the same configuration needs an answer of its own.
		answers.Store(false)
		for _, c := range []string{"one", "two"} {
			a.n.config, a.n.maker, a.n.backend = subnet.Config{}, nil, nil
			a.in.setConfig([]byte("one 10.5.0.0/16"))
			if err := a.prepare(t.Context(), a.n, a.in); err != nil {
				t.Fatal(err)
			}
			a.peers(9, "one", "")
			if c == "two" {
				a.in.setConfig([]byte("two 10.5.0.0/16"))
				a.run(time.Second)
				a.proven(9, "two")
				a.run(adoptStagger / 3)
				a.has("again", "two", rollout.Trying, true)
			}
		}
	})
}

// What a dead node's lease has said all the time, or what a new lease says at first, is no proof.
func TestStaleProof(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, before := range []bool{true, false} {
			a := newAdopting(t, 0)
			if !before {
				a.peers(0, "", "")
			} else {
				a.in = newInbox()
			}
			a.peers(9, "two", fmt.Sprintf(`{"VNI":1,"Adopted":%q}`, rollout.ID("two")))
			a.in.setConfig([]byte("one 10.5.0.0/16"))
			a.run(time.Second)
			a.in.setConfig([]byte("two 10.5.0.0/16"))
			a.run(adoptStagger - time.Second)
			a.has("all that others say is old", "one", rollout.Waiting, true)
		}
	})
}

// A node that could not reach the store while the others proved a configuration, and has refused it, follows them two minutes
// after it reads their leases, if more than half of all nodes have a result. If it sees the others take part, it follows at once.
func TestMissedProof(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const wait = 2 * time.Minute
		for _, c := range []struct {
			when          string
			refused, seen bool
			results       int // of nine peers; the others were restarted, so that the former configuration rejects them
			follows       bool
		}{
			{"missed", true, false, 9, true},
			{"the other nodes were restarted", true, false, 5, false},
			{"seen after it was refused", true, true, 9, true},
			{"seen", false, true, 9, true},
		} {
			a := newAdopting(t, 9)
			a.Echo = func(context.Context, netip.Addr, netip.Addr) error { return nil }
			a.run(time.Second)
			if c.refused {
				a.in.setConfig([]byte("two 10.5.0.0/16"))
				a.run(10 * adoptStagger)
				a.has(c.when+", no mark has arrived", "one", rollout.Refused, true)
			}
			if c.seen {
				a.proven(9, "two")
			} else {
				a.peers(9, "two", "")
				all := a.in.set.Leases
				a.peers(c.results, "two", fmt.Sprintf(`{"VNI":1,"Adopted":%q}`, rollout.ID("two")))
				a.in.setPeers(subnet.Set{Leases: slices.Concat(a.in.set.Leases, all[c.results:])})
			}
			if !c.refused {
				a.in.setConfig([]byte("two 10.5.0.0/16"))
			}
			if !c.seen {
				a.run(wait - time.Second)
				a.has(c.when+", before", "one", rollout.Refused, true)
				reconcile.Notify(a.in.changed) // run begins with a pass
			}
			if a.run(2 * time.Second); c.follows {
				a.has(c.when, "two", rollout.Settled, false)
			} else {
				a.has(c.when, "one", rollout.Refused, true)
			}
		}
	})
}

// A result that was missed is no step before another one.
func TestMissedMarks(t *testing.T) {
	seen := markTimes{}
	lease := func(key string) *subnet.Lease {
		return &subnet.Lease{Name: "peer", V4: subnet.Endpoint{Subnet: netip.MustParsePrefix("10.5.3.0/24"), Data: []byte(key)}}
	}
	last := lease(`{"VNI":1}`)
	for _, step := range []struct {
		data   string
		missed bool
	}{
		{`{"Reverted":"new","Answers":true}`, true},
		{`{"Adopted":"new"}`, true},
		{`{"Adopting":"new"}`, false},
		{`{"Adopted":"new"}`, false},
		{`{"Adopted":"other"}`, true},
	} {
		next := lease(step.data)
		seen.observe(reconcile.Change[subnet.Lease]{Old: last, New: next}, time.Unix(1e9, 0))
		if got := seen["peer"]; got.seen.IsZero() || got.missed != step.missed {
			t.Errorf("%s: %+v, want missed %t", step.data, got, step.missed)
		}
		last = next
	}
}

// negotiating is a dataplane that knows when keys were negotiated with 10.5.3.0/24.
type negotiating struct {
	dataplane.Dataplane
	at atomic.Pointer[time.Time]
}

func (n *negotiating) Traffic() map[netip.Prefix]dataplane.TunnelReport {
	return map[netip.Prefix]dataplane.TunnelReport{netip.MustParsePrefix("10.5.3.0/24"): {Handshake: *n.at.Load()}}
}

// Without a tunnel device, only an answer from bridge to bridge proves a configuration. Keys do not: they are negotiated
// by another protocol.
func TestBridgesProveAConfiguration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, tunnels := newAdopting(t, 9), &negotiating{}
		a.Dataplane = tunnels
		tunnels.at.Store(new(time.Now()))
		a.n.host.addrs = []netip.Addr{netip.MustParseAddr("10.5.1.0"), netip.MustParseAddr("10.5.1.1"), a.n.host.link.V4}
		var answers atomic.Bool
		a.Echo = func(_ context.Context, from, to netip.Addr) error {
			if from != a.n.host.addrs[1] || to.As4()[3] != 1 {
				t.Errorf("asks from %v to %v, which are not both bridges", from, to)
			}
			if !answers.Load() {
				return errors.New("silence")
			}
			return nil
		}
		a.in.setConfig([]byte(negotiates + " 10.5.0.0/16"))
		a.run(time.Second)
		a.proven(9, negotiates)
		a.run(adoptStagger / 2)
		a.has("with former keys", negotiates, rollout.Trying, true)
		if last := *a.adoption.trial.err.Load(); !strings.Contains(last, "10.5.") || !strings.Contains(last, "keys") {
			t.Errorf("the error is %s", last)
		}
		tunnels.at.Store(new(time.Now().Add(time.Second)))
		a.run(2 * time.Second)
		a.has("with new keys", negotiates, rollout.Trying, true)
		answers.Store(true)
		a.run(time.Second)
		a.has("with an answer", negotiates, rollout.Settled, false)
	})
}

// Without a bridge there is no answer, and the state says so. An answer is still waited for.
func TestUnprovenConfiguration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdopting(t, 1)
		a.Echo = func(context.Context, netip.Addr, netip.Addr) error { return nil }
		a.in.setConfig([]byte(negotiates + " 10.5.0.0/16"))
		a.run(time.Second)
		a.peers(1, "one", fmt.Sprintf(`{"VNI":1,"Offered":%q,"Answers":false}`, rollout.ID(negotiates)))
		a.run(adoptStagger)
		a.has("no bridges", negotiates, rollout.Unproven, true)
		if m := markOf(&a.n.lease); m != (rollout.Mark{ID: rollout.ID(negotiates), Phase: rollout.WithoutTest}) {
			t.Errorf("it says %v of itself", m)
		}
		if a.log.Count("cause="+causeConfigNoEvidence) != 1 {
			t.Errorf("log:\n%s", a.log)
		}
		for _, back := range []string{negotiates + " 10.5.0.0/16", "garbage"} {
			a.in.setConfig([]byte("two 10.5.0.0/16"))
			a.run(time.Second)
			a.has("another one is offered", negotiates, rollout.Waiting, true)
			a.in.setConfig([]byte(back))
			a.run(time.Second)
			a.has("and taken back", negotiates, rollout.Unproven, true)
		}
		a.in.setConfig([]byte(negotiates + " 10.5.0.0/16"))
		a.n.host.addrs = []netip.Addr{netip.MustParseAddr("10.5.1.1")}
		a.peers(1, negotiates, fmt.Sprintf(`{"VNI":1,"Untested":%q,"Answers":true}`, rollout.ID(negotiates)))
		a.run(time.Minute)
		a.has("with bridges", negotiates, rollout.Settled, false)
	})
}
