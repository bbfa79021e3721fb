package plan

import (
	"errors"

	"flannel/subnet"
)

// Judge validates leases by the same rules as a Plan, for decisions that are made before a Plan gets the leases. It is
// never modified.
type Judge struct{ rules *Plan } // without peers

var _ subnet.Judge = (*Judge)(nil)

// Judge returns the rules that the Plan has now.
func (p *Plan) Judge() *Judge { return &Judge{p.empty(p.local)} }

// empty returns a Plan with the same rules, for another local lease, and without peers.
func (p *Plan) empty(local subnet.Lease) *Plan {
	e := New(p.cfg, local, p.backend)
	e.addrs, e.anyLink = p.addrs, p.anyLink
	return e
}

// Check implements subnet.Judge.
func (j *Judge) Check(l *subnet.Lease) error {
	switch peer := j.rules.newPeer(l); {
	case peer.other != nil:
		return peer.other
	case peer.reason != "":
		return errors.New(peer.reason)
	case j.rules.wire.Pending(l):
		return subnet.ErrPending
	}
	return nil
}

// Losers implements subnet.Judge. It costs as much as the first Update of a Plan.
func (j *Judge) Losers(leases []*subnet.Lease) map[*subnet.Lease]bool {
	p := j.rules.empty(j.rules.local)
	p.Update(leases, nil)
	losers := make(map[*subnet.Lease]bool, len(p.invalid)+len(p.conflicting))
	for peer := range p.invalid {
		losers[peer.lease] = true
	}
	for peer := range p.conflicting {
		losers[peer.lease] = true
	}
	return losers
}

// Elsewhere implements subnet.Judge.
func (j *Judge) Elsewhere() subnet.Judge {
	e := j.rules.empty(subnet.Lease{})
	e.addrs, e.anyLink = nil, true
	return &Judge{e}
}
