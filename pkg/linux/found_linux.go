package linux

import (
	"context"
	"slices"

	"flannel/pkg/dataplane"
	"flannel/pkg/dataplane/driver"
)

// Found implements Dataplane. It finds paths of flannel, too, which have the same
// form.
func (d *Driver) Found(ctx context.Context, links dataplane.Links, s dataplane.State) ([]*dataplane.Path, error) {
	d.setNetworks(s)
	if err := d.tables.Refresh(ctx); err != nil {
		return nil, err
	}
	devices := map[int]dataplane.Device{}
	for _, dev := range d.desired {
		if link, ok := links[dev.Name]; ok {
			devices[link.Index] = dev
		}
	}
	var found []*dataplane.Path
	for _, e := range d.routes.AllActual() {
		if device, ok := devices[e.Value.Index]; ok && driver.Inside(e.Key.Dst, s.Networks) {
			if p := pathOf(d, e.Key, e.Value, device); p != nil {
				found = append(found, p)
			}
		}
	}
	for _, e := range d.policies.AllActual() {
		if driver.Inside(e.Key.Dst, s.Networks) {
			if p := d.pathOfPolicy(e.Key, e.Value); p != nil {
				found = append(found, p)
			}
		}
	}
	slices.SortFunc(found, driver.Compare)
	return found, nil
}

// pathOf calls kind.pathOf if the route has a form that some kind has.
func pathOf(d *Driver, key routeKey, h hop, dev dataplane.Device) *dataplane.Path {
	k, err := kindOf(dev)
	if err != nil || h.Unmanaged || h.Blackhole || key.Metric != defaultMetric(key.Dst.Addr()) {
		return nil
	}
	return k.pathOf(d, key, h, dev.Name)
}
