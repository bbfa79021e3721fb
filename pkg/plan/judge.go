package plan

import (
	"errors"

	"flannel/subnet"
)

// judge is a subnet.Judge with the rules of a Plan. It is never modified.
type judge struct{ rules *Plan } // without peers

// Judge validates leases by the rules that the Plan has now, for decisions that are made before a Plan gets the leases.
func (p *Plan) Judge() subnet.Judge { return &judge{p.empty(p.local)} }

// empty returns a Plan with the same rules, for another local lease, and without peers.
func (p *Plan) empty(local subnet.Lease) *Plan {
	e := New(p.cfg, local, p.backend)
	e.addrs, e.anyLink = p.addrs, p.anyLink
	return e
}

// Check implements subnet.Judge.
func (j *judge) Check(l *subnet.Lease) error {
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
func (j *judge) Losers(leases []*subnet.Lease) map[*subnet.Lease]bool {
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
func (j *judge) Elsewhere() subnet.Judge {
	e := j.rules.empty(subnet.Lease{})
	e.addrs, e.anyLink = nil, true
	return &judge{e}
}
