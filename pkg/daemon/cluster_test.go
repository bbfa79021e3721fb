package daemon

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"flannel/backend"
	"flannel/pkg/daemon/rollout"
	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
	"flannel/subnet"
)

// tiedBackend has paths only if it was made for a certain underlay.
type tiedBackend struct {
	namedBackend
	fits  bool
	paths *int // how often Paths was called
}

func (b tiedBackend) Paths(l *subnet.Lease) ([]*dataplane.Path, error) {
	*b.paths++
	if !b.fits {
		return nil, errors.New("not on the underlay")
	}
	return []*dataplane.Path{{Dst: l.V4.Subnet, Via: l.V4.PublicIP, Device: "eth0", Encap: dataplane.Direct{}}}, nil
}

// newTied returns a daemon with the backend "one" among four peers, which was
// offered the backend "two" when its underlay did not fit, and then got one that
// does. The other result counts how often paths to a peer were made.
func newTied(t *testing.T) (a *adopting, paths *int) {
	fitting := netip.MustParseAddr("192.168.0.200")
	a, paths = newAdopting(t, 0), new(int)
	a.Parse = func(raw []byte) (subnet.Config, backend.Maker, []string, error) {
		c, _, _, err := parseText(raw)
		return c, func(n backend.Node) (backend.Backend, []string, error) {
			return tiedBackend{namedBackend{c.Backend}, n.Underlay.V4 == fitting, paths}, nil, nil
		}, nil, err
	}
	a.n.config, a.n.maker, a.n.backend = subnet.Config{}, nil, nil
	a.in.setConfig([]byte("one 10.5.0.0/16"))
	if err := a.prepare(t.Context(), a.n, a.in); err != nil {
		t.Fatal(err)
	}
	a.in.setConfig([]byte("two 10.5.0.0/16"))
	a.peers(4, "one", "")
	a.proven(4, "two")
	if err := a.reconfigured(t, false); err != nil {
		t.Fatal(err)
	}
	a.has("offered", "one", rollout.Waiting, true)
	u := a.Underlay.(*fixedUnderlay)
	u.link.V4, u.link.PublicV4 = fitting, fitting
	if err := a.reconfigured(t, true); err != nil {
		t.Fatal(err)
	}
	return a, paths
}

// takePart returns how many peers take part in the rollout.
func (a *adopting) takePart() int {
	set, seen, _ := a.in.marked()
	return len(a.cluster(a.newPass(), set, seen).Peers)
}

// Passes in which nothing has changed that matters for the rollout judge no peer
// again.
func TestPeersAreJudgedOnce(t *testing.T) {
	a, paths := newTied(t)
	for _, step := range []struct {
		name   string
		change func()
		again  bool
	}{
		{"the pass has judged them", func() {}, false},
		{"nothing", func() {}, false},
		{"a lease", func() { a.peers(4, "one", "") }, true},
		{"the same set once more", func() { a.in.setPeers(subnet.Set{Leases: a.in.set.Leases}) }, false},
		{"an address of this node", func() { a.n.host.addrs = []netip.Addr{netip.MustParseAddr("192.168.0.3")} }, true},
		{"the options of the offered configuration", func() {
			a.in.setConfig([]byte("two 10.5.0.0/16"))
			if err := a.followConfig(a.n, a.in.config); err != nil {
				t.Fatal(err)
			}
		}, true},
		{"nothing in the end", func() {}, false},
	} {
		step.change()
		before := *paths
		a.takePart()
		if again := *paths > before; again != step.again {
			t.Errorf("%s: judged again: %t, want %t", step.name, again, step.again)
		}
	}
}

// Peers are judged by the offered and the former configuration on the present
// underlay, not on that of the offer.
func TestPeersAreJudgedOnThePresentUnderlay(t *testing.T) {
	a, _ := newTied(t)
	if got := a.takePart(); got != 4 {
		t.Errorf("%d peers that have adopted the configuration are accepted, want 4", got)
	}
	a.peers(4, "one", "")
	if got := a.takePart(); got != 4 {
		t.Errorf("%d peers with the former configuration are accepted, want 4", got)
	}
}

// While a configuration waits, is unproven or refused, passes in which no lease has changed do not decode the marks again.
func TestMarksAreDecodedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const peers = 200
		a := newAdopting(t, peers)
		a.in.setConfig([]byte("two 10.5.0.0/16"))
		a.run(time.Second)
		a.peers(peers, "one", fmt.Sprintf(`{"VNI":1,"Offered":%q,"Answers":true}`, rollout.ID("two")))
		pass := func() {
			if err := a.reconfigured(t, false); err != nil {
				t.Fatal(err)
			}
		}
		pass()
		a.has("offered", "one", rollout.Waiting, true)
		if n := testing.AllocsPerRun(5, pass); n > peers {
			t.Errorf("a pass makes %v allocations", n)
		}
	})
}

// While a configuration is refused, changes of single peers do not have all of them judged each time. A proof is followed
// nevertheless.
func TestPeersAreJudgedSeldomWhenRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const peers = 200 // so that 200 ms are between two judgements
		a := newAdopting(t, peers)
		a.in.setConfig([]byte("two 10.5.0.0/16"))
		a.run(4 * adoptStagger)
		a.has("without an answer", "one", rollout.Refused, true)
		judged, last := 0, a.adoption.participants.found
		for i := range 20 {
			time.Sleep(50 * time.Millisecond)
			before := a.in.set.Leases
			set := subnet.Set{Leases: slices.Clone(before)}
			set.Leases[i] = new(*before[i])
			set.Changes = []reconcile.Change[subnet.Lease]{{Old: before[i], New: set.Leases[i]}}
			a.in.setPeers(set)
			if err := a.reconfigured(t, false); err != nil {
				t.Fatal(err)
			}
			if now := a.adoption.participants.found; !now.Equal(last) {
				judged, last = judged+1, now
			}
		}
		if judged < 1 || judged > 6 {
			t.Errorf("the peers were judged %d times in a second", judged)
		}
		a.proven(peers, "two")
		a.run(10 * time.Second)
		a.has("others have a proof", "two", rollout.Trying, true)
	})
}
