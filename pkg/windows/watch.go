package windows

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"flannel/pkg/reconcile"
	"flannel/pkg/windows/hns"
)

// observed is the state of our network in a pass. The loop stores it in Driver.observed, and
// the goroutines that run beside the passes read it: watch, the sweeper and the podWatcher. An
// observed is not changed once it is stored.
type observed struct {
	name string // "": no HNS network is wanted
	hash uint64 // of ID, subnets and policies; 0: the network did not exist
	pods string // ID of the network if pods are on it, not only a switch
}

// recordObserved records the state of our network, with which poll compares.
func (d *Driver) recordObserved() {
	dev, o := d.device(), observed{}
	if dev.network != nil {
		o.name = dev.name
	}
	if d.network != nil {
		o.hash = hash(*d.network)
		if !dev.Switch {
			o.pods = d.network.ID
		}
	}
	d.observed.Store(&o)
}

// hash returns a number for the ID, the subnets and the policies of a network.
func hash(n hns.Network) uint64 {
	h := fnv.New64a()
	fmt.Fprintln(h, n.ID, n.Subnets)
	for _, p := range n.Policies {
		fmt.Fprintf(h, "%s %s\n", p.Type, p.Settings)
	}
	return h.Sum64()
}

// watch runs in a goroutine until ctx ends. It receives the notifications of HNS
// and of the IP stack, and polls HNS, which does not notify of deleted policies. While it
// gets none of the IP stack, each Pace.Poll counts as a change there.
func (d *Driver) watch(ctx context.Context) {
	stackChanges := make(chan struct{}, 1)
	subscribe := func() (stop func(), err error) { return d.stack.Watch(func() { reconcile.Notify(stackChanges) }) }
	stop, err := subscribe()
	if err != nil {
		d.opts.Log.Warn("cannot get notifications of changed routes and addresses, polling instead", "error", err)
	}
	defer func() {
		if err == nil {
			stop()
		}
	}()
	networkChanges := d.client.Changes(ctx)
	polled := time.Now()
	tick := time.NewTicker(d.pace.Wait) // all that is due here may be late by one tick
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-networkChanges: // of networks of anybody
			d.networksDirty.Store(true)
			reconcile.Notify(d.changes)
		case <-stackChanges:
			d.adaptersDirty.Store(true)
			d.routes.Relist()
			reconcile.Notify(d.changes)
		case <-tick.C:
			d.restoreHostConfig(ctx)
			if at := d.wakeAt.Load(); at != nil && !time.Now().Before(*at) { // the last Ensure waits for something
				reconcile.Notify(d.changes)
			}
			if time.Since(polled) >= d.pace.Poll {
				d.poll(ctx)
				polled = time.Now()
				if err != nil {
					stop, err = subscribe()
					reconcile.Notify(stackChanges) // also after a success: for changes before the subscription
				}
			}
		}
	}
}

// restoreHostConfig restores host settings also while nobody calls Ensure: without
// them the daemon may not reach the API that it waits for. An error is what Restore waits
// for, and the next tick calls it again.
func (d *Driver) restoreHostConfig(ctx context.Context) {
	d.hostConfig.TrackCategory()    // notices when somebody makes the host's network public
	_ = d.hostConfig.WriteSettled() // the Keeper has logged why it could not write at once; the next tick tries again
	if !d.hostConfig.Pending() || reconcile.IsUnknown(d.hostConfig.ReadErr()) {
		return // there is nothing to restore, or that cannot be read
	}
	networks, err := d.client.Networks(ctx)
	if err == nil {
		err = d.completing(func() error { return d.hostConfig.Restore(networks) })
	}
	if err != nil {
		d.opts.Log.Debug("restoring host settings", "state", err)
	}
}

// AwaitHostAddrs implements dataplane.Dataplane: after a boot and when a switch changes,
// Windows may put a DHCP lease in the place of the host's static address. The loop calls it
// before it chooses the underlay, and chooses none after an error. A daemon that starts makes
// no pass before that. So while it cannot read the journal, it rolls no network back either.
func (d *Driver) AwaitHostAddrs(ctx context.Context) error {
	if !d.hostConfig.NeedsStatic() {
		return nil
	}
	if err := d.hostConfig.ReadErr(); reconcile.IsUnknown(err) {
		return err
	}
	networks, err := d.client.Networks(ctx)
	if err != nil {
		return reconcile.Unknown(waitIfSilent(fmt.Errorf("compare the host's addresses with those before: %w", err)))
	}
	return d.completing(func() error { return d.hostConfig.RestoreStatic(networks) })
}

// completing calls a method of the Keeper. If nothing of the snapshot is missing any
// more afterwards, it causes a pass, which records the settings as the last good ones.
func (d *Driver) completing(restore func() error) error {
	before := d.hostConfig.HasSnapshot()
	err := restore()
	if before && !d.hostConfig.HasSnapshot() {
		d.adaptersDirty.Store(true)
		reconcile.Notify(d.changes)
	}
	return err
}

// poll compares our network with its state in the last pass, and causes a pass if they
// differ, or if HNS does not answer: the pass then reports that.
func (d *Driver) poll(ctx context.Context) {
	last := d.observed.Load()
	if last == nil || last.name == "" {
		return
	}
	networks, err := d.client.Networks(ctx)
	current := observed{name: last.name, pods: last.pods} // hash 0: it does not exist
	if i := slices.IndexFunc(networks, func(n hns.Network) bool { return n.Name == last.name && isOurType(n) }); i >= 0 {
		current.hash = hash(networks[i])
	}
	if err != nil || current != *last {
		d.networksDirty.Store(true)
		reconcile.Notify(d.changes)
	}
}
