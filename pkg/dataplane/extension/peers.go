package extension

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
)

// This file says what is wanted of each peer, and which command is next. The loop calls it by
// Apply; work calls a peer's next and forget, on the goroutine of a command, with d.mu held.

// key identifies a peer: its IPv4 subnet, or without one that of IPv6. A peer keeps
// it when it gets or loses IPv6, so that its commands stay in order.
type key = netip.Prefix

// job is a peer with the commands for it, as the configuration had them when the
// peer was wanted: SubnetRemove runs with those with which SubnetAdd ran.
type job struct {
	dataplane.ByCommands
	add, remove string
}

// peer is the unit of a peer.
type peer struct {
	unit
	want  *job // nil: it is gone
	have  *job // for which SubnetAdd has run, perhaps in part; nil: none
	added bool // SubnetAdd for have has succeeded, and SubnetRemove has not been tried since
}

// wantPeers makes the peers of a state wanted, as far as they differ from those of the last
// Apply. With State.Keep, others stay; a later state without Keep, which does not show them
// as differences, is therefore compared with all peers (stale). When the commands of the
// configuration have changed, all peers get the new ones.
func (d *Dataplane) wantPeers(s dataplane.State) {
	d.mu.Lock()
	defer d.mu.Unlock()
	added, removed := dataplane.DiffPaths(d.paths, s)
	added, removed = byCommands(added), byCommands(removed)
	if s.Keep {
		d.stale = d.stale || len(removed) > 0
		removed = nil
	} else if d.stale {
		d.stale = false
		added, removed = byCommands(s.Paths), nil
		wanted := map[key]bool{}
		for _, p := range added {
			wanted[keyOf(p)] = true
		}
		for k, p := range d.peers {
			if !wanted[k] {
				d.wish(p, nil)
			}
		}
	}
	d.paths = s.Paths
	for _, path := range removed {
		if p := d.peers[keyOf(path)]; p != nil {
			d.wish(p, nil)
		}
	}
	for _, path := range added {
		k := keyOf(path)
		p := d.peers[k]
		if p == nil {
			p = &peer{}
			p.next = func() *step { return d.nextOf(k, p) }
			p.forget = func() { d.forget(k, p) }
			d.peers[k] = p
		}
		d.wish(p, &job{path.Encap.(dataplane.ByCommands), d.device.SubnetAdd, d.device.SubnetRemove})
	}
	if d.device == nil || d.peerCommands == [2]string{d.device.SubnetAdd, d.device.SubnetRemove} {
		return
	}
	d.peerCommands = [2]string{d.device.SubnetAdd, d.device.SubnetRemove}
	for _, p := range d.peers {
		if p.want != nil {
			d.wish(p, &job{p.want.ByCommands, d.device.SubnetAdd, d.device.SubnetRemove})
		}
	}
}

// byCommands returns the paths that commands make. Paths of a former backend that
// are retained are others.
func byCommands(paths []*dataplane.Path) []*dataplane.Path {
	return slices.DeleteFunc(slices.Clone(paths), func(p *dataplane.Path) bool { _, is := p.Encap.(dataplane.ByCommands); return !is })
}

// keyOf returns the key of the peer that a path by commands leads to.
func keyOf(path *dataplane.Path) key {
	by := path.Encap.(dataplane.ByCommands)
	if by.V4.Subnet.IsValid() {
		return by.V4.Subnet
	}
	return by.V6.Subnet
}

// wish sets what is wanted of a peer; nil: it is gone. The caller holds d.mu, as that of
// forget does.
func (d *Dataplane) wish(p *peer, want *job) {
	if p.want == want || p.want != nil && want != nil && *p.want == *want {
		return
	}
	p.want = want
	p.hurry()
	d.schedule(&p.unit)
	p.forget()
}

// forget drops a peer that is gone, and of which nothing is left.
func (d *Dataplane) forget(k key, p *peer) {
	if p.want == nil && p.have == nil && !p.running {
		delete(d.peers, k)
	}
}

// leave removes the peers for another backend. It returns the other backend's state s,
// without the paths to peers that are not removed yet, also with State.Keep, which
// forbids only deletions: a later removal could delete what the driver adds. At the
// deadline, it gives up those that are left. The error says that paths are missing.
func (d *Dataplane) leave(ctx context.Context, s dataplane.State) (dataplane.State, error) {
	d.mu.Lock()
	number := len(d.peers)
	d.mu.Unlock()
	if number == 0 { // as on nodes that never had commands
		return s, nil
	}
	switch {
	case d.deadline.IsZero() && !s.Keep:
		limit := removalLimit(number)
		d.deadline = time.Now().Add(limit)
		time.AfterFunc(limit, func() { reconcile.Notify(d.changes) })
	case !d.deadline.IsZero() && !time.Now().Before(d.deadline):
		d.giveUp()
	}
	d.waitUntil(ctx, d.removalsEnded)
	left := d.present()
	paths := slices.DeleteFunc(slices.Clone(s.Paths), func(p *dataplane.Path) bool { return left[p.Dst] })
	if len(paths) == len(s.Paths) {
		return s, nil
	}
	s.Paths, s.Since, s.Changes = paths, nil, nil
	return s, dataplane.Waiting(causeCommands, "SubnetRemoveCommand of the former backend")
}

// removalLimit returns how long another backend waits for a number of peers to be
// removed: timeLimit, and enough for commands that are not slow. Without the first,
// no command could hang and be killed; without the second, many peers that are
// removed normally would be given up.
func removalLimit(peers int) time.Duration {
	return max(timeLimit, time.Duration(peers)*slowAfter/atOnce)
}

// removalsEnded reports whether no pass has to wait for a removal. Commands of peers
// that were given up may still run. The caller holds d.mu.
func (d *Dataplane) removalsEnded() bool {
	for _, p := range d.peers {
		if p.have != nil && p.want == nil && p.pending {
			return false
		}
	}
	return true
}

// present returns the subnets of the peers that are not removed.
func (d *Dataplane) present() map[netip.Prefix]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	subnets := map[netip.Prefix]bool{}
	for _, p := range d.peers {
		if p.have != nil {
			subnets[p.have.V4.Subnet], subnets[p.have.V6.Subnet] = true, true
		}
	}
	return subnets
}

// giveUp ends the removal of all peers, when another backend has waited for it until
// d.deadline. A running command goes on, but its result does not count. Those that wait
// for a slot, or for a retry, never run.
func (d *Dataplane) giveUp() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for k, p := range d.peers {
		if p.have == nil {
			continue
		}
		err := cmp.Or(p.err, dataplane.Waiting(causeCommands, "SubnetRemoveCommand"))
		d.opts.Log.Warn("could not remove a peer", "cause", causeFailed, "subnet", k, "given_up", true, "error", err)
		p.have, p.ignored = nil, true
		p.hurry()
		p.forget()
	}
}

// removeTries is how often SubnetRemove is tried for a peer that is gone, in about a quarter of an hour. For a peer
// that changed, retries keep SubnetAdd, and with it the peer, waiting, so that there are few (changeTries, with 3 s of
// pauses): SubnetAdd may not replace what it made with former values, such as another PUBLIC_IP. With other commands, it
// is tried once, as the removal may have failed because of the former ones. What a failed removal has left is replaced by
// SubnetAdd, as after a restart, or is the reason why SubnetAdd fails.
const (
	removeTries = 10
	changeTries = 3
)

// removed records the end of SubnetRemove, for which another backend may wait.
func (d *Dataplane) removed(p *peer) {
	p.have = nil
	reconcile.Notify(d.changes)
}

// nextOf returns the next step of a peer.
func (d *Dataplane) nextOf(k key, p *peer) *step {
	run := func(key, line string, j *job) command {
		return command{key: key, line: line, env: ends(j.V4, j.V6), stdin: j.Data + "\n", subnet: k}
	}
	switch {
	case p.have != nil && (p.want == nil || *p.want != *p.have):
		tries := 1
		switch {
		case p.want == nil:
			tries = removeTries
		case p.want.add == p.have.add && p.want.remove == p.have.remove:
			tries = changeTries
		}
		return &step{command: run("SubnetRemoveCommand", p.have.remove, p.have), tries: tries,
			begin: func() { p.added = false }, done: func(string) { d.removed(p) }}
	case p.want != nil && !p.added:
		want := p.want
		return &step{command: run("SubnetAddCommand", want.add, want),
			begin: func() { p.have = want }, done: func(string) { p.added = true }}
	}
	return nil
}
