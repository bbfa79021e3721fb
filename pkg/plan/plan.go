// Package plan translates the peers' leases into paths. A lease is written by another node, so it is untrusted: an
// invalid lease gets its peer rejected, with a reason, and does not affect any other peer. A Plan does no I/O. It keeps
// what it computed for each lease, so that a change of one lease costs the work for one peer.
package plan

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"flannel/backend"
	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
	"flannel/subnet"
)

// Plan belongs to one configuration, one local lease and one backend; when one of them changes, make a new Plan. It is
// not safe for concurrent use: only the daemon's loop uses it, in the parts peers, duplicates and twins. The steps of
// an Update are in update.go, the validation of one lease is in validate.go, and conflicts between leases are in
// conflicts.go and loops.go.
//
// A subnet is of unusual size if its length differs from that of this node's subnet. Subnets of the usual size are
// either equal or disjoint, so a map finds their conflicts; only subnets of unusual size need to be compared with others.
type Plan struct {
	cfg     subnet.Config
	local   subnet.Lease
	backend backend.Backend
	addrs   []netip.Addr      // of this node, sorted
	anyLink bool              // a peer that is not on the link of this node is valid, too: only for judge.Elsewhere
	wire    backend.Wire      // what nodes must have in common to reach each other
	ownEnds map[resource]bool // tunnel ends of this node (MAC address of the VTEP, or key); the value: it is derived from our subnet

	started    bool                                       // the first Update has read the whole set
	peers      reconcile.CompactMap[*subnet.Lease, *peer] // the result for each lease
	revalidate []*peer                                    // affected by a change of addrs, for the next Update
	pending    int                                        // leases whose owners have not published backend data yet

	holders      holders              // for each resource, one of the valid peers that claim it
	claimants    map[resource][]*peer // all who claim it, for resources that several peers claim
	unusual      map[*peer]struct{}   // with a subnet of unusual size
	outranking   map[*peer]struct{}   // that have precedence over this node for one of its tunnel ends
	inside       map[*peer]struct{}   // valid and not pending, with a public IP inside the pod network
	hostSubnets  map[netip.Prefix]int // how many of these public IPs each subnet of the usual size contains
	twins        map[*peer]struct{}   // with the public IP of this node
	invalid      map[*peer]struct{}   // rejected whatever other leases there are
	conflicting  map[*peer]string     // rejected because of another lease (a conflict or a loop), with the reason
	needsResolve bool                 // conflicting is stale: a peer that may be in a conflict was added or removed

	paths   []*dataplane.Path // as the last Update returned them; never modified in place
	rejects []subnet.Rejected // likewise
}

// peer is the result for one lease, computed without regard to the other leases.
type peer struct {
	lease    *subnet.Lease
	paths    []*dataplane.Path
	*verdict      // of most peers, it is unremarkable
	unusual  bool // one of its subnets is of unusual size (see Plan)
	active   bool // its paths are in Plan.paths
}

// verdict is what is said of few leases. It is never modified.
type verdict struct {
	reason   string     // why the lease is invalid; "": it is valid
	other    error      // for judge.Check: wraps subnet.ErrOtherConfig; nil: the owner has no other configuration that can be seen
	local    bool       // reason concerns something of this node, so other nodes may accept the lease
	twin     bool       // reason is that it has the public IP of this node, of which the daemon warns
	outranks []resource // tunnel ends of this node that other nodes attribute to the peer
}

// unremarkable is the verdict of a valid lease without anything that verdict has a field for.
var unremarkable verdict

// comparePeers orders peers as subnet.Compare their leases.
func comparePeers(a, b *peer) int { return subnet.Compare(a.lease, b.lease) }

// resource is something that only one peer can have: either a subnet, or a tunnel end (the MAC address of a VTEP, a key of
// WireGuard) on a device.
type resource struct {
	subnet netip.Prefix
	device string
	end    dataplane.End
}

// holders maps resources to peers. Each kind of resource has a map of its own, since the
// keys of one map for all would be several times larger.
type holders struct {
	peers   int // expected, with a subnet each, and a tunnel end on the first device
	subnets reconcile.CompactMap[netip.Prefix, *peer]
	devices map[string]*ends
}

// ends maps the tunnel ends of a device to peers.
type ends struct {
	macs reconcile.CompactMap[dataplane.MAC, *peer]
	keys reconcile.CompactMap[dataplane.PublicKey, *peer]
}

// expect makes room for the resources of that many peers: the maps do not grow step by step in the first Update.
func (h *holders) expect(peers int) {
	h.peers = peers
	h.subnets.Reserve(peers)
}

// get returns the holder of a resource; nil: there is none.
func (h *holders) get(r resource) (p *peer) {
	switch of := h.devices[r.device]; {
	case r.subnet.IsValid():
		p, _ = h.subnets.Get(r.subnet)
	case of == nil:
	case r.end.Key != (dataplane.PublicKey{}):
		p, _ = of.keys.Get(r.end.Key)
	default:
		p, _ = of.macs.Get(r.end.MAC)
	}
	return p
}

// set makes a peer the holder of a resource.
func (h *holders) set(r resource, p *peer) {
	if r.subnet.IsValid() {
		h.subnets.Set(r.subnet, p)
		return
	}
	expected := 0
	if len(h.devices) == 0 { // the first device; a second one may have few peers
		expected = h.peers
	}
	of := h.devices[r.device]
	if of == nil {
		of = &ends{}
		h.devices[r.device] = of
	}
	if r.end.Key != (dataplane.PublicKey{}) {
		of.keys.Reserve(expected)
		of.keys.Set(r.end.Key, p)
	} else {
		of.macs.Reserve(expected)
		of.macs.Set(r.end.MAC, p)
	}
}

// remove records that a resource has no holder.
func (h *holders) remove(r resource) {
	if r.subnet.IsValid() {
		h.subnets.Delete(r.subnet)
	} else if of := h.devices[r.device]; of != nil { // an end is a MAC address or a key; the other one is zero, and in no map
		of.macs.Delete(r.end.MAC)
		of.keys.Delete(r.end.Key)
	}
}

// tunnelEnd returns the tunnel end that a path leads to; its end is zero if the path does not use a tunnel.
func tunnelEnd(path *dataplane.Path) resource {
	end, _ := path.End()
	return resource{device: path.Device, end: end}
}

// claims yields the resources that the peer claims. They are computed on each call: stored, they would be the largest
// part of a Plan.
func (p *peer) claims() iter.Seq[resource] {
	return func(yield func(resource) bool) {
		for i, path := range p.paths {
			if !yield(resource{subnet: path.Dst}) {
				return
			}
			if _, tunnelled := path.End(); !tunnelled || i > 0 && tunnelEnd(path) == tunnelEnd(p.paths[0]) {
				continue // one WireGuard device may carry both families
			}
			if !yield(tunnelEnd(path)) {
				return
			}
		}
	}
}

// New returns a Plan without peers. local is this node's lease as published.
func New(cfg subnet.Config, local subnet.Lease, b backend.Backend) *Plan {
	// Kubernetes may assign subnets of another length than the configuration has. The usual length is the one that nodes
	// really have: otherwise every subnet would be of unusual size, and be compared with all others.
	if s := local.V4.Subnet; s.IsValid() {
		cfg.V4.SubnetLen = s.Bits()
	}
	if s := local.V6.Subnet; s.IsValid() {
		cfg.V6.SubnetLen = s.Bits()
	}
	p := &Plan{cfg: cfg, local: local, backend: b, wire: b.Wire(), ownEnds: map[resource]bool{}, holders: holders{devices: map[string]*ends{}},
		claimants: map[resource][]*peer{}, unusual: map[*peer]struct{}{}, outranking: map[*peer]struct{}{},
		inside: map[*peer]struct{}{}, hostSubnets: map[netip.Prefix]int{}, invalid: map[*peer]struct{}{}, twins: map[*peer]struct{}{}}
	ends, _ := b.Ends(&local) // an error means that our lease has no backend data yet
	for _, end := range ends {
		p.ownEnds[tunnelEnd(end)] = b.Derived(end)
	}
	return p
}

// SetAddrs sets the sorted addresses of this node, and reports whether they changed; a peer whose public IP is one of them is
// rejected. The next Update validates the peers again whose public IP was added or removed. The caller must not modify the
// slice afterwards.
func (p *Plan) SetAddrs(addrs []netip.Addr) (changed bool) {
	if slices.Equal(addrs, p.addrs) {
		return false
	}
	before := p.addrs
	p.addrs = addrs
	for _, peer := range p.peers.All() {
		if slices.ContainsFunc(peer.lease.Endpoints(), func(e subnet.Endpoint) bool {
			return contains(before, e.PublicIP) != contains(addrs, e.PublicIP)
		}) {
			p.revalidate = append(p.revalidate, peer)
		}
	}
	return true
}

// contains reports whether ip is one of the sorted addresses.
func contains(addrs []netip.Addr, ip netip.Addr) bool {
	_, found := slices.BinarySearchFunc(addrs, ip, netip.Addr.Compare)
	return found
}

// Pending returns the number of leases whose owners have not published backend data yet. They have no paths, and are
// not rejected either.
func (p *Plan) Pending() int { return p.pending }

// Twins returns the names of the leases with the public IP of this node, in the order of subnet.Compare.
func (p *Plan) Twins() (names []string) {
	for _, peer := range slices.SortedFunc(maps.Keys(p.twins), comparePeers) {
		names = append(names, peer.lease.Name)
	}
	return names
}

// Outranked maps each device whose MAC address or key another lease also has, with precedence over ours, to that lease's
// name. All other nodes reject our lease for as long as both have it. Nobody has precedence over this node for an address
// that is derived from our own subnet.
func (p *Plan) Outranked() map[string]string {
	by := map[string]string{}
	for _, peer := range slices.SortedFunc(maps.Keys(p.outranking), comparePrecedence) {
		for _, r := range peer.outranks {
			by[r.device] = cmp.Or(by[r.device], peer.lease.Name)
		}
	}
	return by
}
