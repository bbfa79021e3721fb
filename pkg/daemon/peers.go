package daemon

import (
	"context"
	"errors"
	"slices"
	"time"

	"flannel/backend"
	"flannel/pkg/dataplane"
	"flannel/pkg/status"
	"flannel/subnet"
)

// errNoPeers is why a pass is not complete while the store has not sent its first
// complete list.
var errNoPeers = errors.New("waiting for the complete set of peers")

// peersPart makes paths from the leases of the peers. In each pass, the loop calls planPeers in
// its place among the parts (pass.go), and tellPeers after all parts, also if planPeers failed.
func (d *Daemon) peersPart() part {
	return part{name: partPeers, reconcile: d.planPeers, report: tellPeers}
}

// planPeers validates the leases, and begins the desired state of the dataplane. After its error,
// parts that need peers are left out of the pass; the first complete set causes another pass.
func (d *Daemon) planPeers(_ context.Context, p *pass) error {
	d.updateRules(p.node) // before the plan: it rejects a peer with an address of this node
	if p.set, p.known = p.in.takePeers(); !p.known {
		return errNoPeers
	}
	// takePeers returns each change only once. That is enough: Update cannot fail, and the first
	// Update of a new plan reads all leases instead. If the pass fails later, the dataplane finds
	// that Since is not what it has, and compares all paths.
	planned := p.plan.Update(p.set.Leases, p.set.Changes)
	p.rejects = slices.Concat(planned.Rejects, p.set.Rejects)             // set.Rejects are entries that are no lease, so not in Leases
	p.valid = len(p.set.Leases) - len(planned.Rejects) - p.plan.Pending() // pending: not published yet how to reach it, so without paths
	p.state = p.desired()
	// Since are the paths of the Update before, and Changes how Paths differ from them.
	p.state.Paths, p.state.Since, p.state.Changes = planned.Paths, planned.Since, planned.Changes
	// A part before this one could not read the actual state, and has used the last known one: with
	// Keep, the dataplane deletes nothing.
	p.state.Keep = p.failed.unknown()
	if d.Settings.BlackholeOwn {
		p.state.Blackholes = p.state.Subnets
	}
	return nil
}

// updateRules sets the addresses of this node in the plan, and has the lease manager
// validate leases by the rules of the plan: only valid leases decide which subnets are
// free, and which peers are retained.
func (d *Daemon) updateRules(n *node) {
	// judged is the plan of the last SetJudge; another configuration or lease makes another plan.
	if changed := n.plan.SetAddrs(n.host.addrs); changed || n.judged != n.plan {
		n.judged = n.plan
		d.Manager.SetJudge(n.plan.Judge())
	}
}

// desired returns the desired state of the dataplane without paths.
func (n *node) desired() dataplane.State {
	// Former: pod networks of earlier runs, by the subnet file, into which our routes are deleted.
	// Wire().Paths is false for a backend without devices (alloc): somebody else routes.
	state := dataplane.State{Networks: n.networks(), Former: n.former.networks, FormerSubnets: slices.Concat(n.former.v4, n.former.v6),
		Unrouted: !n.backend.Wire().Paths, Underlay: n.config.Underlay}
	for _, e := range n.lease.Endpoints() {
		state.Subnets = append(state.Subnets, e.Subnet)
	}
	return state
}

// tellPeers says in which state each peer is, and how many there are.
//
//	state           of a peer
//	Rejected        whose lease is invalid or conflicts with another one
//	Pending         that has not published yet how to reach it
//	Behind          with an entry that the system refused, or any peer if
//	                devices or paths could not be set in the pass
//	RetainedPeer    that the store has lost, and that stays in use for a time
//	UpToDate        all others
//
// The part orphans adds further RetainedPeers: paths that the system has from an earlier run,
// and that have no lease.
func tellPeers(p *pass) {
	if !p.known {
		return
	}
	state := status.UpToDate // of peers without a problem of their own
	if p.failed.has(partDevices, partPaths) {
		state = status.Behind
	}
	set, rejects, refused, wire, valid := p.set, p.rejects, p.refused, p.backend.Wire(), p.valid
	// The functions below stay until the next pass, and any goroutine may call them. Changes would
	// keep former leases in memory, too.
	set.Changes = nil
	p.tell(status.OfNode, func(r *status.Report) {
		r.PeersKnown, r.Retained = true, retainedStatus(set)
		r.Counts = status.Counts{Used: valid, Rejected: len(rejects), Refused: len(refused), Retained: len(set.Retained)}
	})
	p.tell(status.OfPeers, func(r *status.Report) { r.Peers = peerStatuses(set, rejects, refused, wire, state) })
}

// peerStatuses returns the peers in the order of their leases, then those whose lease
// could not be decoded. state is that of peers without a problem of their own; wire says
// which leases are Pending.
func peerStatuses(set subnet.Set, rejects, refusedPeers []subnet.Rejected, wire backend.Wire, state status.State) []status.Peer {
	refused, reasons := reasonsByName(refusedPeers), reasonsByName(rejects)
	until := make(map[string]time.Time, len(set.Retained))
	for _, r := range set.Retained {
		until[r.Lease.Name] = r.Until
	}
	peers := make([]status.Peer, 0, len(set.Leases)+len(rejects))
	for _, l := range set.Leases {
		p := peerStatus(l, wire, state, reasons)
		if reason, found := refused[l.Name]; found {
			p.State, p.Reason = status.Behind, reason
		}
		if p.Until = until[l.Name]; p.State == status.UpToDate && !p.Until.IsZero() {
			p.State = status.RetainedPeer
		}
		peers = append(peers, p)
		delete(reasons, l.Name)
	}
	for _, r := range rejects {
		if reason, noLease := reasons[r.Name]; noLease {
			peers = append(peers, status.Peer{Name: r.Name, State: status.Rejected, Reason: reason})
		}
	}
	return peers
}

// peerStatus returns the status of one peer; state is that of a peer that is
// neither rejected nor pending.
func peerStatus(l *subnet.Lease, wire backend.Wire, state status.State, reasons map[string]string) status.Peer {
	p := status.Peer{Name: l.Name, State: state}
	for _, e := range l.Endpoints() {
		p.Subnets, p.PublicIPs = append(p.Subnets, e.Subnet), append(p.PublicIPs, e.PublicIP)
	}
	if reason, rejected := reasons[l.Name]; rejected {
		p.State, p.Reason = status.Rejected, reason
	} else if wire.Pending(l) {
		p.State = status.Pending
	}
	return p
}

// reasonsByName returns the reasons by the names of the leases, and only the
// last one for a name.
func reasonsByName(rejects []subnet.Rejected) map[string]string {
	reasons := make(map[string]string, len(rejects))
	for _, r := range rejects {
		reasons[r.Name] = r.Reason
	}
	return reasons
}

// retainedStatus summarizes the retained peers; nil: there are none, nor is this node's own
// lease to be restored (OwnWithdrawn). Until and Cause are those of the peers whose time is
// over first.
func retainedStatus(set subnet.Set) *status.Retained {
	if len(set.Retained) == 0 && !set.OwnWithdrawn {
		return nil
	}
	summary := &status.Retained{Count: len(set.Retained), Own: set.OwnWithdrawn}
	for _, r := range set.Retained {
		if summary.Until.IsZero() || r.Until.Before(summary.Until) {
			summary.Until, summary.Cause = r.Until, string(r.Cause)
		}
	}
	return summary
}

// clusterPart fails while other nodes cannot know this node: OwnMissing is why, nil if they can,
// or if no complete set was received.
func (d *Daemon) clusterPart() part {
	return part{name: partCluster, reconcile: func(_ context.Context, p *pass) error { return p.set.OwnMissing }}
}
