package linux

import (
	"context"
	"net/netip"
	"slices"

	"flannel/pkg/dataplane"
)

// Found implements Dataplane. It finds paths of flannel, too, which have the same
// form. The daemon's loop calls it after a start, until it succeeds: before that, nothing is deleted.
func (d *Driver) Found(ctx context.Context, links dataplane.Links, s dataplane.State) ([]*dataplane.Path, error) {
	d.setNetworks(s)
	if err := d.tables.Refresh(ctx); err != nil {
		return nil, err
	}
	routes := map[int][]routeEntry{} // by device
	for _, e := range d.routes.AllActual() {
		h, dst := e.Value, e.Key.Dst
		if !h.Unmanaged && !h.Blackhole && e.Key.Metric == defaultMetric(dst.Addr()) && dataplane.Inside(dst, s.Networks) {
			e.Value.OtherObject = false // whatever its nexthop object, the path is the same
			routes[h.Index] = append(routes[h.Index], e)
		}
	}
	var found []*dataplane.Path
	for _, dev := range d.desired {
		k, err := d.kindOf(dev)
		if link, ok := links[dev.Name]; ok && err == nil {
			found = append(found, k.found(dev, routes[link.Index], s)...)
		}
	}
	slices.SortFunc(found, dataplane.ComparePaths)
	return found, nil
}

// pathsOf returns the paths of routes. pathOf returns the path of one, or nil if other
// entries of the path do not exist, or kind.fill would make another route.
func pathsOf(routes []routeEntry, pathOf func(netip.Prefix, hop) *dataplane.Path) (found []*dataplane.Path) {
	for _, e := range routes {
		if p := pathOf(e.Key.Dst, e.Value); p != nil {
			found = append(found, p)
		}
	}
	return found
}
