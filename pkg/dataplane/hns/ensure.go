package hns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"flannel/pkg/dataplane"
	"flannel/pkg/hns"
	"flannel/pkg/reconcile"
)

// Ensure implements Dataplane. It goes as far as it can get without waiting, and its error says what it waits for: for
// HNS, the adapter, the network (adopted, or made), its management address, the interface with that address, what the
// host had on the adapter, and on a bridge the host's own endpoint. As long as nothing happened it costs nothing.
func (d *Driver) Ensure(ctx context.Context, devices []dataplane.Device) (dataplane.Links, error) {
	if !reflect.DeepEqual(d.devices, devices) {
		d.devices = slices.Clone(devices)
		d.networksDirty.Store(true)
	}
	networks, adapters := d.networksDirty.Swap(false), d.adaptersDirty.Swap(false)
	if !networks && !adapters && d.problem == nil && !d.home.pending() {
		return d.ensured, nil
	}
	if d.device().network() == nil {
		d.withoutNetwork(ctx, networks)
	}
	links, err := dataplane.Links{}, error(nil)
	for _, dev := range devices {
		if err = d.ensure(ctx, dev, networks || d.problem != nil, links); err != nil {
			err = fmt.Errorf("device %s: %w", dev.Name, err)
			break
		}
	}
	if reconcile.IsUnknown(err) {
		d.keepKnown(links)
	}
	if err != nil && networks {
		d.networksDirty.Store(true)
	}
	d.ensured, d.problem = links, err
	d.waits.Store(err != nil)
	return links, err
}

// keepKnown adds to links, after a pass that could not look at everything, what an earlier one knew.
func (d *Driver) keepKnown(links dataplane.Links) {
	for _, dev := range d.devices {
		old, known := d.ensured[dev.Name]
		if _, seen := links[dev.Name]; known && !seen && (!isNetwork(dev) || d.network != nil) {
			links[dev.Name] = old
		}
	}
}

// withoutNetwork is for a backend that needs none: what another left is to go, and an HNS that is not there left nothing.
func (d *Driver) withoutNetwork(ctx context.Context, list bool) {
	if d.network != nil {
		d.forget()
	}
	d.network, d.on = nil, place{}
	if !list {
		return
	}
	if networks, err := d.client.Networks(ctx); err == nil {
		d.networks, d.strays = networks, true
	}
}

func isNetwork(dev dataplane.Device) bool { _, is := dev.Kind.(dataplane.HNS); return is }

func (d *Driver) ensure(ctx context.Context, dev dataplane.Device, list bool, links dataplane.Links) error {
	driven, err := drive(dev)
	if err != nil {
		return err
	}
	adapters, err := d.stack.Adapters()
	if err != nil {
		return reconcile.Unknown(fmt.Errorf("list adapters: %w", err))
	}
	return driven.ensure(ctx, d, driven, list, adapters, links)
}

// findNetwork leaves the network, with its management address, in d.network.
func (d *Driver) findNetwork(ctx context.Context, dev device, list bool, adapters []hns.Adapter) error {
	if list || d.network == nil {
		if err := d.list(ctx, dev); err != nil {
			return reconcile.Unknown(err)
		}
	}
	if err := d.adoptOrMake(ctx, dev, adapters); err != nil {
		return err
	}
	return d.managementIP(ctx, dev)
}

// meetNetwork leaves the network's link in links as soon as peers can be told of it, whatever it still waits for.
func (d *Driver) meetNetwork(ctx context.Context, dev device, adapters []hns.Adapter, links dataplane.Links) error {
	link := dataplane.Link{MAC: d.network.DRMAC}
	host, there := d.meets(dev, adapters)
	if there {
		link.Index, link.MTU = host.Index, host.MTU
	}
	if there || dev.network().tunnels() {
		links[dev.name] = link
	}
	if err := d.home.mend(d.networks); err != nil {
		return err
	}
	if !there {
		return d.notThere(ctx, dev, adapters)
	}
	d.foreign = wrong{}
	if err := dev.network().meet(ctx, d, dev, host, adapters); err != nil {
		return err
	}
	return d.well(host, adapters)
}

// ask learns what HNS is, once.
func (d *Driver) ask(ctx context.Context) error {
	if d.asked {
		return nil
	}
	v, f, err := d.client.Features(ctx)
	if err != nil {
		return unanswered(err)
	}
	d.version, d.features, d.asked = v, f, true
	return nil
}

// list asks for all networks, and for the version before the first time.
func (d *Driver) list(ctx context.Context, dev device) error {
	if err := d.ask(ctx); err != nil {
		return err
	}
	networks, err := d.client.Networks(ctx)
	if err != nil {
		return unanswered(err)
	}
	d.networks, d.strays = networks, true
	found := slices.IndexFunc(networks, func(n hns.Network) bool { return n.Name == dev.name && ourType(n) })
	if found < 0 {
		d.network = nil
	} else {
		next := networks[found]
		if d.network != nil && d.network.ID == next.ID && !next.ManagementIP.IsValid() {
			next.ManagementIP = d.network.ManagementIP // of a bridge, asked for separately
		}
		d.network = &next
	}
	// The policies were read along with it. What was written since cannot be in them, so the table takes them at once.
	d.listed = true
	d.policies.Relist()
	d.remotes.Relist()
	d.sight()
	return nil
}

func unanswered(err error) error {
	if errors.Is(err, hns.ErrUnavailable) || errors.Is(err, hns.ErrTimeout) {
		return waiting(causeHNSSilent, "the Host Networking Service: %w", err)
	}
	return err
}

// adoptOrMake leaves the network in d.network.
func (d *Driver) adoptOrMake(ctx context.Context, dev device, adapters []hns.Adapter) error {
	physical, adapterErr := physicalAdapter(adapters, dev.Parent)
	want, err := wantedNetwork(dev, physical.Name, d.version, d.features)
	if err != nil {
		return err
	}
	if len(want.Subnets) < len(dev.Subnets) {
		d.warnOnce(causeNoDualStack, fmt.Sprintf("this Windows (HNS %s) has no dual-stack networks, which need 11.10: pods of this node have IPv4 alone", d.version))
	}
	if d.network == nil {
		if i := slices.IndexFunc(d.networks, func(n hns.Network) bool { return n.Name == dev.name }); i >= 0 && d.networks[i].Unread != nil {
			return fmt.Errorf("there is an HNS network of this name that cannot be understood: remove it, or set Backend.Name to another: %w", d.networks[i].Unread)
		} else if i >= 0 {
			return fmt.Errorf("there is an HNS network of this name and of type %s, which is not flannel's: remove it, or set Backend.Name to another", d.networks[i].Type)
		}
		if adapterErr != nil {
			return adapterErr
		}
		return d.make(ctx, dev, want, physical, adapters)
	}
	have := *d.network
	why := differs(have, want)
	if why == "" && adapterErr == nil && have.Adapter != physical.Name && !hasAddress(d.hostOf(have, adapters), dev.Local) &&
		slices.ContainsFunc(adapters, func(a hns.Adapter) bool { return a.Name == have.Adapter }) {
		why = fmt.Sprintf("its adapter is %s and not %s", have.Adapter, physical.Name)
	}
	if why != "" && d.made.is(have.ID, want) {
		d.warnOnce(causeNetworkDiffers, "HNS made the network otherwise than asked: "+why)
		why = ""
	}
	switch {
	case why == "":
		return d.home.own(dev, true)
	case dev.Switch && !slices.Contains(d.home.switches(), dev.name): // the name is one that others use
		return fmt.Errorf("there is an HNS network of this name that flanneld did not make (%s): remove it, or do without flanneld prepare", why)
	}
	return d.remake(ctx, have, why)
}

// made is a network as it was asked for, and the ID that it got.
type made struct {
	id   string
	want hns.Network
}

// is tells whether to make a network again would give the same again.
func (m *made) is(id string, want hns.Network) bool {
	m.id = cmp.Or(m.id, id)
	return m.id == id && reflect.DeepEqual(m.want, want)
}

// make binds the adapter, after what it has was written down and is there.
func (d *Driver) make(ctx context.Context, dev device, want hns.Network, physical hns.Adapter, adapters []hns.Adapter) error {
	for _, n := range d.networks {
		if d.ours(n) && isBound([]hns.Network{n}, physical, adapters) {
			return d.remake(ctx, n, "another takes its place: "+want.Name)
		}
	}
	bound := isBound(d.networks, physical, adapters)
	host, ok := hostAdapter(adapters, physical, bound)
	if !ok {
		return waiting(causeNoAdapter, "the virtual adapter that takes the place of %s", physical.Name)
	}
	routes, err := d.stack.Routes()
	if err != nil {
		return reconcile.Unknown(fmt.Errorf("list routes: %w", err))
	}
	if err := d.home.leave(host, physical, d.scope.theirs(routes)); err != nil {
		return err
	}
	if err := d.home.mend(d.networks); err != nil {
		return err
	}
	if len(addresses(host)) == 0 {
		return waiting(causeNoAddress, "%s to have its addresses", host.Name) // just put back
	}
	if err := d.home.own(dev, true); err != nil {
		return err
	}
	d.networksDirty.Store(true)
	d.made = made{want: want} // HNS may make it although it answers late or never
	made, err := d.client.CreateNetwork(ctx, want)
	if err != nil {
		return unanswered(err)
	}
	d.made.id = made.ID
	what := "made an HNS network; the host's address moves to its virtual adapter"
	if bound {
		what = "made an HNS network on the switch that the adapter has; the host's address stays"
	}
	d.opts.Log.Info(what, "cause", causeNetworkMade, "bound", bound, "network", made.Name, "type", made.Type, "id", made.ID,
		"adapter", physical.Name, "subnet", subnets(want.Subnets))
	return waiting(causeAddressMoves, "the host's addresses to move to the virtual adapter of %s", physical.Name)
}

// remake deletes a network of ours that cannot be the wanted one; the next pass makes that.
func (d *Driver) remake(ctx context.Context, n hns.Network, why string) error {
	d.opts.Log.Warn("deleting an HNS network of ours to make it as it shall be; its pods must be made again",
		"cause", causeNetworkRemade, "network", n.Name, "id", n.ID, "reason", why)
	if err := d.deleteNetwork(ctx, n); err != nil {
		return err
	}
	if d.network != nil && d.network.ID == n.ID {
		d.network = nil
	}
	return waiting(causeNetworkRemade, "the network %s to go (%s)", n.Name, why)
}
