package reach

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"flannel/pkg/status"
	"flannel/subnet"
)

// world is a cluster of nodes whose packets take no time, in virtual time.
type world struct {
	t     *testing.T
	now   moment
	nodes []*host
	rnd   *rand.Rand
	sent  map[string]int // requests, by name of the sender
	// lost reports whether a packet gets lost; nil: none does.
	lost func(from, to *host, answer bool, size int) bool
	// passes reports whether the underlay passes a packet; nil: it does.
	passes func(from, to *host, source, dst netip.Addr) bool
}

// host is a node. Those without a mesh are flannel's.
type host struct {
	lease    subnet.Lease
	mesh     *mesh
	answers  func(netip.Addr) bool // nil: all its addresses
	blocked  bool                  // does not forward what arrives for pods
	off      bool
	stopped  bool // the daemon
	received []packet
}

type packet struct {
	from            netip.Addr
	answer, expired bool
	body            []byte
}

const tunnelMTU = 1450

func newWorld(t *testing.T, nodes int, dual bool) *world {
	w := &world{t: t, now: 1, rnd: rand.New(rand.NewPCG(1, 2)), sent: map[string]int{}}
	for i := range nodes {
		h := &host{lease: subnet.Lease{Name: fmt.Sprintf("node%d", i), Backend: "vxlan", V4: subnet.Endpoint{
			Subnet:   netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24),
			PublicIP: netip.AddrFrom4([4]byte{192, 168, byte(i >> 8), byte(i)}), Data: json.RawMessage(`{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}`)}}}
		if dual {
			base := netip.MustParseAddr("fd00::").As16()
			base[6], base[7] = byte(i>>8), byte(i)
			public := base
			public[1], public[15] = 1, 1
			h.lease.V6 = subnet.Endpoint{Subnet: netip.PrefixFrom(netip.AddrFrom16(base), 64), PublicIP: netip.AddrFrom16(public)}
		}
		h.mesh = newMesh(w.rnd.IntN, w.rnd.Uint64)
		w.nodes = append(w.nodes, h)
	}
	for _, h := range w.nodes {
		h.mesh.Update(w.now, w.network(h, Tunnels))
	}
	return w
}

// network is what the daemon of a node knows.
func (w *world) network(h *host, a Addressing) Network {
	n := Network{Local: h.lease, Addressing: a, MTU: tunnelMTU, LinkIndex: 1, Synced: true, Hops: 1}
	for _, other := range w.nodes {
		if other != h {
			n.Peers = append(n.Peers, &other.lease)
		}
	}
	return n
}

func (w *world) owner(a netip.Addr) *host {
	for _, h := range w.nodes {
		for _, e := range h.lease.Endpoints() {
			if e.Subnet.Contains(a) || e.PublicIP == a {
				return h
			}
		}
	}
	return nil
}

// deliver passes a packet to a host, which answers a request.
func (w *world) deliver(from *host, source netip.Addr, r request) {
	to, body := r.to, r.body
	h := w.owner(to)
	if h == nil || h.off || w.passes != nil && !w.passes(from, h, source, to) || w.lost != nil && w.lost(from, h, false, len(body)) {
		return
	}
	answer := packet{from: to, answer: true, body: body}
	switch {
	case r.hops > 0 && h.blocked:
		return
	case r.hops > 0:
		answer = packet{from: h.lease.V4.PublicIP, expired: true, body: body}
		if to.Is6() {
			answer.from = h.lease.V6.PublicIP
		}
	case h.answers != nil && !h.answers(to):
		return
	default:
		h.received = append(h.received, packet{from: source, body: body})
	}
	if (w.lost == nil || !w.lost(h, from, true, len(body))) && (w.passes == nil || w.passes(h, from, answer.from, source)) {
		from.received = append(from.received, answer)
	}
}

// turn is one second.
func (w *world) turn() {
	w.now = w.now.Add(interval)
	for _, h := range w.nodes {
		if h.mesh == nil || h.stopped || h.off {
			continue
		}
		w.drain(h)
		if r, due := h.mesh.Turn(w.now); due {
			w.sent[h.lease.Name]++
			source := r.from
			if !source.IsValid() {
				source = h.lease.V4.PublicIP
			}
			if h.answers != nil && !h.answers(source) { // it does not exist
				h.mesh.SendFailed(r)
				continue
			}
			w.deliver(h, source, r)
		}
		w.drain(h)
	}
}

func (w *world) drain(h *host) {
	for _, p := range h.received {
		h.mesh.Received(w.now, p.from, p.answer, p.expired, p.body)
	}
	h.received = nil
}

func (w *world) run(seconds int) {
	for range seconds {
		w.turn()
	}
}

// state is that of a peer at a node.
func (w *world) state(at, of int) status.ReachState {
	w.t.Helper()
	r := w.nodes[at].mesh.Reach(w.nodes[of].lease.Name)
	if r == nil {
		w.t.Fatalf("node%d does not probe node%d", at, of)
	}
	return r.State
}

func (w *world) is(at, of int, want status.ReachState) {
	w.t.Helper()
	if got := w.state(at, of); got != want {
		w.t.Errorf("node%d at node%d is %s, want %s: %+v", of, at, got, want, *w.nodes[at].mesh.Reach(w.nodes[of].lease.Name))
	}
}

// silent checks that a node has no changes to report.
func (w *world) silent(at int) {
	w.t.Helper()
	if c := w.nodes[at].mesh.Changes(w.now); len(c) > 0 {
		w.t.Errorf("node%d reports %+v", at, c)
	}
}

func TestOutage(t *testing.T) {
	for _, dual := range []bool{false, true} {
		w := newWorld(t, 4, dual)
		w.run(60)
		for at := range w.nodes {
			for of := range w.nodes {
				if at != of {
					w.is(at, of, status.Reachable)
				}
			}
			w.silent(at)
		}
		w.nodes[3].off = true
		w.run(30)
		for at := range 3 {
			w.is(at, 3, status.Unreachable)
			w.is(at, (at+1)%3, status.Reachable)
			if c := w.nodes[at].mesh.Changes(w.now); len(c) != 1 || c[0].Peer != "node3" || c[0].Outage != 0 {
				t.Errorf("node%d reports %+v", at, c)
			}
			if l := w.nodes[at].mesh.Lasting(w.now, time.Minute); len(l) > 0 {
				t.Errorf("lasting already: %v", l)
			}
		}
		w.run(60)
		if l := w.nodes[0].mesh.Lasting(w.now, time.Minute); len(l) != 1 || l[0] != "node3" {
			t.Errorf("lasting: %v", l)
		}
		w.silent(0)
		w.nodes[3].off = false
		w.run(11 * 2) // a family each
		for at := range 3 {
			w.is(at, 3, status.Reachable)
			if c := w.nodes[at].mesh.Changes(w.now); len(c) != 1 || c[0].Outage < time.Minute {
				t.Errorf("node%d reports %+v", at, c)
			}
		}
	}
}

func TestLossIsNoOutage(t *testing.T) {
	w := newWorld(t, 4, true)
	w.lost = func(*host, *host, bool, int) bool { return w.rnd.IntN(10) == 0 } // a fifth of the answers is missing
	w.run(3600)
	if c := w.nodes[0].mesh.Summary(); c.Answered < c.Sent/2 || c.Answered > c.Sent*9/10 {
		t.Errorf("the test loses none, or too many: %+v", c)
	}
	for at := range w.nodes {
		for _, c := range w.nodes[at].mesh.Changes(w.now) {
			t.Errorf("node%d reports %+v", at, c)
		}
	}
}

// After an outage, the first packet may be a request of the peer. That does not make it one-way: nothing that was sent
// since then is unanswered.
func TestHeardAfterOutage(t *testing.T) {
	for after := range 40 { // so that the outage ends at different times after the last request
		w := newWorld(t, 3+after/10, false)
		w.run(60)
		w.lost = func(from, to *host, _ bool, _ int) bool { return from == w.nodes[0] || to == w.nodes[0] }
		w.run(60 + after%10)
		w.is(0, 1, status.Unreachable)
		w.is(1, 0, status.Unreachable)
		w.lost = nil
		for range 30 {
			w.turn()
			for _, h := range w.nodes {
				for _, c := range h.mesh.Changes(w.now) {
					if c.Reach.State == status.OneWay {
						t.Errorf("%d: %s reports %+v", after, h.lease.Name, c)
					}
				}
			}
		}
		w.is(0, 1, status.Reachable)
		w.is(1, 0, status.Reachable)
	}
}

// Of many peers that are down, one that is heard again is asked before all others.
func TestHeardIsAskedFirst(t *testing.T) {
	const peers = 200
	w := newWorld(t, peers+1, false)
	for _, h := range w.nodes[1:] {
		h.off = true
	}
	h, back := w.nodes[0], w.nodes[peers/2].lease.V4.Subnet
	for i := 0; h.mesh.Summary().Peers[status.Unreachable] < peers; i++ {
		if w.turn(); i == 20*peers {
			t.Fatalf("after %d s: %+v", i, h.mesh.Summary())
		}
	}
	w.run(2 * int(maxRetryAfter/time.Second)) // now all are due
	h.mesh.Received(w.now, back.Addr(), false, false, message{subnet: back, heard: -1, token: 1}.encode(0))
	w.is(0, peers/2, status.Unreachable)
	w.now = w.now.Add(interval)
	if r, _ := h.mesh.Turn(w.now); !back.Contains(r.to) {
		t.Errorf("%v was asked", r.to)
	}
	w.run(3)
	w.is(0, peers/2, status.OneWay) // it does not answer
}

func TestOneWay(t *testing.T) {
	w := newWorld(t, 3, false)
	w.run(60)
	// What node0 sends does not arrive at node1.
	w.lost = func(from, to *host, _ bool, _ int) bool { return from == w.nodes[0] && to == w.nodes[1] }
	w.run(40)
	w.is(0, 1, status.OneWay)      // node0 hears node1, which does not hear it
	w.is(1, 0, status.Unreachable) // and node1 hears nothing
	w.is(2, 0, status.Reachable)
	w.is(2, 1, status.Reachable)
	// Now nothing arrives.
	w.lost = func(from, to *host, _ bool, _ int) bool { return from != w.nodes[2] && to != w.nodes[2] }
	w.run(60)
	w.is(0, 1, status.Unreachable)
	w.is(1, 0, status.Unreachable)
	w.lost = nil
	w.run(20)
	w.is(0, 1, status.Reachable)
	w.is(1, 0, status.Reachable)
}

// A host may not answer echo requests. Two flannelds hear each other nevertheless.
func TestHeardInsteadOfAnswer(t *testing.T) {
	w := newWorld(t, 3, false)
	w.lost = func(_, _ *host, answer bool, _ int) bool { return answer }
	w.run(60)
	for at := range w.nodes {
		w.is(at, (at+1)%3, status.Reachable)
		w.silent(at)
	}
}

func TestMTU(t *testing.T) {
	w := newWorld(t, 3, true)
	w.run(90)
	w.lost = func(from, to *host, _ bool, size int) bool {
		return size > 1000 && (from == w.nodes[2] || to == w.nodes[2])
	}
	w.run(25)
	w.is(0, 2, status.SmallOnly)
	w.is(2, 0, status.SmallOnly)
	w.is(0, 1, status.Reachable)
	if c := w.nodes[0].mesh.Changes(w.now); len(c) != 1 || c[0].Reach.State != status.SmallOnly {
		t.Errorf("reports %+v", c)
	}
	w.nodes[2].off = true
	w.run(40)
	w.is(0, 2, status.Unreachable)
	w.nodes[2].off = false
	w.run(120)
	w.is(0, 2, status.SmallOnly)
	w.lost = nil
	w.run(60)
	w.is(0, 2, status.Reachable)
}

// At first contact, the full size is tried at once.
func TestMTUAtFirst(t *testing.T) {
	w := newWorld(t, 2, false)
	w.lost = func(_, _ *host, _ bool, size int) bool { return size > 1000 }
	w.run(30)
	w.is(0, 1, status.SmallOnly)
}

// flannel answers, and sends nothing.
func TestFlannelPeer(t *testing.T) {
	w := newWorld(t, 3, false)
	w.nodes[2].mesh = nil
	w.run(60)
	w.is(0, 2, status.Reachable)
	w.nodes[2].off = true
	w.run(30)
	w.is(0, 2, status.Unreachable)
}

func TestWindowsPeer(t *testing.T) {
	w := newWorld(t, 3, false)
	peer := w.nodes[2]
	peer.mesh, peer.lease.V4.Data = nil, json.RawMessage(`{"VNI":4096,"VtepMAC":"00-15-5D-0a-0b-0c"}`)
	peer.answers = func(a netip.Addr) bool { return a == peer.lease.V4.PublicIP }
	for _, h := range w.nodes[:2] {
		h.mesh.Update(w.now, Network{})
		h.mesh.Update(w.now, w.network(h, Tunnels))
	}
	w.run(30)
	w.is(0, 2, status.Unproven)
	w.silent(0)
	if r := w.nodes[0].mesh.Reach("node2"); r.Via != status.ViaUnderlay || r.Target != peer.lease.V4.PublicIP {
		t.Errorf("probed at %+v", r)
	}
	peer.off = true
	w.run(30)
	w.is(0, 2, status.Unreachable)
	w.nodes[0].mesh.Changes(w.now)
	peer.off = false
	w.run(30)
	w.is(0, 2, status.Unproven)
	if c := w.nodes[0].mesh.Changes(w.now); len(c) != 1 || c[0].Outage == 0 {
		t.Errorf("the end of the outage is not reported: %+v", c)
	}
	// A firewall may refuse echo requests.
	peer.off, peer.answers = false, func(netip.Addr) bool { return false }
	w.nodes[1].mesh = newMesh(w.rnd.IntN, w.rnd.Uint64)
	w.nodes[1].mesh.Update(w.now, w.network(w.nodes[1], Tunnels))
	w.run(300)
	w.is(1, 2, status.UnknownReach)
	w.is(1, 0, status.Reachable)
	w.silent(1)
}

// With host-gw, a bridge exists once a pod has run on the node.
func TestBridges(t *testing.T) {
	w := newWorld(t, 3, false)
	peer, pods, ways := w.nodes[2], false, true
	peer.answers = func(a netip.Addr) bool {
		return a == peer.lease.V4.PublicIP || pods && ways && peer.lease.V4.Subnet.Contains(a)
	}
	for _, h := range w.nodes {
		h.mesh.Update(w.now, w.network(h, Bridges))
	}
	via := func() status.Via { return w.nodes[0].mesh.Reach("node2").Via }
	w.run(60)
	w.is(0, 2, status.Unproven)
	w.silent(0)
	if via() != status.ViaUnderlay {
		t.Errorf("via %s without pods", via())
	}
	pods = true
	w.run(30)
	w.is(0, 2, status.Reachable)
	if via() != status.ViaPods {
		t.Errorf("via %s with pods", via())
	}
	w.silent(0)
	// node2 hears this node, which is enough: let it be flannel.
	mesh := peer.mesh
	peer.mesh = nil
	ways = false // the way to the pods is lost, and the host answers
	w.run(60)
	w.is(0, 2, status.Unreachable)
	ways = true
	w.run(30)
	w.is(0, 2, status.Reachable)
	// It is started again, and has no pods yet.
	peer.off, pods = true, false
	w.run(60)
	w.is(0, 2, status.Unreachable)
	peer.off, peer.mesh = false, mesh
	w.run(60)
	w.is(0, 2, status.Unproven)
	if via() != status.ViaUnderlay {
		t.Errorf("via %s after the start", via())
	}
}

// Old kernels do not answer for the base address if the bridge is older than the device.
func TestOldKernel(t *testing.T) {
	w := newWorld(t, 2, false)
	peer := w.nodes[1]
	peer.answers = func(a netip.Addr) bool { return a != peer.lease.V4.Subnet.Addr() }
	w.nodes[1].mesh = nil
	w.run(60)
	w.is(0, 1, status.Reachable)
	w.silent(0)
}
