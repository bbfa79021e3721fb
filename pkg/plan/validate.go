package plan

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"flannel/backend"
	"flannel/pkg/dataplane"
	"flannel/subnet"
)

// newPeer validates one lease and translates it into paths, without regard to the other leases. The fields that it sets,
// such as local and other, are explained at the type, in plan.go; conflicts with other leases are in conflicts.go. It
// changes nothing in p, so that a judge (judge.go) may call it on any goroutine.
func (p *Plan) newPeer(l *subnet.Lease) *peer {
	rejected := func(v verdict) *peer { return &peer{lease: l, verdict: &v} }
	// First, because no other property of such a lease matters: it may be that of a node
	// that wants to take this node's place.
	if reason := p.sharesAddress(l); reason != "" {
		return rejected(verdict{reason: reason, local: true, twin: true})
	}
	if p.wire.Pending(l) {
		// Without a reason, even if the lease is invalid: a pending peer has no paths that could do harm, and it becomes
		// another lease, with another result, when its owner publishes backend data.
		pending := &peer{lease: l, verdict: &unremarkable}
		if p.validate(l) == "" && hasData(l) {
			pending.verdict = &verdict{other: fmt.Errorf("it has backend data without a type; %w", subnet.ErrOtherConfig)}
		}
		return pending
	}
	if reason := p.validate(l); reason != "" {
		return rejected(verdict{reason: reason, local: p.involvesThisNode(l)})
	}
	paths, err := p.pathsTo(l)
	if errors.Is(err, subnet.ErrOtherConfig) {
		return rejected(verdict{reason: err.Error(), other: err})
	}
	if err != nil {
		return rejected(verdict{reason: err.Error()})
	}
	if reason := p.validateSources(paths); reason != "" {
		return rejected(verdict{reason: reason})
	}
	valid := &peer{lease: l, paths: paths, verdict: &unremarkable}
	for _, path := range paths {
		valid.unusual = valid.unusual || !p.isUsual(path.Dst)
	}
	outranks := p.outrankedBy(valid, paths) // nil: none, as of nearly all peers
	// This node rejects a peer that has one of its own tunnel ends, whether or not other nodes reject that peer, too. A
	// rejected peer has no paths that could be in a conflict.
	for _, path := range paths {
		end := tunnelEnd(path)
		if _, own := p.ownEnds[end]; own {
			return rejected(verdict{outranks: outranks, local: true, reason: fmt.Sprintf("%s is the same as this node's", end.end)})
		}
	}
	if outranks != nil {
		valid.verdict = &verdict{outranks: outranks}
	}
	return valid
}

// pathsTo returns the paths to a peer whose lease validate has accepted. An error that wraps subnet.ErrOtherConfig means
// that nothing else is wrong with the lease, as far as this node can tell: it cannot read the data of another backend, and
// its own backend compares configurations after it has read everything else.
func (p *Plan) pathsTo(l *subnet.Lease) ([]*dataplane.Path, error) {
	if l.Backend != p.cfg.Backend && l.Backend != "" { // "": flannel's leases for udp and alloc, see Wire.Untyped
		return nil, fmt.Errorf("backend is %.40q, this node uses %q; %w", l.Backend, p.cfg.Backend, subnet.ErrOtherConfig)
	}
	paths, err := p.backend.Paths(l)
	if p.anyLink && errors.Is(err, backend.ErrOffLink) { // a backend without a tunnel, and the peer is on another link
		return nil, nil // a valid lease; paths do not matter to a judge
	}
	return paths, err
}

// hasData reports whether a lease has backend data. An owner that has only reserved its subnet has published none.
func hasData(l *subnet.Lease) bool { return len(l.V4.Data)+len(l.V6.Data) > 0 }

// involvesThisNode reports whether the lease has an address or a subnet that is in conflict with this node's. Other nodes
// may accept such a lease.
func (p *Plan) involvesThisNode(l *subnet.Lease) bool {
	for _, e := range l.Endpoints() {
		if contains(p.addrs, e.PublicIP) {
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

// outrankedBy returns the tunnel ends of this node that the peer claims, too, and that all other nodes attribute to
// the peer, by the rules of resolveConflicts. If ours is derived from our subnet, they reject the claimant by rule 1. If
// the claimant's is derived from its subnet, they reject us by rule 1; otherwise they reject by rule 2 the one that
// comparePrecedence puts last. It does not know whether they visit one of the two last because its subnet overlaps another's.
func (p *Plan) outrankedBy(claimant *peer, paths []*dataplane.Path) (outranked []resource) {
	if len(p.ownEnds) == 0 {
		return nil
	}
	ends := paths
	// Some paths may not use the tunnel (DirectRouting), but other nodes may reach the same peer through the tunnel.
	if slices.ContainsFunc(paths, func(path *dataplane.Path) bool { _, tunnelled := path.End(); return !tunnelled }) {
		ends, _ = p.backend.Ends(claimant.lease) // an error: the nodes that need the tunnel reject the peer
	}
	precedes := comparePrecedence(claimant, &peer{lease: &p.local}) < 0
	for _, end := range ends {
		derived, own := p.ownEnds[tunnelEnd(end)]
		if own && !derived && (precedes || p.derived(end)) {
			outranked = append(outranked, tunnelEnd(end))
		}
	}
	return outranked
}

// validate returns why the lease is invalid, whatever its backend is, or "".
func (p *Plan) validate(l *subnet.Lease) string {
	common := 0
	for _, e := range l.Endpoints() {
		network := p.cfg.NetworkOf(e.Subnet.Addr())
		if !network.On() {
			continue // the peer is dual-stack, and this node uses one family
		}
		common++
		if reason := p.validateSubnet(e.Subnet, network); reason != "" {
			return reason
		}
		if reason := p.validatePublicIP(l, e); reason != "" {
			return reason
		}
	}
	if common == 0 {
		return "no address family in common with this node"
	}
	return ""
}

// validateSubnet returns what is wrong with a peer's subnet; "": nothing.
func (p *Plan) validateSubnet(s netip.Prefix, network subnet.Network) string {
	switch {
	case s != s.Masked():
		return fmt.Sprintf("subnet %s has host bits set", s)
	case s == network.Prefix:
		return fmt.Sprintf("subnet %s is the whole network, which leaves no subnet for other nodes", s)
	case s.Bits() < network.Prefix.Bits() && s.Contains(network.Prefix.Addr()):
		return fmt.Sprintf("subnet %s contains the whole network %s", s, network.Prefix)
	case !network.Holds(s): // as a proper part
		return fmt.Sprintf("subnet %s is not in the network %s", s, network.Prefix)
	case s.Bits() > s.Addr().BitLen()-2: // the same limit as in the configuration
		return fmt.Sprintf("subnet %s is too small for pods", s)
	}
	for _, own := range p.local.Endpoints() {
		if s.Overlaps(own.Subnet) {
			return fmt.Sprintf("subnet %s overlaps this node's subnet %s", s, own.Subnet)
		}
	}
	if under, covers := p.cfg.Covers(s); covers {
		return fmt.Sprintf("subnet %s covers %s of the underlay", s, under)
	}
	return ""
}

// validateSources returns why a source of the peer's tunnel is invalid, or "". Sources may
// be addresses of other nodes, even of this one: private addresses are not unique, and
// several nodes may be behind one address.
func (p *Plan) validateSources(paths []*dataplane.Path) string {
	for _, path := range paths {
		n := 0
		for a := range path.Sources.All() {
			if n++; n > subnet.MaxSources {
				return fmt.Sprintf("it has more than %d sources of its tunnel", subnet.MaxSources)
			}
			if a.Is6() != path.Via.Is6() {
				return fmt.Sprintf("source %s and public IP %s are of different address families", a, path.Via)
			}
			if err := p.cfg.CheckSource(a); err != nil {
				return err.Error()
			}
		}
	}
	return ""
}

// sharesAddress returns a reason if the lease has the public IP of this node, or "".
func (p *Plan) sharesAddress(l *subnet.Lease) string {
	for _, e := range l.Endpoints() {
		for _, own := range p.local.Endpoints() {
			if e.PublicIP.IsValid() && e.PublicIP == own.PublicIP {
				return fmt.Sprintf("public IP %s is the same as this node's", e.PublicIP)
			}
		}
	}
	return ""
}

// validatePublicIP returns what is wrong with a peer's public IP; "": nothing.
func (p *Plan) validatePublicIP(l *subnet.Lease, e subnet.Endpoint) string {
	ip := e.PublicIP
	switch {
	case !ip.IsValid() || ip.IsUnspecified():
		return fmt.Sprintf("no public IP for subnet %s", e.Subnet)
	case ip.Is6() != e.Subnet.Addr().Is6():
		return fmt.Sprintf("public IP %s and subnet %s are of different address families", ip, e.Subnet)
	}
	if err := subnet.CheckNodeAddress(ip); err != nil {
		return fmt.Sprintf("public IP %v", err)
	}
	for _, own := range l.Endpoints() {
		if own.Subnet.Contains(ip) {
			return fmt.Sprintf("public IP %s is inside the peer's own subnet %s", ip, own.Subnet)
		}
	}
	for _, own := range p.local.Endpoints() {
		if own.Subnet.Contains(ip) {
			return fmt.Sprintf("public IP %s is inside this node's subnet %s", ip, own.Subnet)
		}
	}
	if contains(p.addrs, ip) { // a secondary or virtual address, or docker0's: packets to it would not leave this node
		return fmt.Sprintf("public IP %s is an address of this node", ip)
	}
	return ""
}
