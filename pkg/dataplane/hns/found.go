package hns

import (
	"context"
	"net/netip"
	"slices"

	"flannel/pkg/dataplane"
	"flannel/pkg/dataplane/driver"
)

// Found implements Dataplane.
func (d *Driver) Found(ctx context.Context, links dataplane.Links, s dataplane.State) ([]*dataplane.Path, error) {
	dev := d.device()
	link, there := links[dev.name]
	network := dev.network()
	if !there || d.network == nil && network != nil && network.tunnels() {
		return nil, nil
	}
	d.setNetworks(link, s)
	if d.network != nil {
		d.setPlace(dev, link)
	}
	if err := dev.tables(d)[:1].Refresh(ctx); err != nil {
		return nil, err
	}
	var found []*dataplane.Path
	dev.raise(d, func(dst netip.Prefix, via netip.Addr, encap dataplane.Encap) {
		if via.IsValid() && driver.Inside(dst, s.Networks) {
			found = append(found, &dataplane.Path{Dst: dst, Via: via, Device: dev.name, Encap: encap})
		}
	})
	slices.SortFunc(found, driver.Compare)
	return found, nil
}
