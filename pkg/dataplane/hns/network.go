package hns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"flannel/pkg/dataplane/driver"
	"flannel/pkg/dataplane/hns/hostconfig"
	"flannel/pkg/hns"
)

// adoptOrCreate sets d.network to the network of dev. A network with other
// properties than wanted is deleted, and the next pass makes it again.
func (d *Driver) adoptOrCreate(ctx context.Context, dev device, adapters []hns.Adapter) error {
	physical, adapterErr := hostconfig.PhysicalAdapter(adapters, dev.Parent)
	want, err := wantedNetwork(dev, physical.Name, d.version)
	if err != nil {
		return err
	}
	if len(want.Subnets) < len(dev.Subnets) {
		d.warnOnce(causeNoDualStack, fmt.Sprintf("this Windows (HNS %s) has no dual-stack networks, which need 11.10: pods of this node have IPv4 alone", d.version))
	}
	if d.network == nil {
		if err := d.checkNameFree(dev); err != nil {
			return err
		}
		if adapterErr != nil {
			return adapterErr
		}
		return d.createNetwork(ctx, dev, want, physical, adapters)
	}
	have := *d.network
	reason := differs(have, want)
	if reason == "" && adapterErr == nil && d.isOnOtherAdapter(have, dev, physical, adapters) {
		reason = fmt.Sprintf("its adapter is %s and not %s", have.Adapter, physical.Name)
	}
	if reason != "" {
		d.made.id = cmp.Or(d.made.id, have.ID) // HNS may have made it after the call timed out
		if d.made.id == have.ID && reflect.DeepEqual(d.made.want, want) {
			d.warnOnce(causeNetworkDiffers, "HNS made the network with other properties than requested: "+reason)
			reason = "" // making it again would give the same
		}
	}
	switch {
	case reason == "":
		return d.hostConfig.SetOwned(dev.name, dev.Switch, true)
	case dev.Switch && !slices.Contains(d.hostConfig.Owned(true), dev.name): // the name is one that others use
		return fmt.Errorf("there is an HNS network of this name that flanneld did not make (%s): remove it, or do without flanneld prepare", reason)
	}
	return d.deleteToRecreate(ctx, have, reason)
}

// isOnOtherAdapter reports whether a network is bound to another adapter than
// physical. If no adapter has the name that HNS reports, the adapter was renamed.
func (d *Driver) isOnOtherAdapter(n hns.Network, dev device, physical hns.Adapter, adapters []hns.Adapter) bool {
	exists := slices.ContainsFunc(adapters, func(a hns.Adapter) bool { return a.Name == n.Adapter })
	return exists && n.Adapter != physical.Name && !hostconfig.HasAddress(d.hostAdapter(n, adapters), dev.Local)
}

// checkNameFree returns an error if a network that is not ours has the name.
func (d *Driver) checkNameFree(dev device) error {
	i := slices.IndexFunc(d.networks, func(n hns.Network) bool { return n.Name == dev.name })
	switch {
	case i < 0:
		return nil
	case d.networks[i].Unread != nil:
		return fmt.Errorf("there is an HNS network of this name that cannot be read: remove it, or set Backend.Name to another: %w", d.networks[i].Unread)
	}
	return fmt.Errorf("there is an HNS network of this name and of type %s, which is not flannel's: remove it, or set Backend.Name to another", d.networks[i].Type)
}

// deleteToRecreate deletes a network of ours whose properties cannot be changed; the
// next pass makes the wanted one.
func (d *Driver) deleteToRecreate(ctx context.Context, n hns.Network, reason string) error {
	d.opts.Log.Warn("deleting an HNS network of ours to make it with the wanted properties; its pods must be made again",
		"cause", causeNetworkRemade, "network", n.Name, "id", n.ID, "reason", reason)
	if err := d.deleteNetwork(ctx, n); err != nil {
		return err
	}
	if d.network != nil && d.network.ID == n.ID {
		d.network = nil
	}
	return driver.Waiting(causeNetworkRemade, "the network %s to be deleted (%s)", n.Name, reason)
}

// deleteUnwanted deletes networks of ours that are not wanted: of another VNI, name
// or backend.
func (d *Driver) deleteUnwanted(ctx context.Context) error {
	if !d.mayHaveUnwanted || d.ensureErr != nil {
		return nil
	}
	d.mayHaveUnwanted = false
	var errs []error
	for _, n := range d.networks {
		if !d.ours(n) || d.network != nil && n.ID == d.network.ID {
			continue
		}
		d.opts.Log.Info("deleting an HNS network of ours that is no longer wanted", "network", n.Name, "id", n.ID)
		if err := d.deleteNetwork(ctx, n); err != nil {
			errs, d.mayHaveUnwanted = append(errs, err), true
		}
	}
	return errors.Join(errs...)
}

// deleteNetwork saves the host's settings first, since its addresses move back
// to the physical adapter.
func (d *Driver) deleteNetwork(ctx context.Context, n hns.Network) error {
	if err := d.saveHostConfig(n); err != nil {
		return err
	}
	d.networksDirty.Store(true)
	if err := d.client.DeleteNetwork(ctx, n.ID); err != nil && !errors.Is(err, hns.ErrNotFound) {
		return fmt.Errorf("delete the HNS network %s: %w", n.Name, err)
	}
	d.networks = slices.DeleteFunc(slices.Clone(d.networks), func(o hns.Network) bool { return o.ID == n.ID })
	if d.device().name != n.Name {
		return d.hostConfig.SetOwned(n.Name, false, false)
	}
	return nil
}

// ours reports whether a network may be deleted: its name is flannel.N, which
// only flannel and flanneld give, or the journal has it.
func (d *Driver) ours(n hns.Network) bool {
	return n.Type == hns.Overlay && isFlannelName(n.Name) || isOurType(n) && slices.Contains(d.hostConfig.Owned(false), n.Name)
}

func isOurType(n hns.Network) bool { return n.Type == hns.Overlay || n.Type == hns.L2Bridge }

func isFlannelName(name string) bool {
	number, ok := strings.CutPrefix(name, "flannel.")
	return ok && number != "" && strings.Trim(number, "0123456789") == ""
}
