package linux

import (
	"errors"

	"github.com/vishvananda/netlink"

	"flannel/pkg/dataplane"
	"flannel/pkg/dataplane/driver"
)

// existing drives devices of the host. A path through one is a route via the
// peer's address, and its nexthop object.
type existing struct{}

func (existing) ensure(_ *Driver, _ dataplane.Device, found netlink.Link) (dataplane.Link, error) {
	if found == nil {
		return dataplane.Link{}, errors.New("does not exist")
	}
	return linkOf(found), nil
}

func (existing) fill(d *Driver, f *driver.Filling, p *dataplane.Path, link dataplane.Link) {
	d.putRoute(f, p.Dst, hop{Via: p.Via, Index: link.Index})
}

func (existing) pathOf(_ *Driver, key routeKey, h hop, device string) *dataplane.Path {
	if !h.Via.IsValid() {
		return nil
	}
	return &dataplane.Path{Dst: key.Dst, Via: h.Via, Device: device, Encap: dataplane.Direct{}}
}
