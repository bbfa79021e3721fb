package windows

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
	"flannel/pkg/windows/hostconfig"
)

// adoptOrCreate is a step of Ensure: without d.network, which listNetworks has
// found, it creates the network of dev. A network with other properties than wanted
// is deleted, after awaitUnderlay and if checkSwitchType allows what takes its place, and
// the next pass makes it again. nil: d.network is as wanted, and tries has
// forgotten refusals to create or delete it. dev.Switch: the network is that of flanneld
// prepare. The journal has two lists of names. The first bool of Owned and SetOwned says
// whether the list of switches is meant, the second bool of SetOwned whether the list is to
// have the name.
func (d *Driver) adoptOrCreate(ctx context.Context, dev device, adapters []hns.Adapter) error {
	physical, adapterErr := hostconfig.PhysicalAdapter(adapters, dev.Parent) // after an error, its Name is ""
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
			return adapterErr // a network that exists does not need the adapter now
		}
		return d.createNetwork(ctx, dev, want, physical, adapters)
	}
	have := *d.network
	reason := d.difference(have, want, dev, adapters)
	switch {
	case reason == "":
		d.moving = lasting[movingUnderlay]{}
		// The request to delete a network is its ID.
		d.tries.forget(func(c change) bool { return c.verb == verbCreateNetwork || c.request == have.ID })
		return errors.Join(d.hostConfig.SetOwned(dev.name, dev.Switch, true), d.recordRequest(have.ID, want))
	case dev.Switch && !slices.Contains(d.hostConfig.Owned(true), dev.name): // the name is one that others use
		return fmt.Errorf("there is an HNS network of this name that flanneld did not make (%s): remove it, or do without flanneld prepare", reason)
	}
	if err := d.awaitUnderlay(have, want, dev, adapters, reason); err != nil {
		return err
	}
	if adapterErr == nil { // have stays if HNS cannot create what takes its place
		if err := d.checkSwitchType(want, physical, adapters); err != nil {
			return err
		}
	}
	return d.deleteToRecreate(ctx, have, reason)
}

// movingUnderlay is an adapter that is wanted for a network on another adapter.
type movingUnderlay struct {
	network string // ID
	adapter string
}

// awaitUnderlay returns a WaitError until another adapter than that of the network has been
// wanted for the time in which Windows or a Keeper restores addresses. The network's adapter
// lacks them after the network was made, or while its cable is out, and meanwhile another
// adapter with a default route is the underlay. If another adapter is wanted for any other
// reason, such as a change of --iface, awaitUnderlay waits as well. It does not wait for
// prepare, whose adapter is fixed (dev.Switch), nor for a network that HNS has just put on
// an adapter that it was not asked for (request).
func (d *Driver) awaitUnderlay(have, want hns.Network, dev device, adapters []hns.Adapter, reason string) error {
	misplaced := d.pending != nil && d.pending.Name == have.Name && d.pending.Adapter == ""
	if dev.Switch || misplaced || !d.isOnOtherAdapter(have, want.Adapter, dev.Local, adapters) {
		d.moving = lasting[movingUnderlay]{}
		return nil
	}
	limit := d.pace.Address + d.pace.DHCP
	if d.moving.look(movingUnderlay{have.ID, want.Adapter}, limit) < limit {
		return dataplane.Waiting(causeUnderlayMoves, "the underlay to stay on %s, before the network %s is deleted (%s)", want.Adapter, have.Name, reason)
	}
	return nil
}

// difference returns why our network has to be made again; "": it need not. What
// counts is what HNS was asked for when it made the network: if it reports something else,
// the same request would give the same network. What HNS reports counts only if the request
// is not known, or if another adapter is wanted now. The journal has the request, or
// d.pending while HNS has not answered; that one may be for a network of another name, if
// the configuration has changed since.
func (d *Driver) difference(have, want hns.Network, dev device, adapters []hns.Adapter) string {
	reported := differs(have, want)
	if reported == "" && d.isOnOtherAdapter(have, want.Adapter, dev.Local, adapters) {
		reported = fmt.Sprintf("its adapter is %s and not %s", have.Adapter, want.Adapter)
	}
	asked, known := d.hostConfig.Requested(have.ID)
	if !known && d.pending != nil && d.pending.Name == have.Name { // HNS made it after the call timed out
		asked, known = requested(*d.pending), true
	}
	if !known {
		return reported
	}
	reason := differs(hns.Network{Type: asked.Type, Subnets: asked.Subnets, VxlanPort: asked.VxlanPort}, want)
	switch {
	case reason != "": // HNS was asked for something else than is wanted now
	case reported != "" && asked.Adapter == want.Adapter: // making it again would give the same
		d.warnOnce(causeNetworkDiffers, "HNS reports other properties of the network than it was asked for: "+reported)
	case d.isOnOtherAdapter(have, want.Adapter, dev.Local, adapters): // the adapter was not just renamed
		return reported
	}
	return reason
}

// isOnOtherAdapter reports whether a network is bound to another adapter than the
// physical one that is named ("": not known). If no adapter has the name that HNS
// reports, the adapter was renamed. local is the host's address: the network's adapter is
// the right one if it has that.
func (d *Driver) isOnOtherAdapter(n hns.Network, physical string, local netip.Addr, adapters []hns.Adapter) bool {
	exists := slices.ContainsFunc(adapters, func(a hns.Adapter) bool { return a.Name == n.Adapter })
	return physical != "" && exists && n.Adapter != physical && !hostconfig.HasAddress(d.hostAdapter(n, adapters), local)
}

// requested returns the properties of a network that the journal keeps, since HNS cannot
// change them.
func requested(n hns.Network) hostconfig.Requested {
	return hostconfig.Requested{Type: n.Type, Adapter: n.Adapter, Subnets: n.Subnets, VxlanPort: n.VxlanPort}
}

// recordRequest writes to the journal what the network with this ID was asked for
// or, if somebody else made it, what it was found to be. The journal forgets those
// of networks that HNS does not have (d.networks).
func (d *Driver) recordRequest(id string, want hns.Network) error {
	if want.Adapter == "" {
		return nil // the adapter is missing at the moment; a later pass records it
	}
	d.pending = nil
	return d.hostConfig.SetRequested(id, requested(want), d.networks)
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
	if err := d.deleteNetwork(ctx, n, causeNetworkRemade, reason); err != nil {
		return err
	}
	if d.network != nil && d.network.ID == n.ID {
		d.network = nil
	}
	return dataplane.Waiting(causeNetworkRemade, "the network %s to be deleted (%s)", n.Name, reason)
}

// deleteUnwanted is called by Apply, at the end of a pass that may delete. It
// deletes networks of ours that are not wanted: of another VNI, name or backend. It
// looks for them once after each list (mayHaveUnwanted), and not before the wanted
// network is up: then ensureErr, of the last Ensure, is nil.
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
		if err := d.deleteNetwork(ctx, n, causeUnwanted, "it is no longer wanted"); err != nil {
			errs, d.mayHaveUnwanted = append(errs, err), true
		}
	}
	return errors.Join(errs...)
}

// deleteNetwork deletes a network, if an earlier refusal allows it (tries). It saves the
// host's settings first, since the addresses move back to the physical adapter.
func (d *Driver) deleteNetwork(ctx context.Context, n hns.Network, cause, reason string) error {
	if err := d.tries.due(changeOf(cause, n.ID)); err != nil {
		return err
	}
	if err := d.saveHostConfig(n); err != nil {
		return err
	}
	return d.removeNetwork(ctx, n, cause, reason)
}

// removeNetwork is deleteNetwork without saving. deleteBound, which calls it, has
// saved the settings or, in a rollback, could not; deleteLeftover calls it when there is
// nothing to save. cause is one in the log, and the
// verb by which tries spaces the attempts; reason is for people. networksDirty makes the
// next Ensure list the networks, and deletedAt makes it wait before it creates one. The
// journal keeps the name of the wanted network; the caller removes the name of a switch.
func (d *Driver) removeNetwork(ctx context.Context, n hns.Network, cause, reason string) error {
	d.networksDirty.Store(true)
	err := d.tries.try(changeOf(cause, n.ID), func() error {
		d.deletedAt = time.Now() // also if HNS answers too late
		if err := d.client.DeleteNetwork(ctx, n.ID); err != nil && !errors.Is(err, hns.ErrNotFound) {
			return fmt.Errorf("delete the HNS network %s: %w", n.Name, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	d.deletedAt = time.Now()
	level := slog.LevelWarn
	if cause == causeUnwanted {
		level = slog.LevelInfo
	}
	d.opts.Log.Log(ctx, level, "deleted an HNS network of ours, its pods must be made again", "cause", cause, "network", n.Name, "id", n.ID, "reason", reason)
	d.networks = slices.DeleteFunc(slices.Clone(d.networks), func(o hns.Network) bool { return o.ID == n.ID })
	if d.device().name != n.Name {
		const isSwitch, owned = false, false
		return d.hostConfig.SetOwned(n.Name, isSwitch, owned)
	}
	return nil
}

// ours reports whether a network may be deleted: its name is flannel.N, which
// only flannel and flanneld give, or the journal has it.
func (d *Driver) ours(n hns.Network) bool {
	return n.Type == hns.Overlay && isFlannelName(n.Name) || isOurType(n) && slices.Contains(d.hostConfig.Owned(false), n.Name)
}

// isOurType reports whether a network has a type that flanneld makes.
func isOurType(n hns.Network) bool { return n.Type == hns.Overlay || n.Type == hns.L2Bridge }

// isFlannelName reports whether a name is that of an overlay of flannel, such as
// flannel.4096.
func isFlannelName(name string) bool {
	number, ok := strings.CutPrefix(name, "flannel.")
	return ok && number != "" && strings.Trim(number, "0123456789") == ""
}
