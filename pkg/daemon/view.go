package daemon

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/status"
)

// view holds what the parts have told in the last pass for the Board, and the last
// errors. The loop writes it, and whoever asks the Board reads it. The zero view is from
// before the first pass.
type view struct {
	mu     sync.Mutex
	told   []told
	errors []status.Error // sorted by when they occurred last, the oldest first
}

// AddDataplane registers what a dataplane reports, also while no Daemon runs yet: the rules
// of an earlier run may be in force.
func AddDataplane(b *status.Board, plane dataplane.Dataplane) {
	b.Add(status.OfDataplane, func(r *status.Report) {
		r.Guard, r.Forwarded, r.LostPods = plane.Guarded(), plane.Forwarded(), plane.PodsWithoutEndpoint()
	})
}

// addToBoard registers what this daemon and the parts of its passes report. Run calls it
// once; the Board calls the functions whenever somebody asks, on any goroutine.
func (d *Daemon) addToBoard() {
	d.Board.Add(status.OfNode, func(r *status.Report) {
		d.view.fill(status.OfNode, r)
		r.Errors, r.LeaseExpires = append(r.Errors, d.view.lastErrors()...), d.Manager.Expires()
	})
	d.Board.Add(status.OfPeers, func(r *status.Report) {
		d.view.fill(status.OfPeers, r)
		addTunnels(r.Peers, d.Dataplane.Traffic())
		d.Probes.Fill(r.Peers)
	})
}

// Limits of the errors that a view keeps. An error may name thousands of entries.
const (
	maxErrors    = 10   // different ones; the one that occurred least recently is dropped
	maxErrorText = 2000 // bytes
)

// set records what the parts have told in a pass, and the errors of those that failed.
// Errors that only mean that the store is waited for are not recorded.
func (v *view) set(told []told, failed failures) {
	for _, f := range failed {
		if slices.Contains(failed.parts(), f.part) {
			v.addError(f.part, f.err)
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.told = told
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

// lastErrors returns the last errors of passes.
func (v *view) lastErrors() []status.Error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.errors)
}

// fill has the parts of the last pass fill r for a part of the Board, such as
// status.OfNode.
func (v *view) fill(part string, r *status.Report) {
	v.mu.Lock()
	last := v.told // set replaces the slice, and nobody modifies it
	v.mu.Unlock()
	for _, t := range last {
		if t.part == part {
			t.fill(r)
		}
	}
}

// addTunnels adds what the tunnels know about the peers. With one device for both families, both subnets of a peer have
// the same tunnel.
func addTunnels(peers []status.Peer, traffic map[netip.Prefix]dataplane.TunnelReport) {
	for i := range peers {
		for _, s := range peers[i].Subnets {
			tunnel, ok := traffic[s]
			if ok && !slices.Contains(peers[i].Tunnels, tunnel) {
				peers[i].Tunnels = append(peers[i].Tunnels, tunnel)
			}
		}
	}
}

// tellNode says what is in force. Data of a lease that is not JSON is left out, since
// the report is JSON.
func (p *pass) tellNode(settings Settings) {
	n, at, took := *p.node, time.Now(), p.took // the loop modifies the node in the next pass
	p.tell(status.OfNode, func(r *status.Report) {
		r.Node = &status.Node{
			Backend: cmp.Or(n.lease.Backend, n.config.Backend), NFTables: n.config.NFTables,
			IPMasq: settings.IPMasq, SubnetFile: settings.SubnetFile, MTU: n.backend.MTU(),
			Underlay: status.Underlay{Name: n.host.link.Name, Index: n.host.link.Index, MTU: n.host.link.MTU, AtStart: n.host.link.AtStart},
			LastPass: at, Took: status.Duration(took),
		}
		for _, a := range []netip.Addr{n.host.link.V4, n.host.link.V6} {
			if a.IsValid() {
				r.Node.Underlay.Addrs = append(r.Node.Underlay.Addrs, a)
			}
		}
		for _, e := range n.lease.Endpoints() {
			network := status.Network{Network: n.config.NetworkOf(e.Subnet.Addr()).Prefix, Subnet: e.Subnet, PublicIP: e.PublicIP}
			if json.Valid(e.Data) {
				network.Data = e.Data
			}
			r.Node.Networks = append(r.Node.Networks, network)
		}
	})
}
