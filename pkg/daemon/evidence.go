package daemon

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"flannel/backend"
	"flannel/pkg/daemon/rollout"
	"flannel/pkg/reconcile"
	"flannel/subnet"
)

// trial is one use of the offered configuration: the new one in the store, with another wire
// (what nodes must have in common to reach each other) than the one before. Package rollout
// has the states, ADR 4 the reasons. From the adoption on, trialPart asks peers by the new
// configuration's way, and the configuration part takes answered and err as evidence in the
// next pass (stepRollout). With an answer, or when the node has gone back to the former
// configuration, InForce is false, and nobody is asked any more. The loop replaces the trial
// by a new one; a goroutine of askPeers may still use the former one.
type trial struct {
	began    time.Time
	asking   atomic.Bool            // the goroutine of askPeers runs
	answered atomic.Pointer[string] // the peer that has answered by the new way; nil: none
	err      atomic.Pointer[string] // why nobody has answered the last requests; nil: there were none
}

// With these times, a trial of two minutes (--config-stagger) has about 170 rounds.
const (
	askTimeout = 500 * time.Millisecond // for the answers of one round
	askPause   = 200 * time.Millisecond // after a round without an answer
	// untestedPause is askPause for a configuration that is kept as unproven, which may be
	// so for days: a bridge that could answer appears with a first pod.
	untestedPause = 30 * time.Second
	// maxAsked limits the peers of one round, all of which are asked at once. The next round
	// begins soon, and asks peers that have adopted the configuration meanwhile, too.
	maxAsked = 8
)

// source returns the address from which this node sends to peers by the pods' way (through
// the tunnel, as packets of pods), for the family of own, this node's subnet; invalid: it
// has none. os is runtime.GOOS.
//
// A tunnel device has the first address of the subnet. Without one, packets of
// the pods' bridge take the pods' way. The bridge exists once a pod has run, and
// has the second address unless the CNI configuration says otherwise.
func (n *node) source(own subnet.Endpoint, wire backend.Wire, os string) netip.Addr {
	device := own.Subnet.Addr()
	bridge := device.Next()
	switch {
	case !own.On():
		return netip.Addr{}
	case wire.Echo && os != "windows": // Echo: Linux nodes have a tunnel device; in an HNS network, the host has no address
		return device
	case slices.Contains(n.host.addrs, bridge):
		return bridge
	}
	for _, a := range n.host.addrs { // device may still be there, of the former configuration's tunnel, and is removed soon
		if own.Subnet.Contains(a) && a != device {
			return a
		}
	}
	return netip.Addr{}
}

// sources returns the addresses from which this node sends by the pods' way, one
// of each family that has one; none if this node cannot ask (no Daemon.Echo), or the
// backend makes no paths.
func (d *Daemon) sources(n *node, wire backend.Wire) (from []netip.Addr) {
	if d.Echo == nil || !wire.Paths {
		return nil
	}
	for _, e := range n.lease.Endpoints() {
		if a := n.source(e, wire, d.Settings.OS); a.IsValid() {
			from = append(from, a)
		}
	}
	return from
}

// request is an echo request from an address of this node to a peer.
type request struct{ from, to netip.Addr }

// askedPeer is a peer that has adopted the configuration on trial, and what it
// must answer: for each family, one of the requests.
type askedPeer struct {
	name     string
	subnets  []netip.Prefix
	families [][]request
}

// trialPart asks peers while a configuration is on trial, or unproven.
func (d *Daemon) trialPart() part {
	return part{name: "trial", needsPeers: true, reconcile: d.askPeers}
}

// askPeers starts a goroutine that finds out whether a peer that has adopted the
// configuration on trial answers by the new way, unless one runs already, and
// notifies the loop at its end. Only answers to packets from pod addresses to pod
// addresses count: those are what the underlay must let through. Nobody waits for the
// goroutine. It ends soon after ctx, that of the loop.
//
// It does nothing if the pass has not set all paths (partPaths failed) and removed the
// former ones (Keep forbids that): packets might still take the former way.
func (d *Daemon) askPeers(ctx context.Context, p *pass) error {
	a, n := &d.adoption, p.node
	if !a.rollout.InForce() || n.backend.Wire() != a.offered.wire || p.failed.has(partPaths) || p.state.Keep {
		return nil
	}
	t, from, pause := a.trial, d.sources(n, a.offered.wire), askPause // a trial is there while InForce
	if a.rollout.State() == rollout.Unproven {
		pause = untestedPause
	}
	peers := requestsTo(n.preferTunnelled(d.adopters(p)), from, a.offered.wire.Echo) // none without an address to ask from
	if len(peers) == 0 || t.asking.Swap(true) {
		return nil
	}
	keys, changed := a.offered.wire.Keys, p.in.changed
	// At most one such goroutine of a trial runs (asking). It sets asking to false
	// before it notifies, so that the pass that this causes can start the next round.
	go func() {
		name, err := d.askRound(ctx, peers)
		if err == nil {
			t.answered.Store(&name) // and no pause: the pass that follows ends the trial
		} else {
			if keys {
				err = errors.Join(err, d.negotiated(peers, t.began))
			}
			t.err.Store(new(err.Error()))
			reconcile.Pause(ctx, pause)
		}
		t.asking.Store(false)
		reconcile.Notify(changed)
	}()
	return nil
}

// requestsTo returns what to ask some of the peers, at most maxAsked. tunnel: peers have
// tunnel devices (Wire.Echo).
func requestsTo(leases []*subnet.Lease, from []netip.Addr, tunnel bool) (peers []askedPeer) {
	for _, i := range rand.Perm(len(leases)) { // each round asks others, because some never answer, such as Windows nodes
		p := askedPeer{name: leases[i].Name}
		for _, e := range leases[i].Endpoints() {
			// The first address of a subnet is that of the tunnel device, and the second
			// one that of the pods' bridge. Both are asked, because kernels before 5.14 take
			// the first one for a broadcast address, and do not answer, if the bridge is
			// older than the device.
			to := []netip.Addr{e.Subnet.Addr().Next()}
			if tunnel {
				to = append(to, e.Subnet.Addr())
			}
			var requests []request
			for _, f := range from {
				for _, addr := range to {
					if f.Is4() == addr.Is4() {
						requests = append(requests, request{f, addr})
					}
				}
			}
			if p.subnets = append(p.subnets, e.Subnet); len(requests) > 0 {
				p.families = append(p.families, requests)
			}
		}
		if len(p.families) > 0 {
			peers = append(peers, p)
		}
		if len(peers) == maxAsked {
			break
		}
	}
	return peers
}

// askRound asks all peers at once, within askTimeout. It returns the name of the first one
// that answers in all families, or else an error of each peer.
func (d *Daemon) askRound(ctx context.Context, peers []askedPeer) (name string, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	results := make([]chan error, len(peers))
	first := make(chan string, len(peers))
	for i, p := range peers {
		results[i] = make(chan error, 1) // with room, as first: the goroutines end although nobody receives
		go func() {
			err := d.askPeer(ctx, p)
			if err == nil {
				first <- p.name
			}
			results[i] <- err
		}()
	}
	for _, r := range results {
		select {
		case name := <-first:
			return name, nil
		case peerErr := <-r: // nil: the peer has answered, and its name is in first
			err = errors.Join(err, peerErr)
		}
	}
	select {
	case name := <-first: // its result was taken first
		return name, nil
	default:
		return "", err
	}
}

// askPeer returns nil if the peer answers in all families.
func (d *Daemon) askPeer(ctx context.Context, p askedPeer) error {
	for _, requests := range p.families {
		if err := d.askFirst(ctx, requests); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

// askFirst sends all requests and returns nil with the first answer.
func (d *Daemon) askFirst(ctx context.Context, requests []request) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan error, len(requests))
	for _, r := range requests {
		go func() {
			err := d.Echo(ctx, r.from, r.to)
			if err != nil {
				err = fmt.Errorf("from %v to %v: %w", r.from, r.to, err)
			}
			results <- err
		}()
	}
	for range requests {
		if err = <-results; err == nil {
			return nil
		}
	}
	return err // that of the last one to fail
}

// negotiated returns an error if this node has negotiated keys with none of the
// peers since began: then it is the key exchange that does not pass. Keys alone
// prove nothing, since packets of pods use another protocol than the exchange.
// The goroutine of askPeers calls it: any goroutine may call Traffic.
func (d *Daemon) negotiated(peers []askedPeer, began time.Time) error {
	traffic := d.Dataplane.Traffic()
	for _, p := range peers {
		if slices.ContainsFunc(p.subnets, func(s netip.Prefix) bool { return traffic[s].Handshake.After(began) }) {
			return nil
		}
	}
	return errors.New("no keys were negotiated with any of them")
}
