package daemon

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
	"flannel/pkg/status"
	"flannel/subnet"
)

// orphans are paths without a lease: the system has them from an earlier run of
// flanneld or flannel, and the first complete set of leases does not have them.
// The lease manager retains peers that disappear from the store while it runs
// (see package peerset), but not those that disappeared before it started. If
// more paths have no lease than a cluster normally loses at once, the store has
// probably lost data, so they stay for the retention time.
//
//	state      cause                                            next       action
//	unknown    the paths of the system were read: few orphans   none       the dataplane deletes them
//	unknown    the paths of the system were read: many orphans  retained   log, start the timer
//	retained   a path in force needs a resource of an orphan    retained   drop that orphan; none if it was the last
//	retained   the retention time is over                       none       the dataplane deletes them
//	retained   flanneld accept-withdrawal                       none       the dataplane deletes them
//
// Until the state is known (orphansState.known), the dataplane deletes nothing. The
// loop calls all methods but release, which flanneld accept-withdrawal causes on a
// goroutine of the status socket; hence mu. The zero orphans has no paths.
type orphans struct {
	mu     sync.Mutex
	paths  []*dataplane.Path // never modified in place
	until  time.Time
	notify func() // causes a pass of the loop
}

// findOrphans returns the found paths without a lease, if they are to be
// retained (subnet.IsMass: more than three, and more than a fifth of all), and
// the number of paths with a lease. The system does not record which IPv4 and
// IPv6 subnets belong to the same peer, so each family is counted alone.
func findOrphans(found []*dataplane.Path, inForce resources) (missing []*dataplane.Path, present int) {
	missing = inForce.withoutConflict(found)
	lost, kept := map[bool]int{}, map[bool]int{} // key: IPv6
	for _, path := range missing {
		lost[path.Dst.Addr().Is6()]++
	}
	for _, path := range found {
		if inForce.leased[path.Dst] {
			kept[path.Dst.Addr().Is6()]++
			present++
		}
	}
	if !subnet.IsMass(lost[false], kept[false]) && !subnet.IsMass(lost[true], kept[true]) {
		missing = nil
	}
	return missing, present
}

// resources are those that the paths in force and this node use. No other path
// may use one of them.
type resources struct {
	subnets  []netip.Prefix        // of peers, sorted by address, without overlaps
	own      []netip.Prefix        // of this node
	leased   map[netip.Prefix]bool // the subnets of peers
	gateways map[netip.Addr]bool   // the addresses of peers, and of this node
	ends     map[tunnelEnd]bool    // of the peers' tunnels
}

// tunnelEnd identifies the end of a tunnel: the kernel has one FDB entry for
// each MAC address of a device and one WireGuard peer for each key, so only the
// two paths to one node (IPv4 and IPv6) can share an end.
type tunnelEnd struct {
	device string
	end    dataplane.End
}

// resourcesOf returns the resources of the paths, and those of this node: its
// subnets and its addresses.
func resourcesOf(paths []*dataplane.Path, own subnet.Lease, addrs []netip.Addr) resources {
	r := resources{leased: make(map[netip.Prefix]bool, len(paths)),
		gateways: make(map[netip.Addr]bool, len(paths)), ends: map[tunnelEnd]bool{}}
	for _, path := range paths {
		r.subnets = append(r.subnets, path.Dst)
		r.leased[path.Dst], r.gateways[path.Via] = true, true
		if end, tunnelled := path.End(); tunnelled {
			r.ends[tunnelEnd{path.Device, end}] = true
		}
	}
	for _, e := range own.Endpoints() {
		r.own = append(r.own, e.Subnet)
	}
	for _, a := range addrs {
		r.gateways[a] = true
	}
	slices.SortFunc(r.subnets, compareAddrs)
	return r
}

func compareAddrs(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) }

// inUse reports whether the subnet of a path is in use: it overlaps one of this node,
// or a peer has the subnet or a part of it. It is not in use if a peer has a larger
// subnet around it: one such lease could take the paths of all orphans, and a plan would
// reject it if their leases were there. The kernel prefers the longer prefix.
func (r resources) inUse(dst netip.Prefix) bool {
	if slices.ContainsFunc(r.own, dst.Overlaps) {
		return true
	}
	// Since the subnets are sorted and do not overlap each other, only the first one
	// that does not begin before dst can be a part of it.
	i, _ := slices.BinarySearchFunc(r.subnets, dst, compareAddrs)
	return i < len(r.subnets) && r.subnets[i].Bits() >= dst.Bits() && dst.Contains(r.subnets[i].Addr())
}

// withoutConflict returns those of the paths that need none of the resources,
// nor one of a path before them. The paths must be sorted by destination, as
// Dataplane.Found returns them.
func (r resources) withoutConflict(paths []*dataplane.Path) (free []*dataplane.Path) {
	// Because of the order, a path can only overlap the one that was added last. The
	// end of a direct path never counts as shared.
	ends := map[tunnelEnd]*dataplane.Path{} // of the paths in free
	for _, path := range paths {
		end, tunnelled := path.End()
		key := tunnelEnd{path.Device, end}
		switch n := len(free); {
		case r.inUse(path.Dst), r.gateways[path.Via], r.ends[key]: // conflicts with what is in force
		case tunnelled && ends[key] != nil && !sameNode(ends[key], path), n > 0 && free[n-1].Dst.Overlaps(path.Dst): // with a path before
		default:
			free, ends[key] = append(free, path), path
		}
	}
	return free
}

// sameNode reports whether two paths to one tunnel end are those to the IPv4 and
// the IPv6 subnet of one node.
func sameNode(a, b *dataplane.Path) bool {
	return a.Dst.Addr().Is4() != b.Dst.Addr().Is4() && a.Encap == b.Encap
}

// retain keeps the orphans among the found paths for the retention time, if
// there are enough of them. Without a call of it, and after one that finds few, o has no paths.
func (o *orphans) retain(found []*dataplane.Path, inForce resources, retention time.Duration, notify func(), log *slog.Logger) {
	missing, present := findOrphans(found, inForce)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.paths = missing; len(missing) == 0 {
		return
	}
	o.until, o.notify = time.Now().Add(retention), notify
	log.Error("the store lacks many peers that this node has routes to, retaining the routes; if these peers are gone for good, run flanneld accept-withdrawal",
		"cause", subnet.MissingAtStart, "retained", len(missing), "present", present, "until", o.until.Round(time.Second))
}

// prune drops the orphans that free does not return (it is only called if there are any),
// and all of them when the retention time is over. It returns the remaining ones.
func (o *orphans) prune(free func([]*dataplane.Path) []*dataplane.Path, log *slog.Logger) (paths []*dataplane.Path, until time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.paths) == 0 {
		return nil, time.Time{}
	}
	o.paths = free(o.paths)
	if !time.Now().Before(o.until) {
		o.paths = nil
	}
	if len(o.paths) == 0 {
		log.Info("no route of a peer that was missing at the start is retained any longer")
	}
	return o.paths, o.until
}

// release drops all orphans, and returns how many there were. With orphans, notify is set
// (retain).
func (o *orphans) release(log *slog.Logger) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	count := len(o.paths)
	if count > 0 {
		log.Warn("withdrawal accepted, removing the routes of peers that were missing at the start", "retained", count)
		o.paths = nil
		o.notify()
	}
	return count
}

// AcceptWithdrawal stops retaining peers, and returns how many were retained;
// see subnet.Manager. Of the peers that were missing at the start, each subnet
// counts. A nil Daemon retains none.
func (d *Daemon) AcceptWithdrawal() int {
	if d == nil {
		return 0
	}
	return d.Manager.AcceptWithdrawal() + d.orphans.release(d.Log)
}

// orphansPart keeps paths of an earlier run that have no lease; see type orphans.
func (d *Daemon) orphansPart() part {
	o := &orphansState{d: d}
	return part{name: partPaths, reconcile: o.reconcile, needsPeers: true, report: o.report}
}

// orphansState is the part's own state, of the loop alone. When the daemon joins again, a new
// one finds the orphans again, as at a start: the store's set of peers is new, too, and what
// the former set retained is only in the system. The retention time begins anew.
type orphansState struct {
	d     *Daemon
	known bool              // see type orphans; stays true
	held  []*dataplane.Path // of orphans.paths those that the dataplane is given
	until time.Time         // the end of the retention time; zero: no orphans
	// The orphans were pruned by these in the last pass (see free). Without orphans, the fields are empty.
	leased []*dataplane.Path
	lease  subnet.Lease // this node's
	addrs  []netip.Addr
}

// reconcile adds the orphans to the desired state, which has the paths of the leases.
// Its error is left to the paths part, in p.unfound.
func (o *orphansState) reconcile(ctx context.Context, p *pass) error {
	leased := p.state.Paths
	p.unfound = o.find(ctx, p, func() resources { return resourcesOf(leased, p.lease, p.host.addrs) })
	var paths []*dataplane.Path
	paths, o.until = o.d.orphans.prune(func(orphans []*dataplane.Path) []*dataplane.Path { return o.free(p, orphans) }, o.d.Log)
	o.held, o.leased, o.lease, o.addrs = nil, nil, subnet.Lease{}, nil
	if len(paths) > 0 {
		p.wakeAt(o.until)
		o.leased, o.lease, o.addrs = leased, p.lease, p.host.addrs
	}
	for _, path := range paths {
		if _, found := p.links[path.Device]; found { // otherwise the device belongs to a former configuration
			o.held = append(o.held, path)
		}
	}
	// Since and Changes describe the leases' paths only: without them the dataplane
	// compares the lists.
	if len(o.held) > 0 {
		p.state.Paths, p.state.Since, p.state.Changes = slices.Concat(leased, o.held), nil, nil
	}
	return nil
}

// free returns the orphans that do not conflict with what has come into force since the call
// before: to compare them with all 10,000 peers in each pass would take tens of milliseconds.
// The first call, and each one after a change of this node's lease or addresses, compares
// them with everything.
func (o *orphansState) free(p *pass, orphans []*dataplane.Path) []*dataplane.Path {
	if !o.lease.Equal(&p.lease) || !slices.Equal(o.addrs, p.host.addrs) {
		return resourcesOf(p.state.Paths, p.lease, p.host.addrs).withoutConflict(orphans)
	}
	added, _ := dataplane.DiffPaths(o.leased, p.state) // the paths that were not in force at the call before
	if len(added) == 0 {
		return orphans
	}
	return resourcesOf(added, subnet.Lease{}, nil).withoutConflict(orphans)
}

// find reads once which paths the system has, before the dataplane can delete any of
// them. As long as this fails, or a device does not exist yet, it sets Keep in the
// desired state, so that nothing is deleted. Without a retention time, it does nothing,
// and the dataplane deletes all paths without a lease.
func (o *orphansState) find(ctx context.Context, p *pass, inForce func() resources) error {
	if o.known || o.d.Settings.RetainPeers == 0 {
		return nil
	}
	missing := func(dev dataplane.Device) bool { _, found := p.links[dev.Name]; return !found }
	if p.state.Keep = p.state.Keep || slices.ContainsFunc(p.devices(), missing); p.state.Keep {
		return nil
	}
	found, err := o.d.Dataplane.Found(ctx, p.links, p.state)
	if err != nil {
		p.state.Keep = true
		return err
	}
	o.known = true
	changed := p.in.changed
	o.d.orphans.retain(found, inForce(), o.d.Settings.RetainPeers, func() { reconcile.Notify(changed) }, o.d.Log)
	return nil
}

// report adds the orphans to the peers and to what is said about all of them.
func (o *orphansState) report(p *pass) {
	held, until := o.held, o.until
	if len(held) == 0 {
		return
	}
	// The functions of the part peers, which comes before this one, have filled r with its peers.
	p.tell(status.OfNode, func(r *status.Report) {
		r.Counts.Used, r.Counts.Retained = r.Counts.Used+len(held), r.Counts.Retained+len(held)
		if r.Retained == nil {
			r.Retained = &status.Retained{}
		}
		r.Retained.Count += len(held)
		if r.Retained.Until.IsZero() || !r.Retained.Until.Before(until) {
			r.Retained.Until, r.Retained.Cause = until, string(subnet.MissingAtStart)
		}
	})
	p.tell(status.OfPeers, func(r *status.Report) {
		for _, path := range held {
			r.Peers = append(r.Peers, status.Peer{Name: path.Dst.String(), State: status.RetainedPeer, Until: until,
				Subnets: []netip.Prefix{path.Dst}, PublicIPs: []netip.Addr{path.Via}})
		}
	})
}
