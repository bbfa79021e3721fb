package windows

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
	"flannel/pkg/windows/hns"
	"flannel/pkg/windows/hostconfig"
)

// prepare is the work of the command prepare, in a process without the daemon's
// loop. It repeats prepareStep when something has changed, and after pauses, until
// there is nothing to wait for, an error is final, or ctx ends (--timeout). report
// is called with what it waits for, whenever that changes.
func (d *Driver) prepare(ctx context.Context, dev dataplane.Device, report func(error)) (dataplane.Prepared, error) {
	var p preparation
	var final error
	r := reconcile.Runner{
		News:  []<-chan struct{}{d.changes},          // of networks, adapters, addresses and routes
		Retry: reconcile.Backoff{First: d.pace.Wait}, // all pauses are as long
		// nil ends Until. After an error, Retry decides when Work is called again, and
		// not the duration.
		Work: func(ctx context.Context) (time.Duration, error) { // all errors but a final one are waited for
			err := d.prepareStep(ctx, dev, &p)
			switch {
			case isFinal(err):
				final = err
				return 0, nil
			case err == nil && d.hostConfig.HasSnapshot(): // Restore deletes it when nothing was missing for a while
				err = dataplane.Waiting(hostconfig.CauseNoAddress, "the host to keep its addresses, routes and DNS servers")
			case err == nil && d.hostConfig.Unfinished():
				err = dataplane.Waiting(hostconfig.CauseCategoryPending, "the category of the host's network")
			case err == nil:
				err = d.hostConfig.WriteSettled()
			}
			return 0, err
		},
		Tell: func(err error) {
			if err != nil {
				report(err)
			}
		},
	}
	if err := r.Until(ctx); err != nil {
		_, _ = d.look(context.WithoutCancel(ctx), dev, &p) // the last step may have made the network; after an error p stays
		reason := "gave up"
		if errors.Is(ctx.Err(), context.Canceled) {
			reason = "interrupted"
		}
		return p.Prepared, fmt.Errorf("%s: %w", reason, err)
	}
	return p.Prepared, final
}

// isFinal reports whether prepare gives up at once.
func isFinal(err error) bool {
	return errors.As(err, new(*tooOldError)) || errors.As(err, new(*unsuitableAdapter))
}

// tooOldError means that this HNS is too old to prepare the adapter for an overlay.
// The daemon would work, as it does on a node that has an overlay already, with
// remote endpoints, but kube-proxy exits.
type tooOldError struct{ version hns.Version }

func (o *tooOldError) Error() string {
	return fmt.Sprintf("HNS %s is too old for a node on an overlay: kube-proxy exits with versions before 9.2. Install the updates of Windows (Windows Server 2019 needs KB4489899 or later), or use host-gw", o.version)
}

// preparation is what the steps of one prepare know.
type preparation struct {
	dataplane.Prepared // the result so far, which look sets
	// making is set before the network is made, and stays set: from then on, a bound
	// switch is taken for ours, and after rollBack the network is made again.
	making bool
}

// prepareStep makes the network, unless a switch is bound to the adapter. Then
// it makes no network and changes none, since whoever bound the switch may want
// it as it is, but waits for the host's addresses. In both cases it deletes our
// networks on the adapter if their switch is dead (deleteDeadSwitch), or if the host
// stays without addresses (rollBack).
//
// Ensure returns an error after it has made the network, and the next step finds it. dev is a
// Switch: a network without pods, with a name of its own (dataplane.SwitchFor).
func (d *Driver) prepareStep(ctx context.Context, dev dataplane.Device, p *preparation) error {
	if err := d.readVersion(ctx); err != nil {
		return err
	}
	if _, ok := dataplane.NetworkOf(dev.Kind); !ok {
		return fmt.Errorf("device kind %s has no switch", dataplane.KindName(dev.Kind))
	}
	if _, overlay := dev.Kind.(dataplane.Overlay); overlay && !d.version.Features().RemoteSubnet {
		return &tooOldError{d.version}
	}
	driven, err := deviceOf(dev)
	if err != nil {
		return err
	}
	there, err := d.look(ctx, dev, p)
	if err != nil {
		return err
	}
	if err := d.deleteDeadSwitch(ctx, p.Adapter, there.adapters); err != nil {
		return err
	}
	if !there.bound || p.making {
		p.making = true
		if _, err := d.Ensure(ctx, []dataplane.Device{dev}); err != nil {
			return err
		}
	} else {
		want, _ := wantedNetwork(driven, p.Adapter, d.version) // its type is set despite an error, and is all that is compared
		if err := d.checkSwitchType(want, there.physical, there.adapters); err != nil {
			return err
		}
	}
	// What is there is from before Ensure, which returns an error if it made or deleted a
	// network.
	if err := d.hostConfig.Restore(there.networks); err != nil {
		return d.rollBack(ctx, driven, err)
	}
	if p.Interface == "" {
		return d.rollBack(ctx, driven, dataplane.Waiting(hostconfig.CauseNoAddress, "the virtual adapter of %s to have the host's addresses", p.Adapter))
	}
	return nil
}

// found is what look finds.
type found struct {
	networks []hns.Network
	adapters []hns.Adapter
	physical hns.Adapter
	bound    bool // a switch is bound to physical
}

// look sets p.Prepared to what there is. After an error, p.Prepared is unchanged. A
// network of the wanted name was made by this run if a step has begun to make it, and it
// is on the adapter: others may have one of this name on another adapter.
func (d *Driver) look(ctx context.Context, dev dataplane.Device, p *preparation) (f found, err error) {
	if f.networks, err = d.client.Networks(ctx); err != nil {
		return f, waitIfSilent(err)
	}
	if f.adapters, err = d.stack.Adapters(); err != nil {
		return f, fmt.Errorf("list adapters: %w", err)
	}
	network, _ := dataplane.NetworkOf(dev.Kind)
	if f.physical, err = hostconfig.PhysicalAdapter(f.adapters, network.Parent); err != nil {
		return f, err
	}
	p.Prepared = dataplane.Prepared{Adapter: f.physical.Name}
	d.networks = f.networks // for boundNetworks and the methods that prepareStep calls; Ensure lists them itself
	bound := d.boundNetworks(f.physical, f.adapters)
	if f.bound = len(bound) > 0; f.bound {
		p.Network = bound[0].Name
	}
	if p.making && slices.ContainsFunc(bound, func(n hns.Network) bool { return n.Name == dev.Name }) {
		p.Network, p.Made = dev.Name, true
	}
	const isBound = true // or will be: the physical adapter's own addresses are not what prepare waits for
	if host, exists := hostconfig.HostAdapter(f.adapters, f.physical, isBound); exists && len(hostconfig.Addresses(host)) > 0 {
		p.Interface = host.Name
		for _, a := range hostconfig.Addresses(host) {
			p.Addresses = append(p.Addresses, a.Prefix)
		}
	}
	return f, nil
}
