package dataplane

import (
	"context"
	"net/netip"
	"slices"

	"flannel/pkg/mac"
)

// Found implements Dataplane. Policies of another VNI are those of a former configuration, as are routes of the host
// beside an overlay.
func (d *HNS) Found(ctx context.Context, links Links, s State) ([]*Path, error) {
	dev := d.device()
	link, there := links[dev.Name]
	if !there || d.network == nil && dev.Kind == Overlay {
		return nil, nil
	}
	d.setNetworks(link, s)
	if d.network != nil {
		d.setPlace(dev, link)
	}
	var found []*Path
	add := func(dst netip.Prefix, via netip.Addr, end mac.Addr) {
		if via.IsValid() && inside(dst, s.Networks) {
			found = append(found, &Path{Dst: dst, Via: via, Device: dev.Name, MAC: end})
		}
	}
	var err error
	switch {
	case dev.Kind == Overlay && d.features.RemoteSubnet:
		err = d.policies.Refresh(ctx)
		for _, e := range d.policies.AllThere() {
			if !e.Value.Odd && e.Value.VSID == dev.VNI {
				add(e.Key.Prefix, e.Value.Provider, e.Value.MAC)
			}
		}
	case dev.Kind == Overlay:
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
	slices.SortFunc(found, comparePaths)
	return found, nil
}
