package windows

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
	"flannel/pkg/windows/hns"
)

// hostScope defines which routes of the host are ours.
type hostScope struct {
	index    int // of the adapter with the host's address
	networks []netip.Prefix
}

// owns reports whether a route is ours. It has the form that flannel gives its
// routes, too: by a gateway into the pod network, through the host's adapter.
func (s hostScope) owns(r hns.Route) bool {
	return r.Index == s.index && r.Ours && r.NextHop.IsValid() && !r.NextHop.IsUnspecified() && dataplane.Inside(r.Dst, s.networks)
}

// routesOfOthers reads the host's routes that are not ours.
func (d *Driver) routesOfOthers() ([]hns.Route, error) {
	routes, err := d.stack.Routes()
	if err != nil {
		return nil, reconcile.Unknown(fmt.Errorf("list routes: %w", err))
	}
	return slices.DeleteFunc(routes, d.scope.owns), nil
}

// routeStore holds our routes of the host. They are in the active store, so that
// a reboot removes them together with the network.
type routeStore struct{ d *Driver }

// routeMetric is the default of New-NetRoute, which flannel's routes have.
const routeMetric = 256

func (routeStore) Name() string { return "routes" }

// List implements reconcile.Store.
func (s routeStore) List(context.Context) (map[hostRoute]struct{}, error) {
	out := map[hostRoute]struct{}{}
	routes, err := s.d.stack.Routes()
	if err != nil {
		return nil, err
	}
	for _, r := range routes {
		if s.d.scope.owns(r) {
			out[hostRoute{r.Dst, r.NextHop}] = struct{}{}
		}
	}
	return out, nil
}

// each calls do with each route, until ctx ends. It returns the error for each
// entry.
func (s routeStore) each(ctx context.Context, entries []reconcile.Entry[hostRoute, struct{}], do func(hns.Route) error) []error {
	errs := make([]error, len(entries))
	for i, e := range entries {
		if errs[i] = ctx.Err(); errs[i] == nil {
			errs[i] = do(hns.Route{Dst: e.Key.Dst, NextHop: e.Key.Via, Index: s.d.scope.index, Metric: routeMetric, Ours: true})
		}
	}
	return errs
}

// Set implements reconcile.Store.
func (s routeStore) Set(ctx context.Context, entries []reconcile.Entry[hostRoute, struct{}]) []error {
	return s.each(ctx, entries, s.d.stack.AddRoute)
}

// Delete implements reconcile.Store.
func (s routeStore) Delete(ctx context.Context, entries []reconcile.Entry[hostRoute, struct{}]) []error {
	return s.each(ctx, entries, s.d.stack.DeleteRoute)
}
