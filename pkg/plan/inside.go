package plan

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
)

// A pod network may contain the nodes' own addresses: only the leased subnets are routed. But a public IP inside a
// leased subnet is a loop: packets for that peer, encapsulated or not, would be sent to the subnet's owner.

// isInside reports whether a public IP of the peer lies inside the pod network.
func (p *Plan) isInside(one *peer) bool {
	for _, e := range one.lease.Endpoints() {
		if p.network(e.PublicIP).On() && p.network(e.PublicIP).Prefix.Contains(e.PublicIP) {
			return true
		}
	}
	return false
}

// hostsOf are the subnets of the usual size in which the public IPs of a peer lie, or would.
func (p *Plan) hostsOf(one *peer) iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) {
		for _, e := range one.lease.Endpoints() {
			if s, err := e.PublicIP.Prefix(p.network(e.PublicIP).SubnetLen); err == nil && p.network(e.PublicIP).On() && !yield(s) {
				return
			}
		}
	}
}

// rejectLoops adds to lost the peers that cannot be, because a public IP lies inside another peer's subnet. If that is of
// the usual size, the owner of the public IP loses, however old its lease is: subnets are given by the store, but what a
// node calls its address is its own word. A subnet of another size loses instead; else one lease could drive out many.
// Only peers with a public IP inside the pod network are looked at, with one look-up for each size.
func (p *Plan) rejectLoops(lost map[*peer]string) map[*peer]string {
	if len(p.inside) == 0 {
		return lost
	}
	loops := map[*peer]string{}
	sizes := p.oddSizes()
	for one := range p.inside {
		if lost[one] != "" {
			continue
		}
		for _, e := range one.lease.Endpoints() {
			if owner, s := p.ownerOf(e.PublicIP, p.network(e.PublicIP).SubnetLen, lost); owner != nil {
				loops[one] = fmt.Sprintf("its public IP %s lies inside %s, the subnet of %s", e.PublicIP, s, owner.lease.Name)
			}
			for _, bits := range sizes {
				if owner, s := p.ownerOf(e.PublicIP, bits, lost); owner != nil && owner.odd && lost[owner] == "" && loops[owner] == "" {
					loops[owner] = fmt.Sprintf("its subnet %s contains the public IP of another node", s) // the same text whoever it is
				}
			}
		}
	}
	maps.Copy(loops, lost)
	return loops
}

// oddSizes are the lengths of the subnets of another size than the usual one.
func (p *Plan) oddSizes() (sizes []int) {
	for one := range p.odd {
		for _, path := range one.paths {
			if bits := path.Dst.Bits(); !slices.Contains(sizes, bits) {
				sizes = append(sizes, bits)
			}
		}
	}
	return sizes
}

// ownerOf finds the peer with the subnet of that size in which an address lies: of several that claim it, one that is not
// lost, if there is one, and of several of these the one with precedence.
func (p *Plan) ownerOf(ip netip.Addr, bits int, lost map[*peer]string) (*peer, netip.Prefix) {
	s, err := ip.Prefix(bits)
	if err != nil || !p.network(ip).On() {
		return nil, netip.Prefix{}
	}
	c := claim{subnet: s}
	if p.rivals[c] == nil {
		return p.claims[c], s
	}
	return slices.MinFunc(p.rivals[c], func(a, b *peer) int {
		return cmp.Or(cmp.Compare(min(len(lost[a]), 1), min(len(lost[b]), 1)), precedence(a, b))
	}), s
}
