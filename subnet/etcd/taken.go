package etcd

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"

	"flannel/subnet"
)

// taken are the subnets that a new lease must not have, or should not, for Acquire.
//
// A key of a subnet's own length cannot be created again, whatever its value is. Any
// other key is either left from an earlier configuration, and its node's pods may
// have these addresses, or somebody wrote it: one such key could occupy the whole
// network. So they are avoided for as long as there are other free subnets, and then
// ignored one after the other, those first that nobody uses:
//
//	key                                     subnet of the subnet file  new subnet
//	of the usual length                     avoided                    avoided
//	of the whole network, or outside        ignored                    ignored
//	of another length, rejected             ignored                    avoided first
//	of another length, valid and larger     ignored                    avoided first, the largest are ignored before the others
//	of another length, valid and smaller    ignored                    avoided
//
// The usual length is SubnetLen of the configuration. A lease is rejected if the Judge, who
// says which leases nodes use, refuses it or prefers another. A lease of another configuration
// (subnet.ErrOtherConfig) counts as valid here, because its node uses it. Keys of another
// length are ignored for the subnet of the subnet file, because that subnet was this
// node's, and nodes with a subnet of the usual length prefer a lease of that length to an
// overlapping one of another.
type taken struct {
	cfg     subnet.Config
	all     []record        // the leases of all records, reduced to the subnets in the network
	rivals  []*subnet.Lease // what the subnet of the subnet file must not overlap: the left column of the table
	ignored map[string]bool // by key, what is ignored for a new subnet, too; nil: nothing was judged yet
}

// newTaken returns the subnets that the records occupy. The subnets of all readable
// keys are taken, even if their values are not readable. Those of our own former leases
// (former) are taken for a new subnet, because pods may still have their addresses, but
// this node may have its former subnet again.
func newTaken(cfg subnet.Config, records, former []record) taken {
	t := taken{cfg: cfg, all: make([]record, 0, len(records)), rivals: make([]*subnet.Lease, 0, len(records))}
	holds := func(n subnet.Network, e subnet.Endpoint) subnet.Endpoint { // e, or nothing if it is not a part of n
		if n.Holds(e.Subnet) {
			return e
		}
		return subnet.Endpoint{}
	}
	for _, r := range records {
		r.lease = reduced(r.lease, holds(cfg.V4, r.lease.V4), holds(cfg.V6, r.lease.V6))
		t.all = append(t.all, r)
		if !slices.ContainsFunc(former, func(f record) bool { return f.key == r.key }) {
			t.rivals = append(t.rivals, reduced(r.lease, t.usual(r.lease.V4), t.usual(r.lease.V6)))
		}
	}
	return t
}

// reduced returns a lease with these endpoints, each of which is that of l or none: l itself
// if it has them, as almost all of thousands do.
func reduced(l *subnet.Lease, v4, v6 subnet.Endpoint) *subnet.Lease {
	if v4.Subnet == l.V4.Subnet && v6.Subnet == l.V6.Subnet {
		return l
	}
	return &subnet.Lease{V4: v4, V6: v6}
}

// usual returns e if its subnet has the length of this node's, or else no subnet.
func (t *taken) usual(e subnet.Endpoint) subnet.Endpoint {
	if e.On() && e.Subnet.Bits() == t.cfg.NetworkOf(e.Subnet.Addr()).SubnetLen {
		return e
	}
	return subnet.Endpoint{}
}

// isUsual reports whether all subnets of the record have the length of this node's.
func (t *taken) isUsual(r record) bool {
	return t.usual(r.lease.V4).Subnet == r.lease.V4.Subnet && t.usual(r.lease.V6).Subnet == r.lease.V6.Subnet
}

// leases returns the leases that a new subnet must not overlap. An ignored key that has
// subnets of the usual length, too, keeps these.
func (t *taken) leases() (avoid []*subnet.Lease) {
	for _, r := range t.all {
		l := r.lease
		if t.ignored[r.key] {
			l = &subnet.Lease{V4: t.usual(l.V4), V6: t.usual(l.V6)}
		}
		avoid = append(avoid, l)
	}
	return avoid
}

// ignoreRejected ignores the keys of another length whose leases are rejected, and
// returns their number. judge must not know this node's own subnets (Judge.Elsewhere), or
// it would reject the leases that have them.
func (t *taken) ignoreRejected(judge subnet.Judge) (count int) {
	t.ignored = map[string]bool{}
	byLease := map[*subnet.Lease]record{} // of valid
	var valid []*subnet.Lease
	for _, r := range t.all {
		l, err := parseLease(r.name, r.kv.Value)
		if err == nil {
			l.Name, l.Since = r.key, r.kv.CreateRevision
			err = judge.Check(l)
		}
		switch {
		case err == nil:
			valid, byLease[l] = append(valid, l), r
		case !errors.Is(err, subnet.ErrPending) && !errors.Is(err, subnet.ErrOtherConfig) && !t.isUsual(r):
			t.ignored[r.key] = true
		}
	}
	for l := range judge.Losers(valid) { // valid each, but not beside the others
		if r := byLease[l]; !t.isUsual(r) {
			t.ignored[r.key] = true
		}
	}
	return len(t.ignored)
}

// ignoreLargest ignores the largest of the subnets that are larger than this node's,
// and returns their number.
func (t *taken) ignoreLargest() (count int) {
	largest := 0
	for _, r := range t.all {
		largest = max(largest, t.excess(r))
	}
	for _, r := range t.all {
		if largest > 0 && t.excess(r) == largest {
			t.ignored[r.key] = true
			count++
		}
	}
	return count
}

// excess returns by how many bits a subnet of the record is larger than this node's; 0:
// it is not larger, or is ignored already.
func (t *taken) excess(r record) (bits int) {
	if t.ignored[r.key] {
		return 0
	}
	for _, e := range r.lease.Endpoints() {
		bits = max(bits, t.cfg.NetworkOf(e.Subnet.Addr()).SubnetLen-e.Subnet.Bits())
	}
	return bits
}

// choose returns a free subnet for each family of cfg, which has only the families that
// need one. While there is none, it ignores more of what occupies the network, in the order
// of the table above. The error says which network is full even so.
func (m *Manager) choose(cfg subnet.Config, t *taken) (v4, v6 netip.Prefix, err error) {
	rnd := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	for { // each round but the last ignores more keys
		v4, v6, err = chooseFree(cfg, t.leases(), rnd)
		if !errors.Is(err, errFull) {
			return v4, v6, err
		}
		count := 0
		if t.ignored == nil { // the first time
			count = t.ignoreRejected(m.watched.Judge().Elsewhere())
		}
		if count == 0 {
			count = t.ignoreLargest()
		}
		if count == 0 { // nothing is left that can be ignored
			return v4, v6, err
		}
		m.log.Warn("the network is full, ignoring leases that are rejected, or larger than a subnet of this network; delete their keys",
			"cause", causeIgnoredLeases, "count", count, "total", len(t.ignored))
	}
}

// addresses returns the public addresses of the nodes, as prefixes of one address, which
// a subnet must not contain. It decodes all values, which takes time. candidate calls it
// only if this node has its address inside the pod network.
func addresses(records []record) (nodes []netip.Prefix) {
	for _, r := range records {
		v, err := decodeValue(r.kv.Value)
		if err != nil {
			continue
		}
		for _, a := range []netip.Addr{v.PublicIP, v.PublicIPv6} {
			if p, err := a.Prefix(a.BitLen()); err == nil { // an error: the zero Addr, there is no address of the family
				nodes = append(nodes, p)
			}
		}
	}
	return nodes
}
