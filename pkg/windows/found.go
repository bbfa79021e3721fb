package windows

import (
	"context"
	"net/netip"
	"slices"

	"flannel/pkg/dataplane"
)

// Found implements Dataplane.
func (d *Driver) Found(ctx context.Context, links dataplane.Links, s dataplane.State) ([]*dataplane.Path, error) {
	dev := d.device()
	link, exists := links[dev.name]
	network := dev.network
	if !exists || d.network == nil && network != nil && network.tunnels() {
		return nil, nil
	}
	d.setNetworks(link, s)
	if d.network != nil {
		d.setTarget(dev, link)
	}
	if err := dev.tables(d)[:1].Refresh(ctx); err != nil {
		return nil, err
	}
	var found []*dataplane.Path
	dev.pathsOf(d, func(dst netip.Prefix, via netip.Addr, encap dataplane.Encap) {
		if via.IsValid() && dataplane.Inside(dst, s.Networks) {
			found = append(found, &dataplane.Path{Dst: dst, Via: via, Device: dev.name, Encap: encap})
		}
	})
	slices.SortFunc(found, dataplane.ComparePaths)
	return found, nil
}
