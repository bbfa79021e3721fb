package reach

import (
	"net/netip"
	"testing"
	"time"

	"flannel/pkg/status"
)

// bridged makes a world without tunnels, whose underlay passes packets with addresses of
// pods only where ways says so.
func bridged(t *testing.T, ways func(from, to *host) bool) *world {
	w := newWorld(t, 3, false)
	for _, h := range w.nodes {
		h.mesh.Update(w.now, w.network(h, Bridges))
	}
	w.passes = func(from, to *host, source, dst netip.Addr) bool {
		return !from.lease.V4.Subnet.Contains(source) && !to.lease.V4.Subnet.Contains(dst) || ways(from, to)
	}
	return w
}

// An underlay that drops packets with addresses of pods proves nothing by the answers of
// the nodes themselves.
func TestUnderlayProvesNothing(t *testing.T) {
	w := bridged(t, func(_, _ *host) bool { return false })
	w.run(300)
	for at := range w.nodes {
		w.is(at, (at+1)%3, status.Unproven)
		w.silent(at)
	}
}

// Only one direction passes packets of pods. That the peer hears this node at its public
// IP is no evidence for the pods' way.
func TestHeardOnTheUnderlayProvesNothing(t *testing.T) {
	w := bridged(t, func(from, _ *host) bool { return from.lease.Name == "node1" })
	w.run(300)
	w.is(0, 1, status.Unproven)
	w.is(2, 1, status.Unproven)
	for at := range w.nodes {
		w.silent(at)
	}
}

// A node that answers, but does not forward to its pods, is not reachable. Others find
// that if its daemon has stopped, too, and if it is flannel's.
func TestNotForwarding(t *testing.T) {
	for _, addressing := range []Addressing{Tunnels, Bridges} {
		w := newWorld(t, 4, addressing == Tunnels)
		for _, h := range w.nodes {
			h.mesh.Update(w.now, w.network(h, addressing))
		}
		w.run(120)
		w.silent(0)
		peer := w.nodes[2]
		peer.mesh = nil
		peer.blocked = true
		w.run(90)
		w.is(0, 2, status.NotForwarding)
		w.is(1, 2, status.NotForwarding)
		w.is(0, 1, status.Reachable)
		if c := w.nodes[0].mesh.Changes(w.now); len(c) != 1 || c[0].Reach.State != status.NotForwarding || c[0].Outage != 0 {
			t.Errorf("reports %+v", c)
		}
		w.run(60)
		if l := w.nodes[0].mesh.Lasting(w.now, time.Minute); len(l) != 1 || l[0] != "node2" {
			t.Errorf("lasting: %v", l)
		}
		peer.off = true
		w.run(40)
		w.is(0, 2, status.Unreachable)
		peer.off = false
		w.run(120)
		w.is(0, 2, status.NotForwarding)
		peer.blocked = false
		w.run(60)
		w.is(0, 2, status.Reachable)
	}
}

// A node says of itself that it does not forward packets from its pods, which its peers
// cannot measure.
func TestSaysThatItDoesNotForward(t *testing.T) {
	for _, addressing := range []Addressing{Tunnels, Bridges} {
		w := newWorld(t, 3, false)
		update := func(notForwarding bool) {
			for i, h := range w.nodes {
				n := w.network(h, addressing)
				n.NotForwarding = notForwarding && i == 2
				n.Synced = !n.NotForwarding
				h.mesh.Update(w.now, n)
			}
		}
		update(false)
		w.run(60)
		w.silent(0)
		update(true)
		w.run(20)
		w.is(0, 2, status.NotForwarding)
		w.is(2, 0, status.UnknownReach)
		w.is(0, 1, status.Reachable)
		w.run(300)
		w.is(0, 2, status.NotForwarding)
		update(false)
		w.run(20)
		w.is(0, 2, status.Reachable)
		w.is(2, 0, status.Reachable)
		if c := w.nodes[0].mesh.Changes(w.now); len(c) > 1 {
			t.Errorf("reports %+v", c)
		}
		// What a daemon said counts for a while only.
		update(true)
		w.run(20)
		w.is(0, 2, status.NotForwarding)
		w.nodes[2].mesh = nil
		w.run(120)
		w.is(0, 2, status.Reachable)
	}
}

// A node whose underlay is down has no states of peers to report. What it is told meanwhile, it
// reports afterwards.
func TestReportsWhatItWasTold(t *testing.T) {
	w := newWorld(t, 3, false)
	update := func(notForwarding bool) {
		n := w.network(w.nodes[2], Tunnels)
		n.NotForwarding = notForwarding
		w.nodes[2].mesh.Update(w.now, n)
	}
	w.run(60)
	w.silent(0)
	w.nodes[0].mesh.SetLink(w.now, false)
	update(true)
	w.run(20)
	if c := w.nodes[0].mesh.Changes(w.now); len(c) != 0 {
		t.Errorf("while the underlay is down it reports %+v", c)
	}
	w.nodes[0].mesh.SetLink(w.now, true)
	w.run(1)
	if c := w.nodes[0].mesh.Changes(w.now); len(c) != 1 || c[0].Peer != "node2" || c[0].Reach.State != status.NotForwarding {
		t.Errorf("afterwards it reports %+v", c)
	}
}

// A node that forwards again tells those first whom it has told that it does not, and the
// others keep their turn.
func TestForwardsAgain(t *testing.T) {
	w := newWorld(t, 60, false)
	peer := w.nodes[2]
	update := func(notForwarding bool) {
		n := w.network(peer, Tunnels)
		n.NotForwarding, n.Synced = notForwarding, !notForwarding
		peer.mesh.Update(w.now, n)
	}
	told := func() (count int) {
		for at := range w.nodes {
			if at != 2 && w.state(at, 2) == status.NotForwarding {
				count++
			}
		}
		return count
	}
	w.run(200)
	update(true)
	w.run(10)
	if n := told(); n < 5 {
		t.Fatalf("%d nodes know it, want those of 10 s", n)
	}
	update(false)
	w.run(20)
	if n := told(); n > 0 {
		t.Errorf("%d nodes call it not-forwarding after 20 s", n)
	}
	for range 100 { // as long as it comes and goes, all are asked, too
		update(true)
		w.run(2)
		update(false)
		w.run(4)
	}
	for _, target := range peer.mesh.order {
		if since := w.now.Sub(target.probed); since > 200*time.Second {
			t.Errorf("%s was not asked for %v", target.at.Subnet, since)
		}
	}
}

// A node that could not tell a peer that it forwards again tells that peer first the next time.
func TestTellsAgain(t *testing.T) {
	w := newWorld(t, 20, false)
	m := w.nodes[2].mesh
	update := func(notForwarding bool) {
		n := w.network(w.nodes[2], Tunnels)
		n.NotForwarding, n.Synced = notForwarding, !notForwarding
		m.Update(w.now, n)
	}
	told := func() (names []string) {
		for at, h := range w.nodes {
			if at != 2 && w.state(at, 2) == status.NotForwarding {
				names = append(names, h.lease.Name)
			}
		}
		return names
	}
	w.run(60)
	update(true)
	w.run(60)
	update(false)
	w.run(5)
	w.now = w.now.Add(interval)
	r, _ := m.Turn(w.now)
	m.SendFailed(r)
	w.run(13) // all others are asked, in this round or before
	if got := told(); len(got) != 1 || got[0] != w.owner(r.to).lease.Name {
		t.Fatalf("%v call it not-forwarding, want only the owner of %s", got, r.to)
	}
	update(true)
	update(false)
	w.run(1)
	if got := told(); len(got) > 0 {
		t.Errorf("%v call it not-forwarding after it has told them first", got)
	}
}

// Nothing is said about the forwarding of a node without pods, or whose firewall keeps
// the kernel's reports back.
func TestForwardingIsNotKnown(t *testing.T) {
	w := newWorld(t, 3, false)
	w.run(120)
	peer := w.nodes[2] // whose last pod goes, and with it the bridge and the route to it
	peer.mesh, peer.blocked = nil, true
	peer.answers = func(a netip.Addr) bool { return a == peer.lease.V4.Subnet.Addr() }
	w.run(600)
	w.is(0, 2, status.Reachable)
	w.silent(0)

	w = newWorld(t, 3, false)
	w.nodes[2].blocked = true
	w.run(600)
	w.is(0, 2, status.Reachable)
	w.silent(0)
}

// Loss is not taken for a node that does not forward.
func TestLossIsNoProof(t *testing.T) {
	w := newWorld(t, 4, false)
	w.lost = func(*host, *host, bool, int) bool { return w.rnd.IntN(20) == 0 }
	w.run(7200)
	for at := range w.nodes {
		for _, c := range w.nodes[at].mesh.Changes(w.now) {
			t.Errorf("node%d reports %+v", at, c)
		}
	}
}

// A report that the hop limit of an ordinary request has ended, such as from a loop of
// routes, is no answer: the outage begins, and lasts.
func TestLoopIsNoAnswer(t *testing.T) {
	w := newWorld(t, 2, false)
	h := w.nodes[0]
	loop := func(seconds int) {
		for range seconds {
			w.now = w.now.Add(interval)
			if r, due := h.mesh.Turn(w.now); due {
				h.mesh.Received(w.now, w.nodes[1].lease.V4.Subnet.Addr(), false, true, r.body)
			}
		}
	}
	loop(60)
	w.is(0, 1, status.Unreachable)
	if c := h.mesh.Changes(w.now); len(c) != 1 || c[0].Reach.State != status.Unreachable {
		t.Errorf("reports %+v", c)
	}
	loop(60)
	w.silent(0)
	if l := h.mesh.Lasting(w.now, time.Minute); len(l) != 1 || l[0] != "node1" {
		t.Errorf("lasting: %v", l)
	}
}
