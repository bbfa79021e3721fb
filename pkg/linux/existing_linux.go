package linux

import (
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink"

	"flannel/pkg/dataplane"
)

// existing drives devices of the host. A path through one is a route via the
// peer's address, and its nexthop object.
type existing struct {
	none
	host
}

// newExisting returns the kind of devices that somebody else makes, such as the
// underlay.
func newExisting(h host) kind { return &existing{host: h} }

func (*existing) ensure(_ dataplane.Device, found netlink.Link) (dataplane.Link, error) {
	if found == nil {
		return dataplane.Link{}, errors.New("does not exist")
	}
	return linkOf(found), nil
}

func (k *existing) fill(f *dataplane.Filling, p *dataplane.Path, link dataplane.Link) {
	k.putRoute(f, p.Dst, hop{Via: p.Via, Index: link.Index})
	k.sysctls.countDirect(f.Verb, p)
}

func (*existing) found(dev dataplane.Device, routes []routeEntry, _ dataplane.State) []*dataplane.Path {
	return pathsOf(routes, func(dst netip.Prefix, h hop) *dataplane.Path {
		if !h.Via.IsValid() {
			return nil
		}
		return &dataplane.Path{Dst: dst, Via: h.Via, Device: dev.Name, Encap: dataplane.Direct{}}
	})
}

func (*existing) parameters(device string) []sysctl { return []sysctl{forwarding(device)} }
