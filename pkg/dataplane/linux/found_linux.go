package linux

import (
	"context"
	"slices"

	"flannel/pkg/dataplane"
	"flannel/pkg/dataplane/driver"
)

// Found implements Dataplane. What flannel left is of the same form, and is found, too.
func (d *Driver) Found(ctx context.Context, links dataplane.Links, s dataplane.State) ([]*dataplane.Path, error) {
	d.setNetworks(s)
	if err := d.tables.Refresh(ctx); err != nil {
		return nil, err
	}
	devices := map[int]dataplane.Device{}
	for _, dev := range d.devices {
		if link, ok := links[dev.Name]; ok {
			devices[link.Index] = dev
		}
	}
	var found []*dataplane.Path
	for _, e := range d.routes.AllThere() {
		if device, ok := devices[e.Value.Index]; ok && driver.Inside(e.Key.Dst, s.Networks) {
			if p := raise(d, e.Key, e.Value, device); p != nil {
				found = append(found, p)
			}
		}
	}
	slices.SortFunc(found, driver.Compare)
	return found, nil
}

// raise is kind.raise for routes of the forms that any kind has.
func raise(d *Driver, key routeKey, h hop, dev dataplane.Device) *dataplane.Path {
	k, err := driving(dev)
	if err != nil || h.Odd || h.Blackhole || !h.Via.IsValid() || key.Metric != defaultMetric(key.Dst.Addr()) {
		return nil
	}
	return k.raise(d, key, h, dev.Name)
}
