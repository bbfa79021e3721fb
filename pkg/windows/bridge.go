package windows

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
	"flannel/pkg/windows/hns"
	"flannel/pkg/windows/hostconfig"
)

// bridge drives HNS networks that bridge pods to the underlay (L2Bridge). A path is a route
// of the host. bridge is a networkKind: kinds.go says what its methods are for.
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
		return nil // no pods are on it
	}
	return d.ensureHostEndpoint(ctx, dev, host, adapters)
}

// ensureHostEndpoint is the last step of Ensure for a bridge. It gives the host an
// interface on the bridge, and makes it forward between that and the underlay, so that
// packets of peers reach the pods. For the subnet 10.244.1.0/24, 10.244.1.1 is the pods'
// gateway, which the bridge has, and 10.244.1.2 the host's address. The endpoint has no
// gateway: with one, the host would get a second default route (flannel#1763, calico#4664).
// host is the adapter with the underlay's address, inside the endpoint's adapter. What HNS
// refuses is tried again after growing pauses (d.tries), and d.endpointByV1 is set after HNS
// has refused to attach an endpoint of the newer API.
func (d *Driver) ensureHostEndpoint(ctx context.Context, dev device, host hns.Adapter, adapters []hns.Adapter) error {
	want := hns.Endpoint{Name: hns.HostEndpoint(dev.name), Network: d.network.ID}
	wanted, err := wantedNetwork(dev, "", d.version) // for its subnets alone: HNS may not report subnets or gateways
	if err != nil {
		return err
	}
	for _, s := range wanted.Subnets {
		want.IPs = append(want.IPs, netip.PrefixFrom(s.Gateway.Next(), s.Prefix.Bits()))
	}
	id, err := d.findHostEndpoint(ctx, want)
	if err != nil {
		return err
	}
	if id == "" { // there is no endpoint of the host
		// Each API has refusals of its own: the newer one may create an endpoint that HNS refuses to attach.
		err := d.tries.try(changeOf(verbCreateEndpoint, endpointRequest{want, d.endpointByV1}), func() (err error) {
			id, err = d.createHostEndpoint(ctx, want)
			return err
		})
		if errors.Is(err, hns.ErrAddressInUse) {
			d.compareAddresses(want, "refused on "+want.Network)
			return fmt.Errorf("another endpoint has one of %v, which the host's endpoint %s needs, and a warning names it: delete its pod, and reserve the address with flanneld source-vip: %w", want.IPs, want.Name, err)
		} else if err != nil {
			return waitIfSilent(err)
		}
		d.endpoint = id
		d.opts.Log.Info("made the host's endpoint on the bridge", "endpoint", want.Name, "addresses", want.IPs)
	}
	// There is an address: a wanted network has a subnet.
	inside, found := hostconfig.AdapterWith(adapters, want.IPs[0].Addr())
	if !found { // HNS makes the interface when the endpoint is attached to the host
		return d.tries.try(changeOf(verbAttachEndpoint, id), func() error {
			d.networksDirty.Store(true) // whatever the answer is
			err := d.client.AttachHost(ctx, id)
			if err != nil && !d.endpointByV1 && isRefusal(err) && !errors.Is(err, hns.ErrNotFound) {
				err = d.deleteUnattachable(ctx, id, err) // nil: the next pass creates it again, as it does after ErrNotFound
			}
			if err != nil {
				return waitIfSilent(err)
			}
			return dataplane.Waiting(causeNoEndpoint, "the host's interface with %s on the bridge", want.IPs[0].Addr())
		})
	}
	d.tries.forgetVerb(verbCreateEndpoint) // what was refused before counts no longer
	d.tries.forgetVerb(verbAttachEndpoint)
	d.compareAddresses(want, id)
	if err := d.keepLocal(inside); err != nil {
		return err
	}
	return d.enableForwarding(want.IPs, inside, host)
}

// endpointRequest is a request to create the host's endpoint, for tries.
type endpointRequest struct {
	hns.Endpoint
	byV1 bool
}

// createHostEndpoint creates the host's endpoint and returns its ID, by the older API after
// deleteUnattachable.
func (d *Driver) createHostEndpoint(ctx context.Context, want hns.Endpoint) (id string, err error) {
	if d.endpointByV1 {
		id, err := d.client.CreateEndpointV1(ctx, want)
		// A used address, or no answer, says nothing about the API. After any other error the newer API is used again, whose
		// errors say more: also after ErrUnavailable, since an HNS without the older API may answer with an error of this kind.
		if err != nil && !errors.Is(err, hns.ErrAddressInUse) && !errors.Is(err, hns.ErrTimeout) {
			d.endpointByV1 = false
		}
		return id, err
	}
	made, err := d.client.CreateEndpoint(ctx, want)
	return made.ID, err
}

// deleteUnattachable deletes the host's endpoint, which HNS refuses to attach, so that
// the next pass creates it by the older API. Only the older API attaches, and other
// projects create this endpoint by the older API; it is not known whether HNS always
// attaches an endpoint of the newer API. If HNS refuses the older API's endpoint, too, that
// one stays. The error is nil if the endpoint is deleted.
func (d *Driver) deleteUnattachable(ctx context.Context, id string, refused error) error {
	if err := d.client.DeleteEndpoint(ctx, id); err != nil && !errors.Is(err, hns.ErrNotFound) {
		return errors.Join(refused, fmt.Errorf("delete the host's endpoint on the bridge: %w", err))
	}
	d.endpoint, d.endpointByV1 = "", true
	d.opts.Log.Info("HNS refuses to attach the host's endpoint on the bridge, creating it by the older API", "cause", causeEndpointV1, "error", refused)
	return nil
}

// findHostEndpoint returns the ID of the host's endpoint, "" if there is none, and
// deletes others on the network that have its name. A former endpoint that HNS refuses to
// delete is an error only without the host's endpoint; else it is left for a later pass.
// As long as a former one is there, the next passes list them again. findHostEndpoint reads
// as few endpoints as possible, because kube-proxy has thousands.
func (d *Driver) findHostEndpoint(ctx context.Context, want hns.Endpoint) (id string, err error) {
	if d.endpoint != "" {
		e, err := d.client.Endpoint(ctx, d.endpoint)
		if err == nil && strings.EqualFold(e.Network, want.Network) { // whatever its addresses: HNS may have chosen others
			return e.ID, nil
		} else if err != nil && !errors.Is(err, hns.ErrNotFound) {
			return "", reconcile.Unknown(waitIfSilent(err))
		}
	}
	d.endpoint = ""
	named, err := d.client.EndpointsNamed(ctx, want.Name)
	if err != nil {
		return "", reconcile.Unknown(waitIfSilent(err))
	}
	var errs []error
	for _, e := range named {
		switch {
		case !strings.EqualFold(e.Network, want.Network): // of another network of this name
		case id == "" && sameAddresses(e.IPs, want.IPs):
			id = e.ID
		default:
			errs = append(errs, d.deleteHostEndpoint(ctx, e, want))
		}
	}
	err = errors.Join(errs...)
	if err == nil {
		d.endpoint = id // the next pass need not look for former ones
	}
	if id != "" && (err == nil || isRefusal(err)) {
		d.leave(err, causeEndpointStays, "could not delete a former endpoint of the host on the bridge, will retry", "endpoint", want.Name)
		err = nil
	}
	return id, waitIfSilent(err)
}

// deleteHostEndpoint deletes a former endpoint of the host on the network, which has other
// addresses than wanted.
func (d *Driver) deleteHostEndpoint(ctx context.Context, e, want hns.Endpoint) error {
	err := d.tries.try(changeOf(verbDeleteEndpoint, e.ID), func() error {
		if err := d.client.DeleteEndpoint(ctx, e.ID); err != nil && !errors.Is(err, hns.ErrNotFound) {
			return fmt.Errorf("delete the endpoint %s: %w", e.Name, err)
		}
		return nil
	})
	if err == nil {
		d.opts.Log.Warn("deleted the host's endpoint on the bridge, its addresses differed", "endpoint", e.Name, "had", e.IPs, "wants", want.IPs)
	}
	return err
}

// compareAddresses warns of endpoints of others with an address of the host's
// endpoint, which HNS refuses or, before 10, accepts (kubernetes#100962). Reading
// all endpoints can take minutes, so each is read once for each endpoint of the
// host, in a goroutine that ends with the Driver. id is that of the endpoint or, if HNS
// refused the endpoint, a text that stands for it; d.compared keeps the last one.
func (d *Driver) compareAddresses(host hns.Endpoint, id string) {
	if d.compared == id {
		return
	}
	d.compared = id
	d.background(func(ctx context.Context) {
		read := map[string]bool{} // IDs of endpoints that need not be read again after HNS has not answered
		silent := ""              // the endpoint about which HNS has not answered last: those behind it are read first
		r := reconcile.Runner{
			Retry: reconcile.Backoff{First: d.pace.Poll, Last: d.pace.Sweep},
			Work: func(ctx context.Context) (time.Duration, error) {
				ids, err := d.client.EndpointIDs(ctx, host.Network)
				if err != nil {
					return 0, err
				}
				behind := slices.Index(ids, silent) + 1
				for _, other := range slices.Concat(ids[behind:], ids[:behind]) {
					if read[other] {
						continue
					}
					e, err := d.client.Endpoint(ctx, other)
					if err != nil && !isRefusal(err) {
						silent = other
						return 0, err
					}
					read[other] = true // also one that HNS refuses to show, or that was deleted
					if err != nil {
						d.opts.Log.Debug("could not compare the addresses of an endpoint with those of the host's on the bridge", "endpoint", other, "error", err)
					} else if strings.EqualFold(e.Network, host.Network) && e.ID != id {
						d.compareAddress(host, e)
					}
				}
				return 0, nil
			},
			Tell: func(err error) {
				if err != nil {
					d.opts.Log.Debug("comparing addresses with the host's endpoint on the bridge", "error", err)
				}
			},
		}
		_ = r.Until(ctx) // it fails only if ctx ends
	})
}

// compareAddress warns if the endpoint e of somebody else has an address of the host's endpoint.
func (d *Driver) compareAddress(host, e hns.Endpoint) {
	shared := slices.ContainsFunc(e.IPs, func(p netip.Prefix) bool {
		return slices.ContainsFunc(host.IPs, func(own netip.Prefix) bool { return own.Addr() == p.Addr() })
	})
	if e.Name != host.Name && shared {
		d.opts.Log.Warn("an endpoint has an address of the host's endpoint: delete its pod, and reserve the address with flanneld source-vip",
			"cause", causeSharedAddress, "endpoint", e.Name, "addresses", e.IPs, "host_endpoint", host.Name)
	}
}

// bridgeMetric is the interface metric of the host's endpoint: higher than any
// that Windows derives from an adapter's speed, so that no other route prefers it.
const bridgeMetric = 5000

// keepLocal keeps the host's interface on the bridge from being a way to anywhere
// but this node's pods: no default route, whoever made it, a high metric, and no
// registration of its address under the host's name in DNS. That Windows refuses
// metric or registration does not stop the network, and is left for a later pass. A default
// route that cannot be removed is an error of Ensure; until it is removed, the metric keeps
// other routes preferred.
func (d *Driver) keepLocal(inside hns.Adapter) error {
	routes, err := d.stack.Routes()
	if err != nil {
		return reconcile.Unknown(fmt.Errorf("list routes: %w", err))
	}
	var errs []error
	for _, r := range routes {
		if r.Index != inside.Index || r.Dst.Bits() != 0 {
			continue
		}
		if err := d.stack.DeleteRoute(r); err != nil {
			errs = append(errs, fmt.Errorf("remove the default route of %s, by which the host could lose its way out: %w", inside.Name, err))
			continue
		}
		d.opts.Log.Info("removed the default route of the host's endpoint on the bridge", "cause", causeDefaultRoute, "adapter", inside.Name, "route", r.Dst, "via", r.NextHop)
	}
	for _, v6 := range []bool{false, true} {
		err := d.tries.try(changeOf(verbBridgeMetric, fmt.Sprint(inside.Index, v6)), func() error { return d.setBridgeMetric(inside.Index, v6) })
		d.leave(err, causeBridgeMetric, "could not set the metric of the host's interface on the bridge, will retry", "adapter", inside.Name, "ipv6", v6)
	}
	if inside.Registers {
		err := d.tries.try(changeOf(verbDNSRegistration, inside.Index), func() error { return d.stack.SetDNSRegistration(inside.Index, false) })
		d.leave(err, causeDNSRegistration, "could not turn off the registration of the bridge in DNS, so other hosts may get its address for this host's name, will retry", "adapter", inside.Name)
	}
	return errors.Join(errs...)
}

// setBridgeMetric sets the metric of a family on the host's interface on the bridge. The
// interface may lack the family.
func (d *Driver) setBridgeMetric(index int, v6 bool) error {
	settings, err := d.stack.Interface(index, v6)
	if errors.Is(err, hns.ErrNotFound) || err == nil && settings.Metric == bridgeMetric {
		return nil
	}
	if err != nil {
		return err
	}
	settings.Metric = bridgeMetric
	return d.stack.SetInterface(index, v6, settings)
}

// sameAddresses reports whether HNS reports the wanted addresses and no others, in whatever
// order, and without prefix lengths, which HNS does not always report.
func sameAddresses(have, want []netip.Prefix) bool {
	return len(have) == len(want) && !slices.ContainsFunc(want, func(w netip.Prefix) bool {
		return !slices.ContainsFunc(have, func(h netip.Prefix) bool { return h.Addr() == w.Addr() })
	})
}

// enableForwarding switches on forwarding on adapters, for the address families of the
// prefixes. An error of one family or adapter does not keep the others.
func (d *Driver) enableForwarding(families []netip.Prefix, adapters ...hns.Adapter) error {
	var errs []error
	for _, a := range adapters {
		for _, f := range families {
			errs = append(errs, d.forward(a, f.Addr().Is6()))
		}
	}
	return errors.Join(errs...)
}

// forward switches on forwarding of a family on an adapter. An adapter that lacks the
// family, such as one whose IPv6 somebody has turned off, is a warning: flanneld cannot
// add the family, and the other one works.
func (d *Driver) forward(a hns.Adapter, v6 bool) error {
	settings, err := d.stack.Interface(a.Index, v6)
	if errors.Is(err, hns.ErrNotFound) {
		d.warnOnce(causeNoDualStack, fmt.Sprintf("%s lacks a family of the node's subnets, whose packets it does not forward: bind that protocol to the adapter", a.Name), "ipv6", v6)
		return nil
	}
	if err != nil {
		return reconcile.Unknown(fmt.Errorf("read whether %s forwards packets: %w", a.Name, err))
	}
	if settings.Forwarding {
		return nil
	}
	settings.Forwarding = true
	if err := d.stack.SetInterface(a.Index, v6, settings); err != nil {
		return fmt.Errorf("enable forwarding on %s: %w", a.Name, err)
	}
	d.opts.Log.Info("enabled forwarding", "adapter", a.Name, "ipv6", v6)
	return nil
}
