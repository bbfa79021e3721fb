package daemon

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"flannel/backend"
	"flannel/pkg/dataplane"
	"flannel/pkg/mac"
	"flannel/pkg/status"
	"flannel/pkg/status/report"
	"flannel/subnet"
)

// view holds the result of the last pass for the Board. The loop writes it, and whoever
// asks the Board reads it. The zero view is from before the first pass.
type view struct {
	mu     sync.Mutex
	last   *snapshot
	errors []status.Error // sorted by when they occurred last, the oldest first
}

// AddDataplane registers what a dataplane reports, also while no Daemon runs yet: the rules
// of an earlier run may be in force.
func AddDataplane(b *status.Board, plane dataplane.Dataplane) {
	b.Add(status.OfDataplane, func(r *status.Report) {
		r.Guard, r.Forwarded, r.LostPods = plane.Guarded(), plane.Forwarded(), plane.PodsWithoutEndpoint()
	})
}

// addParts registers what this daemon and its parts report.
func (d *Daemon) addParts() {
	d.Board.Add(status.OfNode, func(r *status.Report) {
		d.view.fill(r)
		r.LeaseExpires = d.Manager.Expires()
	})
	d.Board.Add(status.OfPeers, func(r *status.Report) {
		d.view.fillPeers(r)
		addTunnels(r.Peers, d.Dataplane.Traffic())
		d.Probes.Fill(r.Peers)
	})
}

// snapshot is a node after a pass. It is a shallow copy: what a node points to
// is never modified in place, except for the plan, which a snapshot does not
// use. The report is computed from it when somebody asks.
type snapshot struct {
	node
	settings Settings
	failed   []string // the parts that failed
	at       time.Time
	took     time.Duration
}

// Limits of the errors that a view keeps. An error may name thousands of entries.
const (
	maxErrors    = 10   // different ones; the one that occurred least recently is dropped
	maxErrorText = 2000 // bytes
)

// set records a pass. Errors that only mean that the store is waited for are not
// recorded.
func (v *view) set(n *node, s Settings, failed failures, took time.Duration) {
	for _, f := range failed {
		if slices.Contains(failed.parts(), f.part) {
			v.addError(f.part, f.err)
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.last = &snapshot{*n, s, failed.parts(), time.Now(), took}
}

// addError records an error. If the same text is recorded already, its count
// increases.
func (v *view) addError(part string, err error) {
	text, now := err.Error(), time.Now()
	text = strings.ToValidUTF8(text[:min(len(text), maxErrorText)], "")
	v.mu.Lock()
	defer v.mu.Unlock()
	entry := status.Error{Part: part, Text: text, First: now}
	if i := slices.IndexFunc(v.errors, func(e status.Error) bool { return e.Part == part && e.Text == text }); i >= 0 {
		entry = v.errors[i]
		v.errors = slices.Delete(v.errors, i, i+1)
	}
	entry.Count++
	entry.Last = now
	v.errors = append(v.errors[max(0, len(v.errors)+1-maxErrors):], entry)
}

// fill sets the fields of r about this node, its peers as a whole, and the last errors.
func (v *view) fill(r *status.Report) {
	v.mu.Lock()
	snap := v.last
	r.Errors = append(r.Errors, v.errors...)
	v.mu.Unlock()
	if snap == nil {
		return
	}
	last := &snap.last
	r.Node, r.Advice, r.Conflict = snap.nodeStatus(), snap.advice(), snap.addressConflict()
	r.Pending, r.Refused = last.pendingConfig, last.configRefused
	r.PeersKnown, r.Retained = last.peersKnown, last.retainedStatus()
	r.Counts = status.Counts{Used: last.validPeers + len(last.orphans), Rejected: len(last.rejects), Refused: len(last.refused),
		Retained: len(last.retained) + len(last.orphans)}
}

// fillPeers adds the peers to r.
func (v *view) fillPeers(r *status.Report) {
	v.mu.Lock()
	snap := v.last
	v.mu.Unlock()
	if snap != nil {
		r.Peers = snap.peerStatuses()
	}
}

// addTunnels adds what the tunnels know about the peers. With one device for both families, both subnets of a peer have
// the same tunnel.
func addTunnels(peers []status.Peer, traffic map[netip.Prefix]report.Tunnel) {
	for i := range peers {
		for _, s := range peers[i].Subnets {
			tunnel, ok := traffic[s]
			if ok && !slices.Contains(peers[i].Tunnels, tunnel) {
				peers[i].Tunnels = append(peers[i].Tunnels, tunnel)
			}
		}
	}
}

// nodeStatus returns the part of the report about this node. Data of a lease that is
// not JSON is left out, since the report is JSON.
func (s *snapshot) nodeStatus() *status.Node {
	n := &status.Node{
		Backend: cmp.Or(s.lease.Backend, s.config.Backend), NFTables: s.config.NFTables,
		IPMasq: s.settings.IPMasq, SubnetFile: s.settings.SubnetFile, MTU: s.backend.MTU(),
		Underlay: status.Underlay{Name: s.host.link.Name, Index: s.host.link.Index, MTU: s.host.link.MTU, AtStart: s.host.link.AtStart},
		LastPass: s.at, Took: status.Duration(s.took),
	}
	for _, a := range []netip.Addr{s.host.link.V4, s.host.link.V6} {
		if a.IsValid() {
			n.Underlay.Addrs = append(n.Underlay.Addrs, a)
		}
	}
	for _, e := range s.lease.Endpoints() {
		network := status.Network{Network: s.config.NetworkOf(e.Subnet.Addr()).Prefix, Subnet: e.Subnet, PublicIP: e.PublicIP}
		if json.Valid(e.Data) {
			network.Data = e.Data
		}
		n.Networks = append(n.Networks, network)
	}
	for _, name := range slices.Sorted(maps.Keys(s.last.links)) {
		l := s.last.links[name]
		dev := status.Device{Name: name, Index: l.Index, MTU: l.MTU}
		if l.MAC != (mac.Addr{}) {
			dev.MAC = l.MAC.String()
		}
		if l.Key != (dataplane.PublicKey{}) {
			dev.PublicKey = l.Key.Base64()
		}
		n.Devices = append(n.Devices, dev)
	}
	for _, d := range s.backend.Devices(s.lease) {
		if k, ok := d.Kind.(dataplane.IPsec); ok {
			n.UDPEncap = k.UDPEncap
		}
	}
	return n
}

// peerStatuses returns the peers in the order of their leases, then those whose
// lease could not be decoded, then the orphans.
//
//	state           of a peer
//	Rejected        whose lease is invalid or conflicts with another one
//	Pending         that has not published yet how to reach it
//	Behind          with an entry that the system refused, or any peer if
//	                devices or paths could not be set in the last pass
//	RetainedPeer    that the store has lost, and all orphans
//	UpToDate        all others
func (s *snapshot) peerStatuses() []status.Peer {
	state := status.UpToDate // of peers without a problem of their own
	if slices.Contains(s.failed, "devices") || slices.Contains(s.failed, "dataplane") {
		state = status.Behind
	}
	refused, reasons := reasonsByName(s.last.refused), reasonsByName(s.last.rejects)
	until := make(map[string]time.Time, len(s.last.retained))
	for _, r := range s.last.retained {
		until[r.Lease.Name] = r.Until
	}
	wire := s.backend.Wire()
	peers := make([]status.Peer, 0, len(s.last.peers)+len(s.last.rejects))
	for _, l := range s.last.peers {
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
	for _, r := range s.last.rejects {
		if reason, noLease := reasons[r.Name]; noLease {
			peers = append(peers, status.Peer{Name: r.Name, State: status.Rejected, Reason: reason})
		}
	}
	for _, p := range s.last.orphans {
		peers = append(peers, status.Peer{Name: p.Dst.String(), State: status.RetainedPeer, Until: s.last.orphansUntil,
			Subnets: []netip.Prefix{p.Dst}, PublicIPs: []netip.Addr{p.Via}})
	}
	return peers
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

// retainedStatus summarizes the retained peers; nil: there are none. Until and Cause
// are those of the peers whose time is over first.
func (o *outcome) retainedStatus() *status.Retained {
	if len(o.retained)+len(o.orphans) == 0 && !o.ownWithdrawn {
		return nil
	}
	summary := &status.Retained{Count: len(o.retained) + len(o.orphans), Own: o.ownWithdrawn}
	if len(o.orphans) > 0 {
		summary.Until, summary.Cause = o.orphansUntil, string(subnet.MissingAtStart)
	}
	for _, r := range o.retained {
		if summary.Until.IsZero() || r.Until.Before(summary.Until) {
			summary.Until, summary.Cause = r.Until, string(r.Cause)
		}
	}
	return summary
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
