package windows

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
	"flannel/pkg/windows/hns"
	"flannel/pkg/windows/hostconfig"
)

// cleanup is the work of the command cleanup, in a process without the daemon's
// loop. networks are the pod networks, removed are lines for the user; dryRun
// changes nothing. HNS deletes policies and endpoints with their network. cleanup
// then waits until the host has its settings back, for at most 90 seconds (pace.Address
// and pace.DHCP): the next run of the daemon restores what is missing then. With networks
// on several adapters, it waits so before it deletes those of the next adapter. It also
// waits until HNS may create a network again, because the next program may be
// flanneld prepare. A route of ours that Windows refuses to delete is an error, and so is a
// journal that cannot be written: its snapshot may still list routes to peers, which the next
// run would restore. If networks, routes or the journal cannot be read, it removes nothing.
// If the journal can be read, and is not one of flanneld, it removes what it can recognize
// without the journal, and returns an error.
func (d *Driver) cleanup(ctx context.Context, networks []netip.Prefix, dryRun bool) (removed []string, err error) {
	if d.networks, err = d.client.Networks(ctx); err != nil {
		return nil, waitIfSilent(err) // for its text, which names the service: the command does not wait
	}
	routes, err := d.stack.Routes()
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	var errs []error
	if err := d.hostConfig.ReadErr(); reconcile.IsUnknown(err) { // else the file is not a journal of flanneld
		return nil, err
	} else if err != nil {
		errs = append(errs, fmt.Errorf("%w: it lists networks of ours with other names than flannel.N, such as External, which are not removed: check HNS for such networks, then delete the file", err))
	}
	if !dryRun {
		d.hostConfig.SetPodNetworks(networks) // a route of ours that cannot be deleted is not restored
	}
	for _, r := range routes {
		if (hostScope{r.Index, networks}).owns(r) { // r.Index: on whatever adapter the route is
			removed = append(removed, fmt.Sprintf("route %s", hostRoute{r.Dst, r.NextHop}))
			if !dryRun {
				errs = append(errs, d.stack.DeleteRoute(r))
			}
		}
	}
	for _, n := range d.leftovers() {
		removed = append(removed, fmt.Sprintf("HNS network %s (%s, %s, %d policies)", n.Name, n.Type, n.ID, len(n.Policies)))
		if !dryRun {
			errs = append(errs, d.deleteLeftover(ctx, n))
		}
	}
	if !dryRun {
		if errors.Join(errs...) == nil {
			const owned = false
			for _, isSwitch := range []bool{false, true} {
				for _, name := range d.hostConfig.Owned(isSwitch) { // somebody else deleted these networks
					errs = append(errs, d.hostConfig.SetOwned(name, isSwitch, owned))
				}
			}
		}
		errs = append(errs, d.waitRestored(ctx), d.waitSettled(ctx), d.hostConfig.WriteSettled())
		if errors.Join(errs...) == nil && !d.hostConfig.HasSnapshot() {
			errs = append(errs, d.hostConfig.Forget())
		}
	}
	return removed, errors.Join(errs...)
}

// deleteLeftover deletes a network. If the host does not have the settings of another adapter
// back, from which the network before was deleted, it waits for these first. That a host has no
// address does not keep the network, unless the journal has a static one (ErrNothingToSave).
func (d *Driver) deleteLeftover(ctx context.Context, n hns.Network) error {
	const reason = "cleanup removes it"
	err := d.deleteNetwork(ctx, n, causeUnwanted, reason)
	var restored error
	if wait := (*dataplane.WaitError)(nil); errors.As(err, &wait) && d.hostConfig.Unfinished() {
		restored = d.waitRestored(ctx)
		err = d.deleteNetwork(ctx, n, causeUnwanted, reason)
	}
	if errors.Is(err, hostconfig.ErrNothingToSave) {
		err = d.removeNetwork(ctx, n, causeUnwanted, reason)
	}
	return errors.Join(restored, err)
}

// leftovers returns the networks of ours. Those of flanneld prepare are last:
// they keep the switch bound, so that the host's address moves only once. cbr0 is the
// name that flannel gives an L2Bridge unless it is configured.
func (d *Driver) leftovers() []hns.Network {
	var ours, switches []hns.Network
	for _, n := range d.networks {
		switch {
		case d.ours(n) || n.Type == hns.L2Bridge && n.Name == "cbr0":
			ours = append(ours, n)
		case isOurType(n) && slices.Contains(d.hostConfig.Owned(true), n.Name):
			switches = append(switches, n)
		}
	}
	return append(ours, switches...)
}

// waitRestored returns when the host has its settings back. The deadline, 90 seconds, is the
// sum of the limits after which a Keeper adds addresses: 30 for those set by hand, and 60 for
// those from DHCP.
//
//	Unfinished  HasSnapshot  waitRestored
//	true        true         waits; after the deadline, returns what Restore says is missing,
//	                         and waits on if that is nothing: Restore soon deletes the snapshot
//	true        false        waits for the category; after the deadline, leaves it as it is
//	false       true         returns nil: an adapter without a cable gets its addresses by
//	                         DHCP later, and the next run of the daemon needs the snapshot
//	false       false        returns nil
func (d *Driver) waitRestored(ctx context.Context) error {
	deadline := time.Now().Add(d.pace.Address + d.pace.DHCP)
	for logged := false; d.hostConfig.Unfinished(); logged = true {
		networks, err := d.client.Networks(ctx)
		if err == nil {
			err = d.hostConfig.Restore(networks)
		}
		if time.Now().After(deadline) && (err != nil || !d.hostConfig.HasSnapshot()) {
			return err
		}
		if !logged {
			d.opts.Log.Info("waiting until the host has its addresses, routes and DNS servers, and the category of its network back")
		}
		if reconcile.Pause(ctx, d.pace.Wait); ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// waitSettled returns when HNS has settled after it deleted a network.
func (d *Driver) waitSettled(ctx context.Context) error {
	reconcile.Pause(ctx, time.Until(d.deletedAt.Add(d.pace.Settle)))
	return ctx.Err()
}
