package windows

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
	"flannel/pkg/windows/hostconfig"
)

// This file removes HNS networks that keep the host off its network: those on a dead
// switch, and those with which the host has lost its addresses. Ensure and prepare call
// it, on the loop's goroutine or that of the command.

// lasting is something that all looks since a time have found, such as a dead switch. The
// zero value: the last look found nothing.
type lasting[T comparable] struct {
	what          T
	since, looked time.Time
}

// look records that a look has found what, and returns for how long all looks have found it.
// Until this time is limit, a longer pause than half of limit begins it again: in the pause,
// HNS or Windows did not answer, and what was found may have ended and begun again. Later
// pauses are those between tries to delete networks.
func (l *lasting[T]) look(what T, limit time.Duration) time.Duration {
	continues := l.looked.Sub(l.since) >= limit || time.Since(l.looked) <= limit/2
	if l.what != what || !continues {
		*l = lasting[T]{what: what, since: time.Now()}
	}
	l.looked = time.Now()
	return l.looked.Sub(l.since)
}

// deleteDeadSwitch deletes the networks of ours on a dead switch: one to which
// networks are bound although the physical adapter has its addresses again and
// no virtual adapter is up. A persistent switch can be so after a reboot, or when
// the adapter got another GUID (calico#11840, microsoft/SDN#177). HNS does not
// repair it. The error is a WaitError until Pace.Dead has passed, since a switch
// that is being bound may look the same for a moment. Then it names the networks
// of others, which flanneld does not delete.
func (d *Driver) deleteDeadSwitch(ctx context.Context, parent string, adapters []hns.Adapter) error {
	physical, err := hostconfig.PhysicalAdapter(adapters, parent)
	if err != nil {
		d.dead = lasting[int]{}
		return nil // adoptOrCreate reports it
	}
	bound := d.boundNetworks(physical, adapters)
	if len(bound) == 0 || !hostconfig.HasOwnAddresses(adapters, physical) { // not dead
		d.dead = lasting[int]{}
		return nil
	}
	elapsed := d.dead.look(physical.Index, d.pace.Dead)
	if elapsed < d.pace.Dead {
		return dataplane.Waiting(causeSwitchDead, "the virtual adapter of %s to come up: the adapter itself has the host's address, although a switch is bound to it", physical.Name)
	}
	var foreign []string
	for _, n := range bound {
		if !d.mayDelete(n) {
			foreign = append(foreign, fmt.Sprintf("%s (%s, %s)", n.Name, n.Type, n.ID))
		}
	}
	if len(foreign) > 0 {
		return fmt.Errorf("the virtual switch of %s is dead: the adapter has the host's address, and no virtual adapter is up. Delete the networks of other programs on it (hnsdiag delete networks ID): %s",
			physical.Name, strings.Join(foreign, ", "))
	}
	return d.deleteBound(ctx, bound, causeSwitchDead, "its switch is dead: "+physical.Name+" has the host's address itself")
}

// boundNetworks returns the networks whose switch is bound to an adapter.
func (d *Driver) boundNetworks(physical hns.Adapter, adapters []hns.Adapter) []hns.Network {
	return slices.DeleteFunc(slices.Clone(d.networks), func(n hns.Network) bool {
		return !hostconfig.IsBound([]hns.Network{n}, physical, adapters)
	})
}

// mayDelete reports whether a network is ours, also by its name in the
// configuration alone, or was made by flanneld prepare.
func (d *Driver) mayDelete(n hns.Network) bool {
	dev := d.device()
	configured := dev.network != nil && !dev.Switch && dev.name == n.Name && isOurType(n)
	return configured || d.ours(n) || isOurType(n) && slices.Contains(d.hostConfig.Owned(true), n.Name)
}

// deleteBound deletes networks for rollBack, or on a dead switch (cause says which). It
// never returns nil: without an error, it waits for the next pass, which goes on without
// the networks. An error of one network does not keep the others.
func (d *Driver) deleteBound(ctx context.Context, networks []hns.Network, cause, reason string) error {
	var errs []error
	for _, n := range networks {
		if err := d.tries.due(changeOf(cause, n.ID)); err != nil {
			errs = append(errs, err)
			continue
		}
		if err := d.saveHostConfig(n); err != nil {
			if cause != causeRolledBack {
				errs = append(errs, err)
				continue
			}
			d.opts.Log.Warn("could not save the host's settings before the network is deleted", "cause", causeJournal, "network", n.Name, "error", err)
		}
		errs = append(errs, d.removeNetwork(ctx, n, cause, reason))
		deleted := !slices.ContainsFunc(d.networks, func(o hns.Network) bool { return o.ID == n.ID })
		if deleted && slices.Contains(d.hostConfig.Owned(true), n.Name) {
			const isSwitch, owned = true, false
			errs = append(errs, d.hostConfig.SetOwned(n.Name, isSwitch, owned))
		}
	}
	d.network, d.pending = nil, nil // the next pass lists what is left
	if err := errors.Join(errs...); err != nil {
		return err
	}
	d.dead = lasting[int]{}
	return dataplane.Waiting(cause, "the networks to be deleted (%s)", reason)
}

// rollBack deletes our networks on the adapter if the host has lacked its addresses
// for longer than Pace.Rollback (hostconfig.Keeper.TrackDark), so that somebody can reach
// the host. That the settings cannot be saved does not matter then. err is what the pass
// waits for, and the result unless networks are deleted. The next attempt to make the network
// (createNetwork) is made after Pace.Retry, and after twice as long each time.
func (d *Driver) rollBack(ctx context.Context, dev device, err error) error {
	adapters, readErr := d.stack.Adapters()
	if readErr != nil {
		return err
	}
	physical, parentErr := hostconfig.PhysicalAdapter(adapters, dev.Parent)
	found := parentErr == nil
	if d.network != nil {
		physical, found = hostconfig.NetworkAdapter(*d.network, adapters)
	}
	if !found {
		physical = hns.Adapter{} // which is not up, so TrackDark returns 0
	}
	dark := d.hostConfig.TrackDark(physical, adapters)
	if dark < d.pace.Rollback {
		return err
	}
	bound := d.boundNetworks(physical, adapters)
	if len(bound) == 0 || slices.ContainsFunc(bound, func(n hns.Network) bool { return !d.mayDelete(n) }) {
		return err // deleting ours would not free the adapter
	}
	wait := min(d.pace.Retry<<d.rolledBack, maxRetry)
	err = d.deleteBound(ctx, bound, causeRolledBack, fmt.Sprintf("the host has lacked its addresses for %s, the next attempt is in %s", d.pace.Rollback, wait))
	if len(d.boundNetworks(physical, adapters)) == 0 { // else HNS refused; err may be one of the journal
		d.rolledBack = min(d.rolledBack+1, 8)
		d.notBefore = time.Now().Add(wait)
	}
	return err
}

// maxRetry is the longest time between two attempts to make a network that was
// rolled back.
const maxRetry = time.Hour

// waitForRetry returns what createNetwork waits for after rollBack, or after HNS has
// deleted a network: it may refuse to create one at once (hcsshim#95).
func (d *Driver) waitForRetry(name string) error {
	if time.Now().Before(d.notBefore) {
		return dataplane.Waiting(causeRolledBack, "the next attempt to make the network %s, by which the host lost its addresses; restart flanneld to try at once", name)
	}
	if time.Since(d.deletedAt) < d.pace.Settle {
		return dataplane.Waiting(causeSettling, "HNS to settle after it deleted a network")
	}
	return nil
}
