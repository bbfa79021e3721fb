package hns

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"flannel/pkg/dataplane/driver"
	"flannel/pkg/hns"
	"flannel/pkg/reconcile"
)

// remoteStore are the endpoints that stand for peers where HNS has no RemoteSubnetRoute. kube-proxy makes remote
// endpoints on the network too: ours are told by their names.
type remoteStore struct{ d *Driver }

func (remoteStore) Name() string { return "remote-endpoints" }

func (s remoteStore) prefix() string { return s.d.network.Name + "_peer_" }

// name of a peer's endpoint: without the slash, which is none of a name's characters.
func (s remoteStore) name(p netip.Prefix) string {
	return s.prefix() + strings.Replace(p.String(), "/", "-", 1)
}

// all returns ours by the peers' subnets; one that cannot be read stands under the zero Prefix.
func (s remoteStore) all(ctx context.Context) (map[netip.Prefix][]hns.Endpoint, error) {
	endpoints, err := s.d.client.Endpoints(ctx, s.d.network.ID)
	if err != nil {
		return nil, err
	}
	out := map[netip.Prefix][]hns.Endpoint{}
	for _, e := range endpoints {
		if text, ours := strings.CutPrefix(e.Name, s.prefix()); ours && e.Remote {
			p, _ := netip.ParsePrefix(strings.Replace(text, "-", "/", 1))
			out[p] = append(out[p], e)
		}
	}
	return out, nil
}

// List implements reconcile.Store.
func (s remoteStore) List(ctx context.Context) (map[netip.Prefix]remoteValue, error) {
	out := map[netip.Prefix]remoteValue{}
	if s.d.features.RemoteSubnet || s.d.network.Type != hns.Overlay {
		return out, nil
	}
	all, err := s.all(ctx)
	for p, endpoints := range all {
		out[p] = remoteValue{endpoints[0].Provider, endpoints[0].MAC}
		if len(endpoints) > 1 {
			out[p] = remoteValue{} // none that we would want: all are made anew
		}
	}
	return out, err
}

// Set implements reconcile.Store.
func (s remoteStore) Set(ctx context.Context, entries []reconcile.Entry[netip.Prefix, remoteValue]) []error {
	errs := s.Delete(ctx, entries)
	for i, e := range entries {
		if errs[i] == nil {
			_, errs[i] = s.d.client.CreateEndpoint(ctx, hns.Endpoint{
				Name: s.name(e.Key), Network: s.d.network.ID, Remote: true,
				IPs: []netip.Prefix{e.Key}, Provider: e.Value.Provider, MAC: e.Value.MAC,
			})
		}
	}
	return errs
}

// Delete implements reconcile.Store.
func (s remoteStore) Delete(ctx context.Context, entries []reconcile.Entry[netip.Prefix, remoteValue]) []error {
	errs := make([]error, len(entries))
	all, err := s.all(ctx)
	for i, e := range entries {
		errs[i] = err
		for _, old := range all[e.Key] {
			if err := s.d.client.DeleteEndpoint(ctx, old.ID); err != nil && !errors.Is(err, hns.ErrNotFound) {
				errs[i] = err
			}
		}
	}
	return errs
}

// hostScope is what tells our routes of the host from others'.
type hostScope struct {
	index    int // of the adapter with the host's address
	networks []netip.Prefix
}

func (s hostScope) same(o hostScope) bool {
	return s.index == o.index && slices.Equal(s.networks, o.networks)
}

// ours are the routes by a gateway into the pod network, through the host's adapter: exactly flannel's shape.
func (s hostScope) ours(r hns.Route) bool {
	return r.Index == s.index && r.Ours && r.NextHop.IsValid() && !r.NextHop.IsUnspecified() && driver.Inside(r.Dst, s.networks)
}

// theirs are all routes but ours.
func (s hostScope) theirs(all []hns.Route) []hns.Route {
	return slices.DeleteFunc(slices.Clone(all), s.ours)
}

// routeTable are our routes of the host, in the active store: they are gone after a reboot, as the network is.
type routeTable struct{ d *Driver }

// routeMetric is what New-NetRoute gives, so that a flannel's routes and ours are alike.
const routeMetric = 256

func (routeTable) Name() string { return "routes" }

// List implements reconcile.Store.
func (t routeTable) List(context.Context) (map[hostRoute]struct{}, error) {
	out := map[hostRoute]struct{}{}
	all, err := t.d.stack.Routes()
	if err != nil {
		return nil, err
	}
	for _, r := range all {
		if t.d.scope.ours(r) {
			out[hostRoute{r.Dst, r.NextHop}] = struct{}{}
		}
	}
	return out, nil
}

func (t routeTable) each(ctx context.Context, entries []reconcile.Entry[hostRoute, struct{}], do func(hns.Route) error) []error {
	errs := make([]error, len(entries))
	for i, e := range entries {
		if errs[i] = ctx.Err(); errs[i] == nil {
			errs[i] = do(hns.Route{Dst: e.Key.Dst, NextHop: e.Key.Via, Index: t.d.scope.index, Metric: routeMetric, Ours: true})
		}
	}
	return errs
}

// Set implements reconcile.Store.
func (t routeTable) Set(ctx context.Context, entries []reconcile.Entry[hostRoute, struct{}]) []error {
	return t.each(ctx, entries, t.d.stack.AddRoute)
}

// Delete implements reconcile.Store.
func (t routeTable) Delete(ctx context.Context, entries []reconcile.Entry[hostRoute, struct{}]) []error {
	return t.each(ctx, entries, t.d.stack.DeleteRoute)
}

// prune deletes networks of ours that nobody wants: of another VNI, another name, another backend.
func (d *Driver) prune(ctx context.Context) error {
	if !d.strays || d.problem != nil {
		return nil
	}
	d.strays = false
	var errs []error
	for _, n := range d.networks {
		if !d.ours(n) || d.network != nil && n.ID == d.network.ID {
			continue
		}
		d.opts.Log.Info("deleting an HNS network of ours that is no longer wanted", "network", n.Name, "id", n.ID)
		if err := d.deleteNetwork(ctx, n); err != nil {
			errs, d.strays = append(errs, err), true
		}
	}
	return errors.Join(errs...)
}

// ours tells whether a network may be deleted: it has a name that only we and flannel give, or we wrote its name down.
func (d *Driver) ours(n hns.Network) bool {
	return n.Type == hns.Overlay && flannelName(n.Name) || ourType(n) && slices.Contains(d.home.names(), n.Name)
}

func ourType(n hns.Network) bool { return n.Type == hns.Overlay || n.Type == hns.L2Bridge }

func flannelName(name string) bool {
	number, ok := strings.CutPrefix(name, "flannel.")
	return ok && number != "" && strings.Trim(number, "0123456789") == ""
}

// deleteNetwork writes down what the host has on it first: its addresses move to the physical adapter.
func (d *Driver) deleteNetwork(ctx context.Context, n hns.Network) error {
	if err := d.leave(n); err != nil {
		return err
	}
	d.networksDirty.Store(true)
	if err := d.client.DeleteNetwork(ctx, n.ID); err != nil && !errors.Is(err, hns.ErrNotFound) {
		return fmt.Errorf("delete the HNS network %s: %w", n.Name, err)
	}
	d.networks = slices.DeleteFunc(slices.Clone(d.networks), func(o hns.Network) bool { return o.ID == n.ID })
	if d.device().name != n.Name {
		return d.home.own(device{name: n.Name}, false)
	}
	return nil
}
