package daemon

import (
	"errors"
	"fmt"
	"net/netip"

	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
	"flannel/subnet"
)

// recordRefused sets n.last.refused from the results of Dataplane.Apply. An entry
// that the operating system refused is a problem of that peer alone: the node
// stays ready, because it reaches all other peers, and the entry is retried.
// But if the system refuses entries of at least two peers and of more than half
// of them, it is a problem of this node, and the returned error names it.
func (n *node) recordRefused(refused []dataplane.Refused, err error) error {
	if len(refused) == 0 && reconcile.IsUnknown(err) {
		return err // no entry was tried, so n.last.refused stays as it is
	}
	n.last.refused = nil
	if len(refused) == 0 {
		return err
	}
	reasons := make(map[netip.Prefix]error, len(refused))
	for _, r := range refused {
		reasons[r.Dst] = r.Err
	}
	// A peer counts once, even if both of its families are refused. Orphans are no
	// peers and are not found here.
	for _, l := range n.last.peers {
		for _, e := range l.Endpoints() {
			if reason, found := reasons[e.Subnet]; found {
				n.last.refused = append(n.last.refused, subnet.Rejected{Name: l.Name, Reason: reason.Error(), Local: true})
				break
			}
		}
	}
	if len(n.last.refused) < 2 || 2*len(n.last.refused) <= n.last.validPeers {
		return err
	}
	errs := []error{err}
	for _, r := range refused[:min(len(refused), maxNamed)] {
		errs = append(errs, r.Err)
	}
	return fmt.Errorf("the system refused entries of %d of %d peers: %w", len(n.last.refused), n.last.validPeers, errors.Join(errs...))
}

// maxNamed limits how many refused entries the error names.
const maxNamed = 5
