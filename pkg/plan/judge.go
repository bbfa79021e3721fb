package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"flannel/pkg/dataplane"
	"flannel/subnet"
)

// judge looks at one lease without regard to the others.
func (p *Plan) judge(l *subnet.Lease) *peer {
	one := &peer{lease: l}
	if l.Backend == "" {
		return one // it has claimed its subnet and will describe itself; nothing to do and nothing wrong
	}
	if one.reason = p.suspect(l); one.reason != "" {
		one.local = p.concernsUs(l)
		return one
	}
	paths, err := p.backend.Paths(l)
	if err != nil {
		one.reason = err.Error()
		return one
	}
	one.paths = paths
	for _, path := range paths {
		one.odd = one.odd || path.Dst.Bits() != p.network(path.Dst.Addr()).SubnetLen
	}
	one.better = p.outranks(one, paths)
	for _, path := range paths {
		c := vtep(path)
		if _, ours := p.own[c]; ours {
			return &peer{lease: l, better: one.better, local: true, reason: fmt.Sprintf("its VtepMAC %s is our own", c.mac)}
		}
	}
	return one
}

// concernsUs reports whether the lease has something that is this node's: the others may find nothing wrong with it.
func (p *Plan) concernsUs(l *subnet.Lease) bool {
	for _, e := range l.Endpoints() {
		if among(p.addrs, e.PublicIP) {
			return true
		}
		for _, own := range p.local.Endpoints() {
			if e.PublicIP == own.PublicIP || e.Subnet.Overlaps(own.Subnet) || own.Subnet.Contains(e.PublicIP) {
				return true
			}
		}
	}
	return false
}

// outranks returns the VTEP addresses of ours that every other node believes to be the peer's.
func (p *Plan) outranks(one *peer, paths []*dataplane.Path) (better []claim) {
	if len(p.own) == 0 {
		return nil
	}
	ends := paths
	if slices.ContainsFunc(paths, func(path *dataplane.Path) bool { _, tunnelled := path.VTEP(); return !tunnelled }) {
		ends, _ = p.tunnel.Ends(one.lease) // an error: who reaches it through the tunnel rejects it
	}
	for _, end := range ends {
		derived, ours := p.own[vtep(end)]
		if ours && !derived && (precedence(one, &peer{lease: &p.local}) < 0 || !one.odd && p.tunnel.Derived(end)) {
			better = append(better, vtep(end))
		}
	}
	return better
}

func (p *Plan) network(a netip.Addr) subnet.Network {
	if a.Is6() {
		return p.cfg.V6
	}
	return p.cfg.V4
}

// suspect returns why the lease cannot be believed, or nothing.
func (p *Plan) suspect(l *subnet.Lease) string {
	if l.Backend != p.cfg.Backend {
		return fmt.Sprintf("its backend is %.40q and ours %q; a network has one", l.Backend, p.cfg.Backend)
	}
	shared := 0
	for _, e := range l.Endpoints() {
		network := p.network(e.Subnet.Addr())
		if !network.On() {
			continue // a dual-stack peer of a node that uses one family
		}
		shared++
		if reason := p.suspectSubnet(e.Subnet, network); reason != "" {
			return reason
		}
		if reason := p.suspectPublicIP(l, e); reason != "" {
			return reason
		}
	}
	if shared == 0 {
		return "it has no address family in common with this node"
	}
	return ""
}

func (p *Plan) suspectSubnet(s netip.Prefix, network subnet.Network) string {
	switch {
	case s != s.Masked():
		return fmt.Sprintf("its subnet %s has host bits set", s)
	case !network.Holds(s):
		return fmt.Sprintf("its subnet %s is not a part of the network %s", s, network.Prefix)
	case s.Bits() > s.Addr().BitLen()-2: // as in the configuration
		return fmt.Sprintf("its subnet %s has no room for pods", s)
	}
	for _, own := range p.local.Endpoints() {
		if s.Overlaps(own.Subnet) {
			return fmt.Sprintf("its subnet %s overlaps our own %s", s, own.Subnet)
		}
	}
	if under, covers := p.cfg.Covers(s); covers {
		return fmt.Sprintf("its subnet %s covers %s of the underlay", s, under)
	}
	return ""
}

func (p *Plan) suspectPublicIP(l *subnet.Lease, e subnet.Endpoint) string {
	ip := e.PublicIP
	switch {
	case !ip.IsValid() || ip.IsUnspecified():
		return fmt.Sprintf("it has no public IP for %s", e.Subnet)
	case ip.Is6() != e.Subnet.Addr().Is6():
		return fmt.Sprintf("its public IP %s is of another family than its subnet %s", ip, e.Subnet)
	case ip.IsLoopback() || ip.IsMulticast() || ip.IsLinkLocalUnicast() || ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return fmt.Sprintf("its public IP %s is not an address that a node can have on the underlay", ip)
	}
	for _, own := range l.Endpoints() {
		if own.Subnet.Contains(ip) {
			return fmt.Sprintf("its public IP %s lies inside its own subnet %s", ip, own.Subnet)
		}
	}
	for _, own := range p.local.Endpoints() {
		switch {
		case ip == own.PublicIP:
			return fmt.Sprintf("its public IP %s is our own", ip)
		case own.Subnet.Contains(ip):
			return fmt.Sprintf("its public IP %s lies inside our own subnet %s", ip, own.Subnet)
		}
	}
	if among(p.addrs, ip) { // a second one, a virtual one, docker0's: packets to it never leave the node
		return fmt.Sprintf("its public IP %s is an address of this node", ip)
	}
	return ""
}
