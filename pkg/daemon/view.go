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

	"flannel/pkg/status"
	"flannel/subnet"
)

// View is what the loop leaves behind after each pass for those who ask how the node is. The zero View knows nothing.
type View struct {
	mu     sync.Mutex
	last   *seen
	errors []status.Error // the last that were met, oldest first
}

// seen is a node after a pass. What a node points to is never changed (but for the plan, which only passes use), so
// that keeping one costs nothing; what is to be said of it is worked out when somebody asks.
type seen struct {
	node
	settings Settings
	failed   []string // the parts that failed
	at       time.Time
	took     time.Duration
}

// keepErrors bounds how many errors a View remembers, and keepText how much of each, in bytes.
const (
	keepErrors = 10
	keepText   = 2000
)

func (v *View) set(n *node, s Settings, failed failures, took time.Duration) {
	for _, f := range failed {
		if slices.Contains(failed.parts(), f.part) {
			v.note(f.part, f.err)
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.last = &seen{*n, s, failed.parts(), time.Now(), took}
}

// note remembers an error; one that is known counts once more.
func (v *View) note(part string, err error) {
	text, now := err.Error(), time.Now()
	text = strings.ToValidUTF8(text[:min(len(text), keepText)], "")
	v.mu.Lock()
	defer v.mu.Unlock()
	one := status.Error{Part: part, Text: text, First: now}
	if i := slices.IndexFunc(v.errors, func(e status.Error) bool { return e.Part == part && e.Text == text }); i >= 0 {
		one = v.errors[i]
		v.errors = slices.Delete(v.errors, i, i+1)
	}
	one.Count++
	one.Last = now
	v.errors = append(v.errors[max(0, len(v.errors)+1-keepErrors):], one)
}

// Fill writes what is known of the node, its peers and the last errors into r.
func (v *View) Fill(r *status.Report) {
	v.mu.Lock()
	last := v.last
	r.Errors = append([]status.Error{}, v.errors...)
	v.mu.Unlock()
	r.Peers = []status.Peer{}
	if last == nil {
		return
	}
	r.Node, r.Advice = last.describe(), last.advice()
	r.Pending = last.pending
	r.PeersKnown = last.known
	r.Peers, r.Retained = last.list(), last.retainedPeers()
}

func (s *seen) describe() *status.Node {
	n := &status.Node{
		Backend: cmp.Or(s.lease.Backend, s.config.Backend), NFTables: s.config.NFTables,
		IPMasq: s.settings.IPMasq, SubnetFile: s.settings.SubnetFile, MTU: s.backend.MTU(),
		Underlay: status.Underlay{Name: s.link.Name, Index: s.link.Index, MTU: s.link.MTU},
		LastPass: s.at, Took: status.Duration(s.took),
	}
	for _, a := range []netip.Addr{s.link.V4, s.link.V6} {
		if a.IsValid() {
			n.Underlay.Addrs = append(n.Underlay.Addrs, a)
		}
	}
	for _, e := range s.lease.Endpoints() {
		one := status.Network{Network: s.config.V4.Prefix, Subnet: e.Subnet, PublicIP: e.PublicIP}
		if e.Subnet.Addr().Is6() {
			one.Network = s.config.V6.Prefix
		}
		if json.Valid(e.Data) {
			one.Data = e.Data
		}
		n.Networks = append(n.Networks, one)
	}
	for _, name := range slices.Sorted(maps.Keys(s.links)) {
		l := s.links[name]
		n.Devices = append(n.Devices, status.Device{Name: name, Index: l.Index, MTU: l.MTU, MAC: l.MAC.String()})
	}
	return n
}

// list tells of each peer in the order of the leases, then of those whose lease cannot even be read.
func (s *seen) list() []status.Peer {
	used := status.InStep
	if slices.Contains(s.failed, "devices") || slices.Contains(s.failed, "dataplane") {
		used = status.Behind
	}
	behind := make(map[string]string, len(s.behind))
	for _, r := range s.behind {
		behind[r.Name] = r.Reason
	}
	reasons := make(map[string]string, len(s.rejects))
	for _, r := range s.rejects {
		reasons[r.Name] = r.Reason
	}
	until := make(map[string]time.Time, len(s.retained))
	for _, r := range s.retained {
		until[r.Lease.Name] = r.Until
	}
	peers := make([]status.Peer, 0, len(s.peers)+len(s.rejects))
	for _, l := range s.peers {
		p := peer(l, used, reasons)
		if reason, found := behind[l.Name]; found {
			p.State, p.Reason = status.Behind, reason
		}
		if p.Until = until[l.Name]; p.State == status.InStep && !p.Until.IsZero() {
			p.State = status.RetainedPeer
		}
		peers = append(peers, p)
		delete(reasons, l.Name)
	}
	for _, r := range s.rejects {
		if reason, unread := reasons[r.Name]; unread {
			peers = append(peers, status.Peer{Name: r.Name, State: status.LeftOut, Reason: reason})
		}
	}
	for _, p := range s.orphans {
		peers = append(peers, status.Peer{Name: p.Dst.String(), State: status.RetainedPeer, Until: s.orphansUntil,
			Subnets: []netip.Prefix{p.Dst}, PublicIPs: []netip.Addr{p.Via}})
	}
	return peers
}

// retainedPeers sums up the retained peers, nil if there is none.
func (s *seen) retainedPeers() *status.Retained {
	if len(s.retained)+len(s.orphans) == 0 && !s.ownWithdrawn {
		return nil
	}
	sum := &status.Retained{Count: len(s.retained) + len(s.orphans), Own: s.ownWithdrawn}
	if len(s.orphans) > 0 {
		sum.Until, sum.Cause = s.orphansUntil, string(subnet.MissingAtStart)
	}
	for _, r := range s.retained {
		if sum.Until.IsZero() || r.Until.Before(sum.Until) {
			sum.Until, sum.Cause = r.Until, string(r.Cause)
		}
	}
	return sum
}

func peer(l *subnet.Lease, used status.State, reasons map[string]string) status.Peer {
	p := status.Peer{Name: l.Name, State: used}
	for _, e := range l.Endpoints() {
		p.Subnets, p.PublicIPs = append(p.Subnets, e.Subnet), append(p.PublicIPs, e.PublicIP)
	}
	if reason, out := reasons[l.Name]; out {
		p.State, p.Reason = status.LeftOut, reason
	} else if l.Backend == "" {
		p.State = status.Silent
	}
	return p
}
