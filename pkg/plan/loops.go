package plan

import (
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"flannel/subnet"
)

// The pod network may contain the nodes' own addresses, because only the leased subnets are routed. (With udp, the whole
// network is, but the routes of the underlay's links are more specific. With wireguard, the whole network is routed only
// if it contains no such address.) But a public IP inside a leased subnet makes a loop: packets for that peer,
// encapsulated or not, would be sent to the subnet's owner.
//
// A peer whose public IP is inside its own subnet or this node's is invalid (validatePublicIP). So this file looks for
// public IPs inside subnets of other peers.

// isInside reports whether a public IP of the peer is inside the pod network. Plan.add and Plan.remove keep the valid peers
// that have such an IP, and are not pending, in p.inside.
func (p *Plan) isInside(peer *peer) bool {
	return slices.ContainsFunc(peer.lease.Endpoints(), func(e subnet.Endpoint) bool {
		return p.cfg.NetworkOf(e.PublicIP).Prefix.Contains(e.PublicIP)
	})
}

// hostSubnetsOf yields for each public IP of the peer the subnet of the usual size that contains it, leased or not. Plan.add
// counts these subnets in hostSubnets: if one of them is leased later, mayConflict is true for its owner, so that Update
// calls rejectLoops again.
func (p *Plan) hostSubnetsOf(peer *peer) iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) {
		for _, e := range peer.lease.Endpoints() {
			network := p.cfg.NetworkOf(e.PublicIP)
			if s, err := e.PublicIP.Prefix(network.SubnetLen); err == nil && network.On() && !yield(s) {
				return
			}
		}
	}
}

// rejectLoops returns conflicting together with the peers that are rejected because the public IP of one peer is inside
// the subnet of another. conflicting has the peers that resolveConflicts has just rejected. Which of the two is rejected:
//   - The peer with the public IP, however old its lease is, if the cluster assigns the subnets, or the subnet is of the usual
//     size (see Plan). A node publishes whatever public IP it likes.
//   - Otherwise the owner of the subnet: with etcd, one lease with a subnet around the public IPs of others, or a small one
//     around one of them, could get these peers rejected.
//
// conflicting and the result map peers to reasons. A peer in conflicting gets no other peer rejected, because it has neither
// subnets nor paths. Loops are judged all at once, so that the result depends on no order: a peer that is rejected for one
// loop still gets others rejected for theirs. Of several reasons the first one in the order of texts is given, because the
// order of a map must not change the text.
//
// The cost is one lookup for each public IP inside the pod network and each length that subnets have.
func (p *Plan) rejectLoops(conflicting map[*peer]string) map[*peer]string {
	if len(p.inside) == 0 { // no loop is possible
		return conflicting
	}
	loops := map[*peer]string{}
	reject := func(peer *peer, reason string) {
		if before := loops[peer]; before == "" || reason < before {
			loops[peer] = reason
		}
	}
	lengths := p.lengths()
	for peer := range p.inside {
		if conflicting[peer] != "" {
			continue
		}
		for _, e := range peer.lease.Endpoints() {
			for _, bits := range lengths {
				switch owner, s := p.subnetOwner(e.PublicIP, bits, conflicting); {
				case owner == nil:
				case p.cfg.Assigned || bits == p.cfg.NetworkOf(e.PublicIP).SubnetLen:
					reject(peer, fmt.Sprintf("public IP %s is inside %s, the subnet of %s", e.PublicIP, s, owner.lease.Name))
				default:
					reject(owner, fmt.Sprintf("subnet %s contains the public IP of another node", s))
				}
			}
		}
	}
	maps.Copy(loops, conflicting)
	return loops
}

// lengths returns the lengths that subnets of peers have.
func (p *Plan) lengths() []int {
	lengths := []int{p.cfg.V4.SubnetLen, p.cfg.V6.SubnetLen}
	for peer := range p.unusual {
		for _, path := range peer.paths {
			if bits := path.Dst.Bits(); !slices.Contains(lengths, bits) {
				lengths = append(lengths, bits)
			}
		}
	}
	return lengths
}

// subnetOwner returns the peer with the subnet of length bits that contains ip, and that subnet. nil: no peer has it, or
// only peers in conflicting claim it.
//
// If several peers claim the subnet, all of them are in p.claimants, and at most one is not in conflicting. If one peer
// claims it, that peer is in p.holders. (A resource, such as a subnet, is what only one peer can have.)
func (p *Plan) subnetOwner(ip netip.Addr, bits int, conflicting map[*peer]string) (*peer, netip.Prefix) {
	s, err := ip.Prefix(bits)
	if err != nil || !p.cfg.NetworkOf(ip).On() {
		return nil, netip.Prefix{}
	}
	r := resource{subnet: s}
	owner := p.holders.get(r)
	for _, claimant := range p.claimants[r] {
		if conflicting[claimant] == "" {
			owner = claimant
		}
	}
	if conflicting[owner] != "" {
		return nil, s
	}
	return owner, s
}
