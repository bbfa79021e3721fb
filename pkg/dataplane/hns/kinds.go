package hns

import (
	"context"
	"fmt"
	"net/netip"

	"flannel/pkg/dataplane"
	"flannel/pkg/dataplane/driver"
	"flannel/pkg/hns"
)

// device is one that shall be there, with what drives its kind.
type device struct {
	name string
	dataplane.Network
	kind
}

// kind drives the devices of one kind, and the paths through them. Each has a file of its own.
type kind interface {
	// ensure adds the device's link to links as soon as peers can be told of it. Its error says what it waits for.
	ensure(ctx context.Context, d *Driver, dev device, list bool, adapters []hns.Adapter, links dataplane.Links) error
	// carries reports whether a path is of this kind.
	carries(dataplane.Encap) bool
	// fill puts the entries that a path comes to into the kind's tables.
	fill(d *Driver, f *driver.Filling, p *dataplane.Path)
	// tables are those that the kind fills, in order. What leads to the peers is in the first.
	tables(d *Driver) driver.Tables
	// raise is the inverse of fill: it tells of every path that the tables hold.
	raise(d *Driver, path func(dst netip.Prefix, via netip.Addr, encap dataplane.Encap))
}

// networkKind drives HNS networks.
type networkKind interface {
	kind
	// want completes the network that HNS shall have, all of whose subnets are there.
	want(n *hns.Network, v hns.Version, f hns.Features) error
	// tunnels reports whether HNS itself sends to the peers, from the network's management address. Else the host does.
	tunnels() bool
	// meet is for what is left when the host meets the network.
	meet(ctx context.Context, d *Driver, dev device, host hns.Adapter, adapters []hns.Adapter) error
}

// drive finds what drives a device.
func drive(dev dataplane.Device) (device, error) {
	out := device{name: dev.Name}
	switch k := dev.Kind.(type) {
	case dataplane.Existing:
		out.kind = existing{}
	case dataplane.Overlay:
		out.Network, out.kind = k.Network, overlay{k}
	case dataplane.L2Bridge:
		out.Network, out.kind = k.Network, bridge{L2Bridge: k}
	default:
		return out, fmt.Errorf("device kind %s is not supported on Windows", dataplane.KindName(dev.Kind))
	}
	return out, nil
}

// network returns what drives an HNS network; nil: the device is none.
func (dev device) network() networkKind {
	k, _ := dev.kind.(networkKind)
	return k
}

// fill puts a path into the tables that its device fills.
func (d *Driver) fill(f *driver.Filling, dev device, p *dataplane.Path) error {
	switch {
	case p.Device != dev.name:
		return fmt.Errorf("path to %s: the network %s is not there", p.Dst, p.Device)
	case !dev.carries(p.Encap):
		return fmt.Errorf("path to %s: encapsulation %T does not go through %s", p.Dst, p.Encap, p.Device)
	}
	dev.fill(d, f, p)
	return nil
}

// hostRoutes is what kinds have in common whose paths are routes of the host.
type hostRoutes struct{}

func (hostRoutes) carries(e dataplane.Encap) bool { _, is := e.(dataplane.Direct); return is }

func (hostRoutes) fill(d *Driver, f *driver.Filling, p *dataplane.Path) {
	if p.Dst.Addr().Is4() || d.features.IPv6DualStack || f.Verb != driver.Want {
		driver.Put(f, d.routes, hostRoute{p.Dst, p.Via}, struct{}{})
	}
}

func (hostRoutes) tables(d *Driver) driver.Tables { return driver.Tables{d.routes} }

func (hostRoutes) raise(d *Driver, path func(netip.Prefix, netip.Addr, dataplane.Encap)) {
	for _, e := range d.routes.AllThere() {
		path(e.Key.Dst, e.Key.Via, dataplane.Direct{})
	}
}
