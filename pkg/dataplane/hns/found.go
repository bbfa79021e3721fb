package hns

import (
	"context"
	"net/netip"
	"slices"

	"flannel/pkg/dataplane"
	"flannel/pkg/dataplane/driver"
	"flannel/pkg/mac"
)

// Found implements Dataplane. Policies of another VNI are those of a former configuration, as are routes of the host
// beside an overlay.
func (d *Driver) Found(ctx context.Context, links dataplane.Links, s dataplane.State) ([]*dataplane.Path, error) {
	dev := d.device()
	link, there := links[dev.Name]
	if !there || d.network == nil && dev.Kind == dataplane.Overlay {
		return nil, nil
	}
	d.setNetworks(link, s)
	if d.network != nil {
		d.setPlace(dev, link)
	}
	var found []*dataplane.Path
	add := func(dst netip.Prefix, via netip.Addr, end mac.Addr) {
		if via.IsValid() && driver.Inside(dst, s.Networks) {
			found = append(found, &dataplane.Path{Dst: dst, Via: via, Device: dev.Name, MAC: end})
		}
	}
	var err error
	switch {
	case dev.Kind == dataplane.Overlay && d.features.RemoteSubnet:
		err = d.policies.Refresh(ctx)
		for _, e := range d.policies.AllThere() {
			if !e.Value.Odd && e.Value.VSID == dev.VNI {
				add(e.Key.Prefix, e.Value.Provider, e.Value.MAC)
			}
		}
	case dev.Kind == dataplane.Overlay:
		err = d.remotes.Refresh(ctx)
		for _, e := range d.remotes.AllThere() {
			add(e.Key, e.Value.Provider, e.Value.MAC)
		}
	default:
		err = d.routes.Refresh(ctx)
		for _, e := range d.routes.AllThere() {
			add(e.Key.Dst, e.Key.Via, mac.Addr{})
		}
	}
	if err != nil {
		return nil, err
	}
	slices.SortFunc(found, driver.Compare)
	return found, nil
}
