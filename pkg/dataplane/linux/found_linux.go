package linux

import (
	"context"
	"errors"
	"slices"

	"flannel/pkg/dataplane"
	"flannel/pkg/dataplane/driver"
)

// Found implements Dataplane. What flannel left is of the same form, and is found, too.
func (d *Driver) Found(ctx context.Context, links dataplane.Links, s dataplane.State) ([]*dataplane.Path, error) {
	d.setNetworks(s)
	// The objects come before the routes that lead through them.
	err := errors.Join(d.nexthops.Refresh(ctx), d.fdb.Refresh(ctx), d.neighs.Refresh(ctx), d.routes.Refresh(ctx))
	if err != nil {
		return nil, err
	}
	devices := map[int]string{}
	for name, link := range links {
		devices[link.Index] = name
	}
	var found []*dataplane.Path
	for _, e := range d.routes.AllThere() {
		if device, ok := devices[e.Value.Index]; ok && driver.Inside(e.Key.Dst, s.Networks) {
			if p := d.raise(e.Key, e.Value, device); p != nil {
				found = append(found, p)
			}
		}
	}
	slices.SortFunc(found, driver.Compare)
	return found, nil
}

// raise is the inverse of lower: the path that a route belongs to. It is nil if the other entries of the path are not
// there, or the route has another form than lower gives it.
func (d *Driver) raise(key routeKey, h hop, device string) *dataplane.Path {
	tunnel := d.scope.Load().tunnels[h.Index]
	switch {
	case h.Odd || h.Blackhole || !h.Via.IsValid() || key.Metric != defaultMetric(key.Dst.Addr()):
		return nil
	case !tunnel:
		return &dataplane.Path{Dst: key.Dst, Via: h.Via, Device: device}
	case !h.Onlink || h.Via != key.Dst.Addr():
		return nil
	}
	mac, resolved := d.neighs.There(neighKey{h.Index, h.Via})
	via, forwarded := d.fdb.There(fdbKey{h.Index, mac})
	if !resolved || !forwarded {
		return nil
	}
	return &dataplane.Path{Dst: key.Dst, Via: via, Device: device, MAC: mac}
}
