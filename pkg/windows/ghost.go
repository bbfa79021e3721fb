package windows

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
)

// nameExists reports whether HNS refused a network because there is one of its name.
func nameExists(err error) bool {
	e := (*hns.Error)(nil)
	return errors.As(err, &e) && e.Code == hns.NetworkExists
}

// deleteGhost is called when HNS has refused to create a network because of its
// name, although the list of this pass does not contain the name: HNS has a ghost.
// It deletes a ghost of ours that the older API lists (calico#9120). To adopt it
// would not help, because kube-proxy and the CNI plugins would not find it. A ghost
// that no list contains remains until HNS is restarted or the machine rebooted
// (hcsshim#850, K2s#1468): the error says so.
//
// At the first refusal it deletes nothing, because HNS may list the network a moment
// later, as after a boot; then the next pass adopts it.
//
// The caller has saved the host's settings, since its addresses may move. owned
// reports whether the journal had the network before it was created.
func (d *Driver) deleteGhost(ctx context.Context, creation change, dev device, owned bool, refused error) error {
	if last := d.tries.refused[creation]; last == nil || !nameExists(last.Err()) {
		return fmt.Errorf("HNS refuses the name %s, and does not list a network of this name yet: %w", dev.name, refused)
	}
	ghosts, err := d.client.Ghosts(ctx)
	if err != nil {
		return fmt.Errorf("HNS refuses the name %s (%w), and does not say which networks its older API has: %w", dev.name, refused, err)
	}
	named := fmt.Errorf("HNS has a network %s that it does not list: restart HNS (Restart-Service hns -Force) or, if that does not help, the machine: %w", dev.name, refused)
	i := slices.IndexFunc(ghosts, func(n hns.Network) bool { return n.Name == dev.name })
	if i < 0 {
		return named
	}
	ghost := ghosts[i]
	if !isOurType(ghost) || dev.Switch && !owned {
		return fmt.Errorf("only the older API of HNS lists the network %s, of type %s, which is not flannel's: delete it (Get-HnsNetwork | Where-Object ID -eq %s | Remove-HnsNetwork): %w",
			ghost.Name, ghost.Type, ghost.ID, refused)
	}
	if err := d.client.DeleteGhost(ctx, ghost.ID); err != nil {
		if !isRefusal(err) { // such as an answer that comes too late
			d.deletedAt = time.Now()
		}
		return fmt.Errorf("%w (the older API lists it, but does not delete it: %w)", named, err)
	}
	d.deletedAt = time.Now()
	d.opts.Log.Warn("deleted an HNS network of ours that only the older API listed, its pods must be made again", "cause", causeGhost, "network", ghost.Name, "id", ghost.ID)
	return dataplane.Waiting(causeGhost, "the network %s to be deleted, which only the older API listed", ghost.Name)
}
