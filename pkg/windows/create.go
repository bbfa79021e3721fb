package windows

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
	"flannel/pkg/windows/hostconfig"
)

// createNetwork is a step of Ensure (adoptOrCreate): it creates the network want of the
// device dev on the adapter physical, once the host has all its settings and they are
// saved. After each step that takes time, it returns an error; the next pass calls it
// again. So its order is that in which a crash at any point loses nothing: the settings and
// the name are in the journal before HNS is asked.
func (d *Driver) createNetwork(ctx context.Context, dev device, want hns.Network, physical hns.Adapter, adapters []hns.Adapter) error {
	if err := d.checkSwitchType(want, physical, adapters); err != nil {
		return err
	}
	for _, n := range d.networks {
		if d.ours(n) && hostconfig.IsBound([]hns.Network{n}, physical, adapters) {
			return d.deleteToRecreate(ctx, n, "another takes its place: "+want.Name)
		}
	}
	bound := hostconfig.IsBound(d.networks, physical, adapters)
	if !bound {
		// In a try, so that ticks cause no passes while the adapter is refused (setWaiting).
		if err := d.tries.try(changeOf(verbBindAdapter, physical.GUID), func() error { return d.checkAdapter(dev, want, physical) }); err != nil {
			return err
		}
	}
	if err := d.waitForRetry(want.Name); err != nil {
		return err
	}
	creation := changeOf(verbCreateNetwork, want)
	if err := d.tries.due(creation); err != nil {
		return waitIfSilent(err)
	}
	host, ok := hostconfig.HostAdapter(adapters, physical, bound)
	if !ok {
		return dataplane.Waiting(hostconfig.CauseNoAdapter, "the virtual adapter that replaces %s", physical.Name)
	}
	routes, err := d.routesOfOthers()
	if err != nil {
		return err
	}
	if err := d.hostConfig.Save(host, physical, adapters, routes); err != nil {
		return err
	}
	if err := d.hostConfig.Restore(d.networks); err != nil {
		return err
	}
	if len(hostconfig.Addresses(host)) == 0 {
		return dataplane.Waiting(hostconfig.CauseNoAddress, "%s to have its addresses", host.Name) // Restore has just added them
	}
	// The journal has a list of networks, and one of switches (dev.Switch), which prepare makes.
	owned := slices.Contains(d.hostConfig.Owned(dev.Switch), dev.name) // before this pass
	const isOwned = true
	if err := d.hostConfig.SetOwned(dev.name, dev.Switch, isOwned); err != nil {
		return err
	}
	d.networksDirty.Store(true) // whatever HNS answers, the next Ensure lists
	var made hns.Network
	err = d.tries.try(creation, func() (err error) {
		made, err = d.request(ctx, want, site{host, physical, bound, adapters, routes})
		if nameExists(err) {
			return d.deleteGhost(ctx, creation, dev, owned, err)
		}
		return err
	})
	if nameExists(err) && !owned { // somebody else made the network of this name: the journal must not have it
		if err := d.hostConfig.SetOwned(dev.name, dev.Switch, !isOwned); err != nil {
			return err
		}
	}
	if err != nil {
		return waitIfSilent(err)
	}
	if err := d.recordRequest(made.ID, want); err != nil {
		return err // the next pass adopts the network by its name
	}
	text := "made an HNS network; the host's address moves to its virtual adapter"
	if bound {
		text = "made an HNS network on the switch that the adapter has; the host's address stays"
	}
	d.opts.Log.Info(text, "cause", causeNetworkMade, "bound", bound, "network", made.Name, "type", made.Type, "id", made.ID,
		"adapter", physical.Name, "subnet", subnets(want.Subnets))
	return dataplane.Waiting(causeAddressMoves, "the host's addresses to move to the virtual adapter of %s", physical.Name)
}

// checkSwitchType returns an error if HNS cannot create the network because of
// another one on the adapter: on a switch of another type, it has no overlay
// (microsoft/SDN#300).
func (d *Driver) checkSwitchType(want hns.Network, physical hns.Adapter, adapters []hns.Adapter) error {
	for _, n := range d.boundNetworks(physical, adapters) {
		// Unread: the type of n is not known. d.network does not count, since adoptOrCreate deletes it, nor do other networks
		// of ours: createNetwork deletes them.
		isDeleted := d.ours(n) || d.network != nil && n.ID == d.network.ID
		if want.Type != hns.Overlay || n.Type == hns.Overlay || n.Unread != nil || isDeleted {
			continue
		}
		fix := "delete it (hnsdiag delete networks " + n.ID + "), or use host-gw"
		if d.mayDelete(n) {
			fix = "run flanneld cleanup (in Kubernetes, by the Windows part of kube-flannel-cleanup.yml), and then flanneld prepare --network-mode=overlay"
		}
		return fmt.Errorf("the adapter %s has a switch of type %s, of the HNS network %s, on which HNS has no overlay: %s", physical.Name, n.Type, n.Name, fix)
	}
	return nil
}

// site is where a network is to be made, and what the machine has before HNS is asked.
type site struct {
	host, physical hns.Adapter
	bound          bool // a switch is bound to physical
	adapters       []hns.Adapter
	routes         []hns.Route // that are not ours
}

// request asks HNS for the network, on the adapter that the request names. If a switch is
// bound to the adapter, HNS may refuse the name (sig-windows-tools#103,
// microsoft/SDN#269), or may need it (azure-container-networking#4439). After a refusal,
// request asks with the host's address instead (hcsshim#2801), and then with neither, by
// which HNS takes the existing switch (azure-container-networking#184). Without the name,
// HNS may put the network on another adapter. The next pass finds that, and deletes the
// network as it does with every one that is not as wanted (difference).
func (d *Driver) request(ctx context.Context, want hns.Network, at site) (hns.Network, error) {
	made, named := d.ask(ctx, want)
	if !isAboutAdapter(named) {
		return made, named
	}
	if !at.bound {
		if at.host.Index != at.physical.Index {
			return made, fmt.Errorf("%s has a switch that HNS does not list, such as one of Hyper-V: remove it (Remove-VMSwitch), or select another adapter with --iface: %w", at.physical.Name, named)
		}
		return made, named
	}
	if d.misplaced.id != "" { // HNS would do it again
		return made, d.misplaced.explain(at.physical, named)
	}
	want.Adapter, want.HostIP = "", firstIPv4(at.host)
	made, err := d.ask(ctx, want)
	if isAboutAdapter(err) {
		want.HostIP = netip.Addr{}
		made, err = d.ask(ctx, want)
	}
	if err != nil && !isAboutAdapter(err) {
		return made, err // such as a timeout, after which difference looks where HNS put the network
	}
	if err != nil {
		return made, named
	}
	// HNS may report the name that the adapter had before it was renamed.
	i := slices.IndexFunc(at.adapters, func(a hns.Adapter) bool { return a.Name == made.Adapter })
	if made.Adapter == at.physical.Name || i < 0 {
		return made, nil
	}
	other := at
	other.host, other.physical, other.bound = at.adapters[i], at.adapters[i], hostconfig.IsBound(d.networks, at.adapters[i], at.adapters)
	if host, found := hostconfig.HostAdapter(at.adapters, other.physical, other.bound); found {
		other.host = host
	}
	d.misplaced = misplaced{made.ID, other}
	return hns.Network{}, d.misplaced.explain(at.physical, named)
}

// misplaced is a network that HNS put on another adapter than the wanted one, whose name it
// refuses. The zero value: there was none in this run.
type misplaced struct {
	id string // of the network
	at site   // where it is, with what the host had there before
}

// explain returns the error of a request for the network on the wanted adapter. refused is
// the error of HNS for the adapter's name.
func (m misplaced) explain(wanted hns.Adapter, refused error) error {
	return fmt.Errorf("HNS refuses the name of the adapter %s, and without it puts the network on %s, from which flanneld removes it: restart HNS, or delete the networks on %s: %w",
		wanted.Name, m.at.physical.Name, wanted.Name, refused)
}

// ask asks HNS for the network once, and keeps the request in d.pending while HNS may
// still make the network: until it refuses, or recordRequest has recorded the request.
func (d *Driver) ask(ctx context.Context, want hns.Network) (hns.Network, error) {
	d.pending = &want
	made, err := d.client.CreateNetwork(ctx, want)
	if err != nil && isRefusal(err) {
		d.pending = nil
	}
	return made, err
}

// isAboutAdapter reports whether HNS refused a network in a way in which it
// refuses an adapter, or a policy that selects one.
func isAboutAdapter(err error) bool {
	e := (*hns.Error)(nil)
	return errors.As(err, &e) && slices.Contains([]hns.Code{hns.AdapterNotFound, hns.NetAdapterNotFound, hns.InvalidParameter,
		hns.InvalidPolicy, hns.InvalidPolicyType}, e.Code)
}

// firstIPv4 returns the first IPv4 address of an adapter; zero: it has none.
func firstIPv4(a hns.Adapter) netip.Addr {
	for _, addr := range hostconfig.Addresses(a) {
		if addr.Prefix.Addr().Is4() {
			return addr.Prefix.Addr()
		}
	}
	return netip.Addr{}
}
