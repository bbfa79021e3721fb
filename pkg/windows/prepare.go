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

// prepare repeats prepareStep until there is nothing to wait for. report is
// called with what it waits for, whenever that changes.
func (d *Driver) prepare(ctx context.Context, dev dataplane.Device, report func(error)) (dataplane.Prepared, error) {
	var p dataplane.Prepared
	var final error
	r := runner.Runner{
		News:  []<-chan struct{}{d.changes},
		Retry: runner.Backoff{First: d.pace.Wait},
		Work: func(ctx context.Context) (time.Duration, error) {
			err := d.prepareStep(ctx, dev, &p)
			switch {
			case isFinal(err):
				final = err
				return 0, nil
			case err == nil && d.hostConfig.HasSnapshot():
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
		return p, fmt.Errorf("%s: %w", reason, err)
	}
	return p, final
}

// isFinal reports whether prepare gives up at once.
func isFinal(err error) bool {
	return errors.As(err, new(*tooOldError)) || errors.As(err, new(*unsuitableAdapter))
}

// tooOldError means that a new node cannot work with this HNS. The daemon could,
// with remote endpoints, but kube-proxy exits.
type tooOldError struct{ version hns.Version }

func (o *tooOldError) Error() string {
	return fmt.Sprintf("HNS %s is too old for a node on an overlay: kube-proxy exits with versions before 9.2. Install the updates of Windows (Windows Server 2019 needs KB4489899 or later), or use host-gw", o.version)
}

// prepareStep makes the network, unless a switch is bound to the adapter. Then
// it makes no network and changes none, since whoever bound the switch may want
// it as it is, but waits for the host's addresses. In both cases it deletes our
// networks on the adapter if the host stays without addresses (rollBack).
func (d *Driver) prepareStep(ctx context.Context, dev dataplane.Device, p *dataplane.Prepared) error {
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
	p.Adapter = physical.Name
	d.networks = networks
	if err := d.deleteDeadSwitch(ctx, physical.Name, adapters); err != nil {
		return err
	}
	i := slices.IndexFunc(networks, func(n hns.Network) bool { return hostconfig.IsBound([]hns.Network{n}, physical, adapters) })
	if i < 0 || p.Made {
		p.Made, p.Network = true, dev.Name
		if _, err := d.Ensure(ctx, []dataplane.Device{dev}); err != nil {
			return err
		}
	} else {
		p.Network = networks[i].Name
		want, _ := wantedNetwork(driven, physical.Name, d.version)
		if err := d.checkSwitchType(want, physical, adapters); err != nil {
			return err
		}
	}
	if err := d.hostConfig.Restore(networks); err != nil {
		return d.rollBack(ctx, driven, err)
	}
	host, found := hostconfig.HostAdapter(adapters, physical, true)
	if !found || len(hostconfig.Addresses(host)) == 0 {
		return d.rollBack(ctx, driven, driver.Waiting(hostconfig.CauseNoAddress, "the virtual adapter of %s to have the host's addresses", physical.Name))
	}
	p.Interface, p.Addresses = host.Name, nil
	for _, a := range hostconfig.Addresses(host) {
		p.Addresses = append(p.Addresses, a.Prefix)
	}
	return nil
}
