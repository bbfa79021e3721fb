package hns

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"flannel/pkg/dataplane"
	"flannel/pkg/dataplane/driver"
	"flannel/pkg/dataplane/hns/hostconfig"
	"flannel/pkg/hns"
	"flannel/pkg/reconcile"
)

// bridge drives HNS networks that bridge pods to the underlay (L2Bridge). A path
// is a route of the host.
type bridge struct {
	dataplane.L2Bridge
	hostRoutes
}

func (b bridge) complete(n *hns.Network, _ hns.Version) error {
	n.Type = hns.L2Bridge
	if b.DNS != "" {
		n.DNS = strings.Split(b.DNS, ",")
	}
	return nil
}

func (bridge) tunnels() bool { return false }

func (bridge) finish(ctx context.Context, d *Driver, dev device, host hns.Adapter, adapters []hns.Adapter) error {
	if dev.Switch {
		return nil
	}
	return d.ensureHostEndpoint(ctx, dev, host, adapters)
}

// ensureHostEndpoint gives the host an interface on the bridge, and makes it
// forward between that and the underlay, so that packets of peers reach the
// pods. For the subnet 10.244.1.0/24, 10.244.1.1 is the pods' gateway, which the
// bridge has, and 10.244.1.2 the host's address.
func (d *Driver) ensureHostEndpoint(ctx context.Context, dev device, host hns.Adapter, adapters []hns.Adapter) error {
	want := hns.Endpoint{Name: hns.HostEndpoint(dev.name), Network: d.network.ID}
	for _, s := range d.network.Subnets {
		want.IPs = append(want.IPs, netip.PrefixFrom(s.Gateway.Next(), s.Prefix.Bits()))
		want.Gateways = append(want.Gateways, s.Gateway)
	}
	if len(want.IPs) == 0 {
		return errors.New("the network has no subnet")
	}
	endpoints, err := d.client.Endpoints(ctx, d.network.ID)
	if err != nil {
		return reconcile.Unknown(waitIfSilent(err))
	}
	id := ""
	for _, e := range endpoints {
		switch {
		case e.Name != want.Name:
		case id == "" && (sameAddresses(e.IPs, want.IPs) || e.ID == d.endpoint): // HNS may have given ours other addresses than requested
			id = e.ID
		default:
			d.opts.Log.Warn("deleting the host's endpoint on the bridge, its addresses differ", "endpoint", e.Name, "has", e.IPs, "wants", want.IPs)
			if err := d.client.DeleteEndpoint(ctx, e.ID); err != nil && !errors.Is(err, hns.ErrNotFound) {
				return fmt.Errorf("delete the endpoint %s: %w", e.Name, err)
			}
		}
	}
	if id == "" {
		made, err := d.client.CreateEndpoint(ctx, want)
		if err != nil {
			return waitIfSilent(err)
		}
		id, d.endpoint = made.ID, made.ID
		d.opts.Log.Info("made the host's endpoint on the bridge", "endpoint", want.Name, "addresses", want.IPs)
	}
	inside, found := hostconfig.AdapterWith(adapters, want.IPs[0].Addr())
	if !found {
		d.networksDirty.Store(true)
		if err := d.client.AttachHost(ctx, id); err != nil {
			return waitIfSilent(err)
		}
		return driver.Waiting(causeNoEndpoint, "the host's interface with %s on the bridge", want.IPs[0].Addr())
	}
	return d.enableForwarding(want.IPs, inside, host)
}

// sameAddresses compares without prefix lengths, which HNS does not always
// report.
func sameAddresses(have, want []netip.Prefix) bool {
	return slices.EqualFunc(have, want, func(a, b netip.Prefix) bool { return a.Addr() == b.Addr() })
}

// enableForwarding switches on forwarding on adapters, for the families of the
// prefixes.
func (d *Driver) enableForwarding(families []netip.Prefix, adapters ...hns.Adapter) error {
	for _, a := range adapters {
		for _, f := range families {
			v6 := f.Addr().Is6()
			settings, err := d.stack.Interface(a.Index, v6)
			if err != nil {
				return reconcile.Unknown(fmt.Errorf("read whether %s forwards packets: %w", a.Name, err))
			}
			if settings.Forwarding {
				continue
			}
			settings.Forwarding = true
			if err := d.stack.SetInterface(a.Index, v6, settings); err != nil {
				return fmt.Errorf("enable forwarding on %s: %w", a.Name, err)
			}
			d.opts.Log.Info("enabled forwarding", "adapter", a.Name, "ipv6", v6)
		}
	}
	return nil
}
