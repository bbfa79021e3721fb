package daemon

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/mac"
	"flannel/subnet"
	"flannel/subnet/peerset"
)

// orphans are paths that the system has from an earlier run, of flanneld or of flannel, and to which no lease of the
// first complete set leads. A manager's memory of peers begins with that set, so what the store lost before only the
// system knows. Orphans stay for the retention time if they are more than a cluster loses by itself; see package
// peerset. The zero orphans: there are none.
type orphans struct {
	mu    sync.Mutex
	paths []*dataplane.Path // a slice that is never written to again
	until time.Time
	wake  func() // has the loop pass
}

// orphaned returns those of the found paths that are in nobody's way and that no lease leads to, if they are more than a
// cluster loses by itself; and how many paths have a lease. What the system holds does not say which subnets belong to
// one peer, so each family is judged alone.
func orphaned(found []*dataplane.Path, inForce claims) (missing []*dataplane.Path, present int) {
	missing = inForce.free(found)
	lost, kept := map[bool]int{}, map[bool]int{}
	for _, p := range missing {
		lost[p.Dst.Addr().Is6()]++
	}
	for _, p := range found {
		if inForce.leadsTo(p.Dst) {
			kept[p.Dst.Addr().Is6()]++
			present++
		}
	}
	if !peerset.Mass(lost[false], kept[false]) && !peerset.Mass(lost[true], kept[true]) {
		missing = nil
	}
	return missing, present
}

// claims are what only one path can have, of all paths in force.
type claims struct {
	subnets  []netip.Prefix // in the order of their addresses; none overlap
	peers    map[netip.Prefix]bool
	gateways map[netip.Addr]bool
	vteps    map[vtep]bool
}

type vtep struct {
	device string
	mac    mac.Addr
}

// claimsOf are those of the paths, and of this node: its own subnets and addresses.
func claimsOf(paths []*dataplane.Path, own subnet.Lease, addrs []netip.Addr) claims {
	c := claims{peers: make(map[netip.Prefix]bool, len(paths)), gateways: make(map[netip.Addr]bool, len(paths)), vteps: map[vtep]bool{}}
	for _, p := range paths {
		c.subnets = append(c.subnets, p.Dst)
		c.peers[p.Dst], c.gateways[p.Via] = true, true
		if end, tunnelled := p.VTEP(); tunnelled {
			c.vteps[vtep{p.Device, end}] = true
		}
	}
	for _, e := range own.Endpoints() {
		c.subnets = append(c.subnets, e.Subnet)
	}
	for _, a := range addrs {
		c.gateways[a] = true
	}
	slices.SortFunc(c.subnets, byAddr)
	return c
}

func byAddr(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) }

func (c claims) leadsTo(dst netip.Prefix) bool { return c.peers[dst] }

// taken reports whether a prefix overlaps a subnet in force. Since none of these overlap, that is the next one in order
// or the one before.
func (c claims) taken(dst netip.Prefix) bool {
	i, _ := slices.BinarySearchFunc(c.subnets, dst, byAddr)
	return i < len(c.subnets) && c.subnets[i].Overlaps(dst) || i > 0 && c.subnets[i-1].Overlaps(dst)
}

// free returns those of the paths, which are in the order of their subnets, that claim nothing of what is in force, nor
// of what one before them has.
func (c claims) free(paths []*dataplane.Path) []*dataplane.Path {
	var free []*dataplane.Path
	mine := map[vtep]bool{}
	for _, p := range paths {
		addr, tunnelled := p.VTEP()
		end := vtep{p.Device, addr}
		switch n := len(free); {
		case c.taken(p.Dst), c.gateways[p.Via], c.vteps[end]:
		case tunnelled && mine[end], n > 0 && free[n-1].Dst.Overlaps(p.Dst):
		default:
			free, mine[end] = append(free, p), true
		}
	}
	return free
}

// judge takes over what was found, if it is to be retained.
func (o *orphans) judge(found []*dataplane.Path, inForce claims, retain time.Duration, wake func(), log *slog.Logger) {
	missing, present := orphaned(found, inForce)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.paths = missing; len(missing) == 0 {
		return
	}
	o.until, o.wake = time.Now().Add(retain), wake
	time.AfterFunc(retain, wake)
	log.Error("the store lacks many peers that this node has routes to: retaining them; if they are gone for good: flanneld accept-withdrawal",
		"cause", subnet.MissingAtStart, "retained", len(missing), "present", present, "until", o.until.Round(time.Second))
}

// remaining returns those whose time is not over and that claim nothing of what is in force. The others are forgotten.
func (o *orphans) remaining(inForce func() claims, log *slog.Logger) (paths []*dataplane.Path, until time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.paths) == 0 {
		return nil, time.Time{}
	}
	if o.paths = inForce().free(o.paths); !time.Now().Before(o.until) {
		o.paths = nil
	}
	if len(o.paths) == 0 {
		log.Info("no peer is retained any longer of those that were missing at the start")
	}
	return o.paths, o.until
}

// accept lets all go, and returns how many they were.
func (o *orphans) accept(log *slog.Logger) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	count := len(o.paths)
	if count > 0 {
		log.Warn("the withdrawal was accepted: what was missing at the start goes", "retained", count)
		o.paths = nil
		o.wake()
	}
	return count
}

// AcceptWithdrawal lets all peers go that are retained, and returns how many they were; see subnet.Accepter. Of those
// that were missing at the start each subnet counts.
func (d *Daemon) AcceptWithdrawal() (count int) {
	if a, ok := d.Manager.(subnet.Accepter); ok {
		count = a.AcceptWithdrawal()
	}
	return count + d.orphans.accept(d.Log)
}

// apply brings the dataplane to the paths of the leases, and to those that are retained without one.
func (d *Daemon) apply(ctx context.Context, n *node, in *inbox, state dataplane.State) error {
	inForce := func() claims { return claimsOf(state.Paths, n.lease, n.addrs) }
	unread := d.judgeOrphans(ctx, n, in, &state, inForce)
	paths, until := d.orphans.remaining(inForce, d.Log)
	n.orphans, n.orphansUntil = nil, until
	for _, p := range paths {
		if _, found := n.links[p.Device]; found { // else it is of a former configuration by now
			n.orphans = append(n.orphans, p)
		}
	}
	if len(n.orphans) > 0 {
		state.Paths, state.Since, state.Changes = slices.Concat(state.Paths, n.orphans), nil, nil
	}
	err := n.attribute(d.Dataplane.Apply(ctx, n.links, state))
	return cmp.Or(err, unread) // what Apply cannot read either, it says itself
}

// judgeOrphans looks once at what the system holds. Until it could, because something could not be read or a device is
// not there yet, nothing may be deleted.
func (d *Daemon) judgeOrphans(ctx context.Context, n *node, in *inbox, state *dataplane.State, inForce func() claims) error {
	if n.judged || d.Settings.RetainPeers == 0 {
		return nil
	}
	missing := func(dev dataplane.Device) bool { _, found := n.links[dev.Name]; return !found }
	if state.Keep = state.Keep || slices.ContainsFunc(n.devices(), missing); state.Keep {
		return nil
	}
	found, err := d.Dataplane.Found(ctx, n.links, *state)
	if err != nil {
		state.Keep = true
		return err
	}
	n.judged = true
	d.orphans.judge(found, inForce(), d.Settings.RetainPeers, func() { poke(in.changed) }, d.Log)
	return nil
}
