// Package plan turns the peers' leases into paths. A peer's lease is foreign input: what cannot be believed leaves
// that peer out, with a reason, and never touches another. A Plan is pure but for its memory of what it worked out
// for leases that have not changed, which makes one peer's change cost one peer's work.
package plan

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"flannel/backend"
	"flannel/pkg/dataplane"
	"flannel/pkg/mac"
	"flannel/subnet"
)

// Plan is for one configuration, one local lease and one backend; when one of them changes, make a new one.
type Plan struct {
	cfg     subnet.Config
	local   subnet.Lease
	backend backend.Backend
	addrs   []netip.Addr   // the node's, in order
	tunnel  backend.Tunnel // the backend, if it is one; else nil
	own     map[claim]bool // the VTEP addresses in it; value: derived from our subnet

	begun  bool                    // the first Update has taken in the whole set
	peers  map[*subnet.Lease]*peer // what each lease comes to
	stale  []*peer                 // those to be judged again, because the node's addresses changed
	silent int                     // leases whose owner has yet to describe itself

	// While nobody claims what another has, and nobody's subnet has an odd size, no peer can be in another's way.
	claims map[claim]*peer      // who claims it; of several, one of them
	rivals map[claim][]*peer    // what several claim, and all who do
	odd    map[*peer]struct{}   // those with a subnet of another size than the usual one
	better map[*peer]struct{}   // those that have a VTEP address of ours before us
	inside map[*peer]struct{}   // those with a public IP inside the pod network
	hosts  map[netip.Prefix]int // how many of these public IPs lie in a subnet of the usual size

	bad       map[*peer]struct{} // those that are rejected on their own
	lost      map[*peer]string   // those that are rejected for the sake of another, and why
	contested bool               // lost may be out of date: somebody who has a conflict came or went

	paths   []*dataplane.Path // as returned last; never written to again
	rejects []subnet.Rejected // likewise
}

// peer is a lease judged on its own.
type peer struct {
	lease  *subnet.Lease
	paths  []*dataplane.Path
	odd    bool
	reason string  // why it is rejected
	local  bool    // and the others may not reject it
	better []claim // the VTEP addresses of ours that it has before us
	used   bool    // its paths are in Plan.paths
	gone   bool    // it is not in Plan.peers any more
}

func comparePeers(a, b *peer) int { return subnet.Compare(a.lease, b.lease) }

// claim is something that only one peer can have: a subnet, or a VTEP address on a device.
type claim struct {
	subnet netip.Prefix
	device string
	mac    mac.Addr
}

// vtep is the claim to the VTEP address that a path through a tunnel leads to.
func vtep(path *dataplane.Path) claim {
	end, _ := path.VTEP()
	return claim{device: path.Device, mac: end}
}

// claims are worked out when asked for: kept, they would be the largest part of a plan.
func (one *peer) claims() iter.Seq[claim] {
	return func(yield func(claim) bool) {
		for _, path := range one.paths {
			if !yield(claim{subnet: path.Dst}) {
				return
			}
			if _, tunnelled := path.VTEP(); tunnelled && !yield(vtep(path)) {
				return
			}
		}
	}
}

// New returns a plan without peers. local is our own lease as published.
func New(cfg subnet.Config, local subnet.Lease, b backend.Backend) *Plan {
	// Kubernetes gives subnets of a length of its own. What all nodes have is the usual one, whatever the configuration
	// says: else every peer would be compared with every other.
	if s := local.V4.Subnet; s.IsValid() {
		cfg.V4.SubnetLen = s.Bits()
	}
	if s := local.V6.Subnet; s.IsValid() {
		cfg.V6.SubnetLen = s.Bits()
	}
	p := &Plan{cfg: cfg, local: local, backend: b, own: map[claim]bool{}, claims: map[claim]*peer{},
		rivals: map[claim][]*peer{}, odd: map[*peer]struct{}{}, better: map[*peer]struct{}{}, inside: map[*peer]struct{}{},
		hosts: map[netip.Prefix]int{}, bad: map[*peer]struct{}{}}
	if p.tunnel, _ = b.(backend.Tunnel); p.tunnel != nil {
		ends, _ := p.tunnel.Ends(&local) // an error: we have not described ourselves yet
		for _, end := range ends {
			p.own[vtep(end)] = p.tunnel.Derived(end)
		}
	}
	return p
}

// SetAddrs takes in which addresses the node has, in order: no peer can be at one of them. The next Update judges those
// again whose public IP the node got or lost; the others cost a look. The slice must not be changed afterwards.
func (p *Plan) SetAddrs(addrs []netip.Addr) {
	if slices.Equal(addrs, p.addrs) {
		return
	}
	changed := map[netip.Addr]bool{} // those that only one of the two lists holds
	had, has := p.addrs, addrs
	for len(had) > 0 || len(has) > 0 {
		switch {
		case len(has) == 0 || len(had) > 0 && had[0].Less(has[0]):
			changed[had[0]], had = true, had[1:]
		case len(had) == 0 || has[0].Less(had[0]):
			changed[has[0]], has = true, has[1:]
		default:
			had, has = had[1:], has[1:]
		}
	}
	p.addrs = addrs
	for _, one := range p.peers {
		if changed[one.lease.V4.PublicIP] || changed[one.lease.V6.PublicIP] {
			p.stale = append(p.stale, one)
		}
	}
}

func among(addrs []netip.Addr, ip netip.Addr) bool {
	_, found := slices.BinarySearchFunc(addrs, ip, netip.Addr.Compare)
	return found
}

// Silent tells how many of the leases have an owner that has yet to describe itself: neither paths nor rejected.
func (p *Plan) Silent() int { return p.silent }

// Outranked returns the devices whose MAC address another lease has before ours, and that lease's name: the other nodes
// reject ours for as long as both have it. One that is derived from our own subnet nobody has before us.
func (p *Plan) Outranked() map[string]string {
	by := map[string]string{}
	for _, one := range slices.SortedFunc(maps.Keys(p.better), precedence) {
		for _, c := range one.better {
			by[c.device] = cmp.Or(by[c.device], one.lease.Name)
		}
	}
	return by
}
