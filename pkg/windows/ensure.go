package windows

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
	"flannel/pkg/windows/hns"
	"flannel/pkg/windows/hostconfig"
)

// Ensure implements Dataplane. Bringing up a network takes up to a minute, so
// each call goes as far as it can without waiting, and its error (a
// dataplane.WaitError) says what comes next. The steps, for an overlay on Ethernet:
//
//	wait until HNS answers and the adapter exists      (findNetwork)
//	delete networks of ours on a dead switch, whose
//	  adapter has got the host's addresses back        (deleteDeadSwitch)
//	adopt the network that exists, or save the host's
//	  settings, create it, wait for the address        (adoptOrCreate)
//	wait until HNS knows the host's address, or, on a
//	  bridge, until the host's adapter has it          (findManagementIP)
//	wait until an adapter has that address             (ensureNetwork, waitForHost)
//	restore host settings that did not come back       (hostconfig.Restore)
//	on a bridge, make and attach the host's endpoint   (bridge.finish)
//
// A network that leaves the host without addresses is deleted again (rollBack). If nothing
// has changed since a call that finished, Ensure does nothing. After an error, the next call
// reads everything again. The loop calls Ensure in each pass, and all methods below run in it.
// relist means: list the networks of HNS again.
func (d *Driver) Ensure(ctx context.Context, devices []dataplane.Device) (dataplane.Links, error) {
	if !reflect.DeepEqual(d.devices, devices) {
		d.devices = slices.Clone(devices)
		d.networksDirty.Store(true)
	}
	networks, adapters := d.networksDirty.Swap(false), d.adaptersDirty.Swap(false)
	due := !d.leftUntil.IsZero() && !time.Now().Before(d.leftUntil)
	if !networks && !adapters && d.ensureErr == nil && !due && !d.hostConfig.Pending() { // Pending: Restore has to look
		return d.links, nil
	}
	d.leftUntil = time.Time{}
	if d.device().network == nil { // no device is an HNS network: paths lead through the underlay
		d.dropNetwork(ctx, networks)
	}
	links, err := dataplane.Links{}, error(nil)
	for _, dev := range devices {
		if err = d.ensure(ctx, dev, networks || d.ensureErr != nil, links); err != nil {
			err = fmt.Errorf("device %s: %w", dev.Name, err)
			break
		}
	}
	if reconcile.IsUnknown(err) {
		d.keepKnown(links)
	}
	if err != nil && networks { // ensure relists after an error (ensureErr), dropNetwork does not
		d.networksDirty.Store(true)
	}
	if refused := (*refusedError)(nil); errors.As(err, &refused) {
		err = fmt.Errorf("%w (flanneld tries again, each time after a longer pause of up to 10 minutes; restart it to try at once)", err)
	}
	d.links, d.ensureErr = links, err
	d.setWaiting(err)
	return links, err
}

// leave logs the error of a change without which the network works, once until the change
// succeeds (err is nil) or has another error. text and attrs say which change it is. An err of
// tries, which spaces the attempts, causes another pass when the change is due.
func (d *Driver) leave(err error, cause, text string, attrs ...any) {
	which := fmt.Sprint(text, attrs)
	if err == nil {
		delete(d.left, which)
		return
	}
	if r, refused := errors.AsType[*refusedError](err); refused && (d.leftUntil.IsZero() || r.next.Before(d.leftUntil)) {
		d.leftUntil = r.next
	}
	if d.left[which] != err.Error() {
		d.left[which] = err.Error()
		d.opts.Log.Warn(text, append([]any{"cause", cause, "error", err}, attrs...)...)
	}
}

// setWaiting makes the watching goroutine cause passes until the next Ensure, if that
// waits for something, or left something to do: every Pace.Wait or, if HNS has refused a
// change, from its next try on. After another error, the loop retries after its own pauses.
func (d *Driver) setWaiting(err error) {
	refused, left := (*refusedError)(nil), d.leftUntil
	switch {
	case err == nil && !left.IsZero():
		d.wakeAt.Store(&left)
	case errors.As(err, &refused):
		d.wakeAt.Store(&refused.next)
	case errors.As(err, new(*dataplane.WaitError)):
		d.wakeAt.Store(new(time.Time)) // the zero Time is over: each tick wakes the loop
	default:
		d.wakeAt.Store(nil)
	}
}

// keepKnown adds the links of the last pass that this pass could not read. A network that
// is known to be missing has none.
func (d *Driver) keepKnown(links dataplane.Links) {
	for _, dev := range d.devices {
		old, known := d.links[dev.Name]
		_, isNetwork := dataplane.NetworkOf(dev.Kind)
		if _, read := links[dev.Name]; known && !read && (!isNetwork || d.network != nil) {
			links[dev.Name] = old
		}
	}
}

// dropNetwork is for a backend without an HNS network. It lists the networks, so
// that Apply deletes those that an earlier backend left. If HNS does not answer, and this
// run had a network, poll causes a pass when it finds that network. Else, as where HNS is
// not installed, networks are listed when networksDirty is set again.
func (d *Driver) dropNetwork(ctx context.Context, relist bool) {
	if d.network != nil {
		d.forgetTables()
	}
	d.network, d.target = nil, target{} // the tables want no entries
	if !relist {
		return
	}
	networks, err := d.client.Networks(ctx)
	if err == nil {
		d.networks, d.mayHaveUnwanted = networks, true
		d.recordObserved() // that no network is wanted: poll has nothing to do
	} else if last := d.observed.Load(); last != nil {
		d.observed.Store(&observed{name: last.name}) // without hash: poll causes a pass when HNS lists the network
	}
}

// ensure is the part of Ensure for one device: it adds the link of dev to links.
func (d *Driver) ensure(ctx context.Context, dev dataplane.Device, relist bool, links dataplane.Links) error {
	driven, err := deviceOf(dev)
	if err != nil {
		return err
	}
	adapters, err := d.stack.Adapters()
	if err != nil {
		return reconcile.Unknown(fmt.Errorf("list adapters: %w", err))
	}
	if driven.network != nil {
		return d.ensureNetwork(ctx, driven, relist, adapters, links)
	}
	i := slices.IndexFunc(adapters, func(a hns.Adapter) bool { return a.Name == dev.Name })
	if i < 0 {
		return dataplane.Waiting(hostconfig.CauseNoAdapter, "the adapter to appear")
	}
	host := adapters[i]
	if !host.Virtual() { // a switch, such as one of Hyper-V, may have taken its addresses
		const bound = false // so that it is host itself if there is no virtual adapter, and always found
		host, _ = hostconfig.HostAdapter(adapters, host, bound)
	}
	links[dev.Name] = dataplane.Link{Index: host.Index, MAC: host.MAC, MTU: host.MTU}
	return nil
}

// ensureNetwork adds the network's link to links as soon as peers can use it,
// even if it then returns that it waits for something else. rollBack returns the error
// that it gets, unless it deletes the network.
func (d *Driver) ensureNetwork(ctx context.Context, dev device, relist bool, adapters []hns.Adapter, links dataplane.Links) error {
	if err := d.findNetwork(ctx, dev, relist, adapters); err != nil {
		return d.rollBack(ctx, dev, err)
	}
	// A network that only binds a switch (Switch) has no tunnels that need the MAC address.
	if dev.network.tunnels() && d.network.DRMAC == (dataplane.MAC{}) && !dev.Switch {
		return d.rollBack(ctx, dev, dataplane.Waiting(causeNoMAC, "HNS to give the network its MAC address"))
	}
	link := dataplane.Link{MAC: d.network.DRMAC} // Index 0 while no adapter is found: policies do not need it
	host, found := d.managementAdapter(dev, adapters)
	if found {
		link.Index, link.MTU = host.Index, host.MTU
	}
	if found || dev.network.tunnels() {
		links[dev.name] = link
	}
	if err := d.hostConfig.Restore(d.networks); err != nil {
		return d.rollBack(ctx, dev, err)
	}
	if !found {
		return d.rollBack(ctx, dev, d.waitForHost(ctx, dev, adapters))
	}
	// The host has its address, so waitForHost and rollBack begin to count from zero again.
	d.hostConfig.SetReachable()
	d.wrongIP, d.rolledBack = lasting[wrongManagementIP]{}, 0
	if err := dev.network.finish(ctx, d, dev, host, adapters); err != nil {
		return err
	}
	return d.recordGood(host, adapters)
}

// findNetwork sets d.network to the network, with its management address. nil means that
// both are there; a bridge may do without the address. dev.Parent is the underlay.
func (d *Driver) findNetwork(ctx context.Context, dev device, relist bool, adapters []hns.Adapter) error {
	if relist || d.network == nil {
		if err := d.listNetworks(ctx, dev); err != nil {
			return reconcile.Unknown(err)
		}
	}
	if err := d.deleteDeadSwitch(ctx, dev.Parent, adapters); err != nil {
		return err
	}
	if err := d.adoptOrCreate(ctx, dev, adapters); err != nil {
		return err
	}
	return d.findManagementIP(ctx, dev, adapters)
}

// readVersion asks HNS for its version, once.
func (d *Driver) readVersion(ctx context.Context) error {
	if d.version != (hns.Version{}) {
		return nil
	}
	var err error
	d.version, err = d.client.Version(ctx)
	return waitIfSilent(err)
}

// listNetworks reads all networks, and sets d.network to the network of dev; nil: there is none.
func (d *Driver) listNetworks(ctx context.Context, dev device) error {
	if err := d.readVersion(ctx); err != nil {
		return err
	}
	networks, err := d.client.Networks(ctx)
	if errors.Is(err, hns.ErrUnavailable) {
		d.tries.hnsStopped()
	}
	if err != nil {
		return waitIfSilent(err)
	}
	d.networks, d.mayHaveUnwanted = networks, true
	found := slices.IndexFunc(networks, func(n hns.Network) bool { return n.Name == dev.name && isOurType(n) })
	if found < 0 {
		d.network = nil
	} else {
		next := networks[found]
		if d.network != nil && d.network.ID == next.ID && !next.ManagementIP.IsValid() {
			next.ManagementIP = d.network.ManagementIP // of a bridge: findManagementIP asked for it
		}
		d.network = &next
	}
	// The list includes the policies. policyStore.List takes them once, before the table
	// writes any: policies that are written later are not in this list.
	d.policiesFresh = true
	d.policies.Relist()
	d.remotes.Relist()
	d.recordObserved()
	return nil
}

// waitIfSilent turns the error of an HNS that does not answer into a WaitError, and
// returns other errors, and nil, as they are.
func waitIfSilent(err error) error {
	if errors.Is(err, hns.ErrUnavailable) || errors.Is(err, hns.ErrTimeout) {
		return dataplane.Waiting(causeHNSSilent, "the Host Networking Service: %w", err)
	}
	return err
}
