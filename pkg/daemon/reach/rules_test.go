package reach

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"flannel/pkg/status"
	"flannel/subnet"
)

// A node sends at most one request a second, however many peers there are, and however
// many of them do not answer. A round takes a second for each peer.
func TestBudget(t *testing.T) {
	const peers = 10000
	w := newWorld(t, 1, false)
	h := w.nodes[0]
	var leases []*subnet.Lease
	for i := range peers {
		leases = append(leases, &subnet.Lease{Name: fmt.Sprint(i), Backend: "vxlan", V4: subnet.Endpoint{
			Subnet:   netip.PrefixFrom(netip.AddrFrom4([4]byte{11, byte(i >> 8), byte(i), 0}), 24),
			PublicIP: netip.AddrFrom4([4]byte{192, 169, byte(i >> 8), byte(i)})}})
	}
	n := w.network(h, Tunnels)
	n.Peers = leases
	h.mesh.Update(w.now, n)
	up := true
	asked := map[netip.Addr]int{}
	turns := func(count int) {
		for range count {
			w.now = w.now.Add(interval)
			r, due := h.mesh.Turn(w.now)
			if !due {
				t.Fatal("no request is due")
			}
			asked[r.to]++
			if up {
				h.mesh.Received(w.now, r.to, true, false, r.body)
			}
		}
	}
	turns(peers)
	if len(asked) != peers {
		t.Errorf("%d of %d peers were asked in a round", len(asked), peers)
	}
	if s := h.mesh.Summary(); s.Peers[status.Reachable] != peers || s.Sent != peers {
		t.Errorf("after a round: %+v", s)
	}
	up = false // all at once
	turns(60)
	if n := h.mesh.Summary().Peers[status.Unreachable]; n < 3 {
		t.Errorf("%d unreachable peers after a minute", n)
	}
	turns(600)
	if n := h.mesh.Summary().Peers[status.Unreachable]; n < 50 {
		t.Errorf("%d unreachable peers after ten minutes", n)
	}
	if waiting := len(h.mesh.waiting); waiting > 20 {
		t.Errorf("%d requests are remembered", waiting)
	}
	up = true
	turns(600)
	if n := h.mesh.Summary().Peers[status.Unreachable]; n > 10 {
		t.Errorf("%d unreachable peers ten minutes after the end of the outage", n)
	}
}

// What was lost while the daemon was paused is no outage, even if it happens again and
// again.
func TestPause(t *testing.T) {
	w := newWorld(t, 3, false)
	w.run(60)
	for range 20 {
		w.turn()
		for _, h := range w.nodes {
			h.received = nil // what was on the way
		}
		w.now = w.now.Add(time.Minute)
	}
	w.run(3)
	for at := range w.nodes {
		w.silent(at)
		w.is(at, (at+1)%3, status.Reachable)
	}
}

// Answers that wait in the socket of a daemon that was stopped count before anything is
// missed.
func TestLateAnswers(t *testing.T) {
	w := newWorld(t, 2, false)
	w.run(60)
	h := w.nodes[0]
	for range 30 { // slow, not paused
		r, due := h.mesh.Turn(w.now)
		if !due {
			t.Fatal("nothing to send")
		}
		w.now = w.now.Add(paused)
		h.mesh.Received(w.now, r.to, true, false, r.body)
	}
	w.silent(0)
	w.is(0, 1, status.Reachable)
}

// As long as this node is not up to date, or its underlay is down, nothing is said of
// the peers, and misses of that time count for nothing.
func TestOwnFault(t *testing.T) {
	for name, fault := range map[string]func(w *world, broken bool){
		"pass": func(w *world, broken bool) {
			n := w.network(w.nodes[0], Tunnels)
			n.Synced = !broken
			w.nodes[0].mesh.Update(w.now, n)
		},
		"link": func(w *world, broken bool) { w.nodes[0].mesh.SetLink(w.now, !broken) },
	} {
		w := newWorld(t, 3, false)
		w.run(60)
		w.lost = func(from, _ *host, _ bool, _ int) bool { return from == w.nodes[0] }
		w.run(3) // before it is noticed
		fault(w, true)
		w.run(120)
		w.is(0, 1, status.UnknownReach)
		w.silent(0)
		fault(w, false)
		w.run(3) // until packets really pass
		w.lost = nil
		w.run(30)
		w.is(0, 1, status.Reachable)
		w.silent(0)
		w.is(1, 0, status.Reachable)
		if t.Failed() {
			t.Fatal(name)
		}
	}
}

// A node that is not reachable from the start is found, but a new one has some time.
func TestNewPeer(t *testing.T) {
	w := newWorld(t, 2, false)
	w.nodes[1].off = true
	w.run(15)
	w.is(0, 1, status.UnknownReach)
	w.silent(0)
	w.run(30)
	w.is(0, 1, status.Unreachable)
}

// A peer with a new lease starts anew; one with a copy of its lease does not.
func TestNewLease(t *testing.T) {
	w := newWorld(t, 2, false)
	w.nodes[1].off = true
	w.run(60)
	w.is(0, 1, status.Unreachable)
	w.nodes[0].mesh.Changes(w.now)
	h, n := w.nodes[0], w.network(w.nodes[0], Tunnels)
	equal := w.nodes[1].lease
	n.Peers = []*subnet.Lease{&equal}
	h.mesh.Update(w.now, n)
	w.is(0, 1, status.Unreachable)
	moved := equal
	moved.V4.PublicIP = netip.MustParseAddr("192.168.7.7")
	n.Peers = []*subnet.Lease{&moved}
	h.mesh.Update(w.now, n)
	w.is(0, 1, status.UnknownReach)
	w.nodes[1].off = false
	w.run(10)
	w.is(0, 1, status.Reachable)
	if c := h.mesh.Changes(w.now); len(c) != 1 || c[0].Outage == 0 {
		t.Errorf("the end of the outage is not reported: %+v", c)
	}
	n.Peers = nil
	h.mesh.Update(w.now, n)
	w.run(60)
	if h.mesh.Reach("node1") != nil || len(h.mesh.order) > 0 || h.mesh.bySource.Len() > 0 || h.mesh.down.Len() > 0 {
		t.Errorf("a peer that has left is remembered")
	}
}

// Peers that are retained may be gone, and those of which the system refused an entry
// have their own alarm.
func TestNoAlarm(t *testing.T) {
	w := newWorld(t, 3, false)
	w.run(60)
	n := w.network(w.nodes[0], Tunnels)
	n.Retained = []*subnet.Retained{{Lease: &w.nodes[1].lease}}
	n.Refused = []subnet.Rejected{{Name: w.nodes[2].lease.Name}}
	w.nodes[0].mesh.Update(w.now, n)
	w.nodes[1].off, w.nodes[2].off = true, true
	w.run(60)
	w.silent(0)
	w.is(0, 1, status.Unreachable)
	if l := w.nodes[0].mesh.Lasting(w.now, time.Second); len(l) > 0 {
		t.Errorf("lasting: %v", l)
	}
	// Nor does the alert on the metric fire. The refused peer keeps the state that it had.
	if all := w.nodes[0].mesh.Summary().Peers; all[status.UnknownReach] != 1 || all[status.Reachable] != 1 {
		t.Errorf("in each state: %v", all)
	}
}

// An outage that began before the peer was retained, as of nodes that are switched off and then deleted, is not in the
// metric meanwhile. If the store was told of it before, it does not end, and otherwise the store is told when the peer is back.
func TestRetainedInOutage(t *testing.T) {
	w := newWorld(t, 4, false)
	w.run(60)
	h := w.nodes[0]
	off := func(at int) { // until it is logged
		t.Helper()
		w.nodes[at].off = true
		for range 60 {
			w.run(1)
			if c := h.mesh.Changes(w.now); len(c) > 0 {
				return
			}
		}
		t.Fatalf("node%d is off, and nothing is logged", at)
	}
	check := func(what string, unreachable int, lasting ...string) {
		t.Helper()
		w.silent(0)
		if n := h.mesh.Summary().Peers[status.Unreachable]; n != unreachable {
			t.Errorf("%s: %d unreachable peers, want %d", what, n, unreachable)
		}
		if l := h.mesh.Lasting(w.now, time.Minute); !slices.Equal(l, lasting) {
			t.Errorf("%s: lasting: %v, want %v", what, l, lasting)
		}
	}
	off(1)
	w.run(60)
	off(2)
	off(3)
	check("before", 3, "node1")
	n := w.network(h, Tunnels)
	for _, at := range []int{1, 2, 3} {
		n.Retained = append(n.Retained, &subnet.Retained{Lease: &w.nodes[at].lease})
	}
	h.mesh.Update(w.now, n)
	w.run(120)
	h.mesh.Update(w.now, n)
	check("retained", 0, "node1")
	n.Retained = n.Retained[:1] // node2 and node3 have their leases again
	h.mesh.Update(w.now, n)
	check("two are back", 2, "node1", "node2", "node3")
	w.nodes[2].off = false
	w.run(60)
	if c := h.mesh.Changes(w.now); len(c) != 1 || c[0].Peer != "node2" || c[0].Outage < 2*time.Minute {
		t.Errorf("at the end of an outage: %+v", c)
	}
	n.Peers, n.Retained = n.Peers[1:], nil // node1 is gone
	h.mesh.Update(w.now, n)
	check("one is gone", 1, "node3")
}

// A peer that became unreachable while it was retained, and whose lease is in the store again, is unreachable from then on.
func TestNoLongerRetained(t *testing.T) {
	w := newWorld(t, 3, false)
	w.run(60)
	n := w.network(w.nodes[0], Tunnels)
	n.Retained = []*subnet.Retained{{Lease: &w.nodes[1].lease}}
	w.nodes[0].mesh.Update(w.now, n)
	w.nodes[1].off = true
	w.run(60)
	w.silent(0)
	w.is(0, 1, status.Unreachable)
	n.Retained = nil
	w.nodes[0].mesh.Update(w.now, n)
	if c := w.nodes[0].mesh.Changes(w.now); len(c) != 1 || c[0].Peer != "node1" || c[0].Reach.State != status.Unreachable || c[0].Outage != 0 {
		t.Errorf("reports %+v", c)
	}
	w.run(60)
	w.silent(0)
	if l := w.nodes[0].mesh.Lasting(w.now, time.Minute); len(l) != 1 || l[0] != "node1" {
		t.Errorf("lasting: %v", l)
	}
}

// An outage lasts although a change of this node's network makes it probe all peers anew.
func TestLastingAfterChange(t *testing.T) {
	w := newWorld(t, 2, true)
	w.run(60)
	w.nodes[1].off = true
	w.run(60)
	h := w.nodes[0]
	h.mesh.Changes(w.now)
	w.run(61)
	n := w.network(h, Tunnels)
	n.MTU--
	h.mesh.Update(w.now, n)
	w.is(0, 1, status.UnknownReach)
	if l := h.mesh.Lasting(w.now, time.Minute); len(l) != 1 || l[0] != "node1" {
		t.Errorf("lasting: %v", l)
	}
}

// Nobody but the peer itself can speak for it.
func TestForgedMessages(t *testing.T) {
	w := newWorld(t, 3, false)
	w.run(60)
	w.nodes[1].off = true
	h, victim := w.nodes[0], w.nodes[1].lease.V4.Subnet
	forged := message{subnet: victim, heard: 0, token: 1}
	for range 60 {
		w.turn()
		pod := victim.Addr().Next().Next()
		h.mesh.Received(w.now, pod, false, false, forged.encode(0))                               // a pod
		h.mesh.Received(w.now, w.nodes[1].lease.V4.PublicIP, false, false, forged.encode(0))      // a host, not through the tunnel
		h.mesh.Received(w.now, w.nodes[2].lease.V4.Subnet.Addr(), false, false, forged.encode(0)) // another peer
		for token, s := range h.mesh.waiting {                                                    // which has seen a request
			reply := message{subnet: h.lease.V4.Subnet, heard: -1, token: token}
			if s.target.at.Subnet == victim {
				h.mesh.Received(w.now, w.nodes[2].lease.V4.Subnet.Addr(), true, false, reply.encode(0))
			}
		}
	}
	w.is(0, 1, status.Unreachable)
}

func FuzzMessage(f *testing.F) {
	f.Add(message{subnet: netip.MustParsePrefix("10.5.3.0/24"), heard: time.Second, token: 7}.encode(0))
	f.Add(message{subnet: netip.MustParsePrefix("fd05::/64"), heard: -1, token: 7}.encode(1400))
	f.Fuzz(func(t *testing.T, body []byte) {
		m, ok := decode(body)
		if !ok {
			return
		}
		again, ok := decode(m.encode(len(body)))
		if !ok || again != m || m.subnet != m.subnet.Masked() {
			t.Errorf("%+v became %+v", m, again)
		}
		w := newWorld(t, 2, true)
		w.nodes[0].mesh.Received(w.now, w.nodes[1].lease.V4.Subnet.Addr(), false, false, body)
		w.nodes[0].mesh.Received(w.now, w.nodes[1].lease.V4.Subnet.Addr(), true, false, body)
	})
}
