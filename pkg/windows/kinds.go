package windows

import (
	"context"
	"fmt"
	"net/netip"

	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
)

// device is a dataplane.Device together with what drives its kind. Its Network holds the
// properties that both kinds of HNS networks have (Parent, Local, Subnets, Switch).
type device struct {
	name string
	dataplane.Network
	kind
	network networkKind // the kind again; nil: the device is not an HNS network
}

// kind drives the paths through devices of one kind (dataplane/kinds.go). There
// are three: existing, bridge, overlay. A kind has no state of its own: that is
// in the Driver. Only the loop calls the methods.
type kind interface {
	// carries reports whether a path with this encapsulation leads through such a
	// device; fill and the others get no other path.
	carries(dataplane.Encap) bool
	// fill translates a path to entries of the kind's tables, and has them wanted,
	// dropped, or their keys collected, as f.Verb says.
	fill(d *Driver, f *dataplane.Filling, p *dataplane.Path)
	// tables are those that the kind fills, in order. The first one holds what
	// leads to the peers.
	tables(d *Driver) dataplane.Tables
	// pathsOf is the inverse of fill: it calls path for every path that the
	// tables' actual entries form, for Found, which has listed them.
	pathsOf(d *Driver, path func(dst netip.Prefix, via netip.Addr, encap dataplane.Encap))
}

// networkKind drives HNS networks of one kind. Each has a file of its own.
type networkKind interface {
	kind
	// complete sets the properties of the wanted network that depend on the kind.
	// wantedNetwork has set the subnets. The error means that this HNS cannot have
	// such a network; Type is set nevertheless.
	complete(n *hns.Network, v hns.Version) error
	// tunnels reports whether HNS itself sends to the peers, from the network's
	// management address. If not, the host does.
	tunnels() bool
	// finish is the last step of Ensure, in each pass in which the network is up. host
	// is the adapter with the host's address. An error does not remove the network's
	// link: peers use the network meanwhile.
	finish(ctx context.Context, d *Driver, dev device, host hns.Adapter, adapters []hns.Adapter) error
}

// deviceOf finds what drives a device.
func deviceOf(dev dataplane.Device) (device, error) {
	out := device{name: dev.Name}
	switch k := dev.Kind.(type) {
	case dataplane.Existing:
		out.kind = existing{}
	case dataplane.Overlay:
		out.Network, out.network = k.Network, overlay{k}
		out.kind = out.network
	case dataplane.L2Bridge:
		out.Network, out.network = k.Network, bridge{L2Bridge: k}
		out.kind = out.network
	default:
		return out, fmt.Errorf("device kind %s is not supported on Windows", dataplane.KindName(dev.Kind))
	}
	return out, nil
}

// fill translates a path to entries of the tables of its device.
func (d *Driver) fill(f *dataplane.Filling, dev device, p *dataplane.Path) error {
	switch {
	case p.Device != dev.name:
		return fmt.Errorf("path to %s: the network %s does not exist", p.Dst, p.Device)
	case !dev.carries(p.Encap):
		return fmt.Errorf("path to %s: %s does not support encapsulation %T", p.Dst, p.Device, p.Encap)
	}
	dev.fill(d, f, p)
	return nil
}

// existing is an adapter of the host, the underlay, for backends without an HNS network.
type existing struct{ hostRoutes }

// hostRoutes is the part of a kind whose paths are routes of the host.
type hostRoutes struct{}

func (hostRoutes) carries(e dataplane.Encap) bool { _, ok := e.(dataplane.Direct); return ok }

func (hostRoutes) fill(d *Driver, f *dataplane.Filling, p *dataplane.Path) {
	// Without IPv6 networks of HNS, no pod has IPv6. Drop and CollectKeys ignore what is not there.
	if p.Dst.Addr().Is4() || d.version.Features().IPv6DualStack || f.Verb != dataplane.Want {
		dataplane.Put(f, d.routes, hostRoute{p.Dst, p.Via}, struct{}{})
	}
}

func (hostRoutes) tables(d *Driver) dataplane.Tables { return dataplane.Tables{d.routes} }

func (hostRoutes) pathsOf(d *Driver, path func(netip.Prefix, netip.Addr, dataplane.Encap)) {
	for _, e := range d.routes.AllActual() {
		path(e.Key.Dst, e.Key.Via, dataplane.Direct{})
	}
}
