package hns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/hns"
)

// prepare takes the steps of Ensure until none is left. An adapter that has a switch already, whoever bound it, only
// needs its addresses: another network of the same name may be somebody's who wants it as it is.
func (d *Driver) prepare(ctx context.Context, dev dataplane.Device, told func(error)) (dataplane.Prepared, error) {
	p, last := dataplane.Prepared{}, error(nil)
	for {
		err := d.prepareStep(ctx, dev, &p)
		if old := (*tooOld)(nil); errors.As(err, &old) || err == nil && !d.home.pending() {
			return p, err
		}
		if err == nil {
			err = waiting(causeNoAddress, "the host to keep its addresses, routes and DNS servers")
		}
		if ctx.Err() == nil && (last == nil || err.Error() != last.Error()) { // else it only says that time is up
			told(err)
			last = err
		}
		select {
		case <-ctx.Done():
			end := "gave up"
			if errors.Is(ctx.Err(), context.Canceled) {
				end = "interrupted"
			}
			return p, fmt.Errorf("%s: %w", end, cmp.Or(last, err))
		case <-d.changes:
		case <-time.After(d.pace.Wait):
		}
	}
}

// tooOld is an HNS with which a node cannot be had that is a new one. The daemon alone makes do with it: each peer is a
// remote endpoint there; but kube-proxy ends.
type tooOld struct{ version hns.Version }

func (o *tooOld) Error() string {
	return fmt.Sprintf("HNS %s is too old for a node on an overlay: kube-proxy ends with any before 9.2. Install the updates of Windows (Windows Server 2019 needs KB4489899 or later), or use host-gw", o.version)
}

func (d *Driver) prepareStep(ctx context.Context, dev dataplane.Device, p *dataplane.Prepared) error {
	if err := d.ask(ctx); err != nil {
		return err
	}
	network, ok := dev.Kind.(dataplane.HNS)
	if !ok {
		return fmt.Errorf("device kind %s has no switch", dataplane.KindName(dev.Kind))
	}
	if _, overlay := dev.Kind.(dataplane.Overlay); overlay && !d.features.RemoteSubnet {
		return &tooOld{d.version}
	}
	networks, err := d.client.Networks(ctx)
	if err != nil {
		return unanswered(err)
	}
	adapters, err := d.stack.Adapters()
	if err != nil {
		return fmt.Errorf("list adapters: %w", err)
	}
	physical, err := physicalAdapter(adapters, network.Common().Parent)
	if err != nil {
		return err
	}
	p.Adapter = physical.Name
	i := slices.IndexFunc(networks, func(n hns.Network) bool { return isBound([]hns.Network{n}, physical, adapters) })
	if i < 0 || p.Made {
		p.Made, p.Network = true, dev.Name
		if _, err := d.Ensure(ctx, []dataplane.Device{dev}); err != nil {
			return err
		}
	} else {
		p.Network = networks[i].Name
	}
	if err := d.home.mend(networks); err != nil {
		return err
	}
	host, there := hostAdapter(adapters, physical, true)
	if !there || len(addresses(host)) == 0 {
		return waiting(causeNoAddress, "the virtual adapter of %s to have the host's addresses", physical.Name)
	}
	p.Interface, p.Addresses = host.Name, nil
	for _, a := range addresses(host) {
		p.Addresses = append(p.Addresses, a.Prefix)
	}
	return nil
}
