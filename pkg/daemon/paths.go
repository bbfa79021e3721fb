package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"

	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
	"flannel/subnet"
)

// guardPart sets who may send into the pod network.
func (d *Daemon) guardPart() part {
	return part{name: partPaths, needsPeers: true, reconcile: func(_ context.Context, p *pass) error {
		if mode := cmp.Or(d.Settings.Guard, p.config.Guard); mode != subnet.GuardOff { // the configuration always has a mode
			p.state.Guard = &dataplane.Guard{Enforce: mode == subnet.GuardEnforce, Trial: p.config.GuardTrial, Sources: p.config.GuardSources}
		}
		return nil
	}}
}

// pathsPart has the dataplane hold the desired state.
func (d *Daemon) pathsPart() part {
	var refused []subnet.Rejected // in the last pass that tried to set entries: until Apply tries again, they count
	return part{name: partPaths, needsPeers: true, reconcile: func(ctx context.Context, p *pass) error {
		p.refused = refused
		err := p.recordRefused(d.Dataplane.Apply(ctx, p.links, p.state))
		refused = p.refused
		// Apply reads the same paths. If both fail, one error is enough.
		return cmp.Or(err, p.unfound)
	}}
}

// recordRefused sets p.refused from the results of Dataplane.Apply. An entry
// that the operating system refused is a problem of that peer alone: the node
// stays ready, because it reaches all other peers, and the entry is retried.
// But if the system refuses entries of at least two peers and of more than half
// of them, it is a problem of this node, and the returned error names it.
func (p *pass) recordRefused(refused []dataplane.Refused, err error) error {
	if len(refused) == 0 && reconcile.IsUnknown(err) {
		return err // no entry was tried, so p.refused stays as it is
	}
	p.refused = nil
	if len(refused) == 0 {
		return err
	}
	reasons := make(map[netip.Prefix]error, len(refused))
	for _, r := range refused {
		reasons[r.Dst] = r.Err
	}
	// A peer counts once, even if both of its families are refused. Orphans are no
	// peers and are not found here.
	for _, l := range p.set.Leases {
		for _, e := range l.Endpoints() {
			if reason, found := reasons[e.Subnet]; found { // Local: the reason lies in this node, and other nodes may accept the peer
				p.refused = append(p.refused, subnet.Rejected{Name: l.Name, Reason: reason.Error(), Local: true})
				break
			}
		}
	}
	if len(p.refused) < 2 || 2*len(p.refused) <= p.valid {
		return err
	}
	errs := []error{err}
	for _, r := range refused[:min(len(refused), maxNamed)] {
		errs = append(errs, r.Err)
	}
	return fmt.Errorf("the system refused entries of %d of %d peers: %w", len(p.refused), p.valid, errors.Join(errs...))
}

// maxNamed limits how many refused entries the error names.
const maxNamed = 5
