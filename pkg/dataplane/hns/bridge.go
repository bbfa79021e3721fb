package hns

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"flannel/pkg/dataplane"
	"flannel/pkg/hns"
	"flannel/pkg/reconcile"
)

// bridge drives HNS networks that bridge pods to the underlay. A path is a route of the host.
type bridge struct {
	dataplane.L2Bridge
	hostRoutes
}

func (bridge) ensure(ctx context.Context, d *Driver, dev device, list bool, adapters []hns.Adapter, links dataplane.Links) error {
	if err := d.findNetwork(ctx, dev, list, adapters); err != nil {
		return err
	}
	return d.meetNetwork(ctx, dev, adapters, links)
}

func (b bridge) want(n *hns.Network, _ hns.Version, _ hns.Features) error {
	n.Type = hns.L2Bridge
	if b.DNS != "" {
		n.DNS = strings.Split(b.DNS, ",")
	}
	return nil
}

func (bridge) tunnels() bool { return false }

func (bridge) meet(ctx context.Context, d *Driver, dev device, host hns.Adapter, adapters []hns.Adapter) error {
	if dev.Switch {
		return nil
	}
	return d.hostEndpoint(ctx, dev, host, adapters)
}

// hostEndpoint gives the host an interface of its own on the bridge, with the second address of each subnet, and has it
// forward between that and the underlay: so packets of peers reach the pods.
func (d *Driver) hostEndpoint(ctx context.Context, dev device, host hns.Adapter, adapters []hns.Adapter) error {
	want := hns.Endpoint{Name: hns.HostEndpoint(dev.name), Network: d.network.ID}
	for _, s := range d.network.Subnets {
		second := s.Gateway.Next()
		want.IPs = append(want.IPs, netip.PrefixFrom(second, s.Prefix.Bits()))
		want.Gateways = append(want.Gateways, s.Gateway)
	}
	if len(want.IPs) == 0 {
		return errors.New("the network has no subnet")
	}
	all, err := d.client.Endpoints(ctx, d.network.ID)
	if err != nil {
		return reconcile.Unknown(unanswered(err))
	}
	id := ""
	for _, e := range all {
		switch {
		case e.Name != want.Name:
		case id == "" && (sameAddresses(e.IPs, want.IPs) || e.ID == d.endpoint): // to make ours again would give the same
			id = e.ID
		default:
			d.opts.Log.Warn("deleting the host's endpoint on the bridge, which has other addresses", "endpoint", e.Name, "has", e.IPs, "wants", want.IPs)
			if err := d.client.DeleteEndpoint(ctx, e.ID); err != nil && !errors.Is(err, hns.ErrNotFound) {
				return fmt.Errorf("delete the endpoint %s: %w", e.Name, err)
			}
		}
	}
	if id == "" {
		made, err := d.client.CreateEndpoint(ctx, want)
		if err != nil {
			return unanswered(err)
		}
		id, d.endpoint = made.ID, made.ID
		d.opts.Log.Info("made the host's endpoint on the bridge", "endpoint", want.Name, "addresses", want.IPs)
	}
	inside, there := adapterWith(adapters, want.IPs[0].Addr())
	if !there {
		d.networksDirty.Store(true)
		if err := d.client.AttachHost(ctx, id); err != nil {
			return unanswered(err)
		}
		return waiting(causeNoEndpoint, "the host's interface with %s on the bridge", want.IPs[0].Addr())
	}
	return d.forward(want.IPs, inside, host)
}

// sameAddresses compares addresses alone: HNS may leave the length of an endpoint's prefix out.
func sameAddresses(have, want []netip.Prefix) bool {
	return slices.EqualFunc(have, want, func(a, b netip.Prefix) bool { return a.Addr() == b.Addr() })
}

func (d *Driver) forward(families []netip.Prefix, adapters ...hns.Adapter) error {
	for _, a := range adapters {
		for _, f := range families {
			v6 := f.Addr().Is6()
			on, err := d.stack.Forwarding(a.Index, v6)
			if err != nil {
				return reconcile.Unknown(fmt.Errorf("look whether packets are forwarded through %s: %w", a.Name, err))
			}
			if on {
				continue
			}
			if err := d.stack.SetForwarding(a.Index, v6, true); err != nil {
				return fmt.Errorf("forward packets through %s: %w", a.Name, err)
			}
			d.opts.Log.Info("switched on forwarding", "adapter", a.Name, "ipv6", v6)
		}
	}
	return nil
}
