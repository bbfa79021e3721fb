package daemon

import (
	"errors"
	"fmt"
	"net/netip"

	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
	"flannel/subnet"
)

// attribute takes the outcome of Dataplane.Apply and notes of which peers the system refused an entry. That is those
// peers' problem: this node stays ready, for all others can be reached, and the next pass, or else the next retry, tries
// again. With more than half of the peers, and with two at least, it is the node's own, whatever the reasons are, and so
// in the error.
func (n *node) attribute(refused []dataplane.Refused, err error) error {
	if len(refused) == 0 && reconcile.IsUnknown(err) {
		return err // the entries were not tried
	}
	n.behind = nil
	if len(refused) == 0 {
		return err
	}
	reasons := make(map[netip.Prefix]error, len(refused))
	for _, r := range refused {
		reasons[r.Dst] = r.Err
	}
	for _, l := range n.peers {
		for _, e := range l.Endpoints() {
			if why, found := reasons[e.Subnet]; found {
				n.behind = append(n.behind, subnet.Rejected{Name: l.Name, Reason: why.Error(), Local: true})
				break
			}
		}
	}
	if len(n.behind) < 2 || 2*len(n.behind) <= n.valid {
		return err
	}
	named := []error{err}
	for _, r := range refused[:min(len(refused), maxNamed)] {
		named = append(named, r.Err)
	}
	return fmt.Errorf("the system refuses %d of %d peers: %w", len(n.behind), n.valid, errors.Join(named...))
}

// maxNamed bounds how many refused entries the error names.
const maxNamed = 5
