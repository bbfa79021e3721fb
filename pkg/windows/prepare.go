package windows

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/dataplane/driver"
	"flannel/pkg/reconcile/runner"
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
	r := runner.Runner{
		News:  []<-chan struct{}{d.changes}, // of networks, adapters, addresses and routes
		Retry: runner.Backoff{First: d.pace.Wait},
		// nil ends Until. After an error, Retry decides when Work is called again, and
		// not the duration.
		Work: func(ctx context.Context) (time.Duration, error) {
			err := d.prepareStep(ctx, dev, &p)
			switch {
			case isFinal(err):
				final = err
				return 0, nil
			case err == nil && d.hostConfig.HasSnapshot(): // Restore deletes it when nothing was missing for a while
				err = driver.Waiting(hostconfig.CauseNoAddress, "the host to keep its addresses, routes and DNS servers")
			case err == nil && d.hostConfig.Unfinished():
				err = driver.Waiting(hostconfig.CauseCategoryPending, "the category of the host's network")
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
	dataplane.Prepared
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
// A step sets p.Prepared to what it finds, not to what it does: Ensure returns an error
// after it has made the network, and the next step finds it. So a network that HNS
// refuses or that is rolled back is not reported as made.
func (d *Driver) prepareStep(ctx context.Context, dev dataplane.Device, p *preparation) error {
	if err := d.readVersion(ctx); err != nil {
		return err
	}
	network, ok := dataplane.NetworkOf(dev.Kind)
	if !ok {
		return fmt.Errorf("device kind %s has no switch", dataplane.KindName(dev.Kind))
	}
	if _, overlay := dev.Kind.(dataplane.Overlay); overlay && !d.version.Features().RemoteSubnet {
		return &tooOldError{d.version}
	}
	driven, err := deviceOf(dev)
	if err != nil {
		return err
	}
	networks, err := d.client.Networks(ctx)
	if err != nil {
		return waitIfSilent(err)
	}
	adapters, err := d.stack.Adapters()
	if err != nil {
		return fmt.Errorf("list adapters: %w", err)
	}
	physical, err := hostconfig.PhysicalAdapter(adapters, network.Parent)
	if err != nil {
		return err
	}
	p.Prepared = dataplane.Prepared{Adapter: physical.Name}
	d.networks = networks // for the methods below; Ensure lists them itself
	if err := d.deleteDeadSwitch(ctx, physical.Name, adapters); err != nil {
		return err
	}
	i := slices.IndexFunc(networks, func(n hns.Network) bool { return hostconfig.IsBound([]hns.Network{n}, physical, adapters) })
	if i < 0 || p.making {
		p.making = true
		if p.Made = slices.ContainsFunc(networks, func(n hns.Network) bool { return n.Name == dev.Name }); p.Made {
			p.Network = dev.Name
		}
		if _, err := d.Ensure(ctx, []dataplane.Device{dev}); err != nil {
			return err
		}
	} else {
		p.Network = networks[i].Name
		want, _ := wantedNetwork(driven, physical.Name, d.version) // its type is set despite an error, and is all that is compared
		if err := d.checkSwitchType(want, physical, adapters); err != nil {
			return err
		}
	}
	// Both lists are from before Ensure, which returns an error if it made or deleted a
	// network.
	if err := d.hostConfig.Restore(networks); err != nil {
		return d.rollBack(ctx, driven, err)
	}
	const bound = true
	host, found := hostconfig.HostAdapter(adapters, physical, bound)
	if !found || len(hostconfig.Addresses(host)) == 0 {
		return d.rollBack(ctx, driven, driver.Waiting(hostconfig.CauseNoAddress, "the virtual adapter of %s to have the host's addresses", physical.Name))
	}
	p.Interface, p.Addresses = host.Name, nil
	for _, a := range hostconfig.Addresses(host) {
		p.Addresses = append(p.Addresses, a.Prefix)
	}
	return nil
}
