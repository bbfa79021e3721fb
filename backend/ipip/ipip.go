// Package ipip is the ipip backend: an IPv4 packet of a pod travels as the payload
// of another IPv4 packet, to the peer that is the gateway to its destination (RFC
// 2003). The tunnel device has no peer; the onlink gateway of a route is the
// destination of the outer packet. Peers need nothing more than a lease's
// addresses.
package ipip

import (
	"net/netip"

	"flannel/backend"
	"flannel/pkg/conf"
	"flannel/pkg/dataplane"
	"flannel/subnet"
)

// Kind is the backend's row in the program's table (cmd/flanneld/backends.go). V4Only need
// not list Windows, for which parse refuses the backend.
func Kind() backend.Kind {
	return backend.Kind{Name: "ipip", Parse: parse, V4Only: []string{"linux"}}
}

// ipip implements backend.Backend. Describe publishes no data, as Plain does.
type ipip struct {
	backend.Plain
	directRouting bool // no tunnel to peers on the same link
}

// device is the name of the tunnel device.
const device = "flannel.ipip"

// overhead is what the tunnel adds to a packet, in bytes. false: the outer header is IPv4.
var overhead = dataplane.TraitsOf(dataplane.IPIP{}).Overhead(false)

// parse implements backend.Kind.Parse. The Maker has no warnings.
func parse(o *conf.Object, os string) backend.Maker {
	direct := o.Bool("DirectRouting", false)
	if os == "windows" {
		o.Problem("Type", "ipip needs the kernel of Linux; for a cluster with Windows nodes use vxlan or host-gw")
	}
	return func(n backend.Node) (backend.Backend, []string, error) {
		n.V6 = false // so that Shared yields IPv4 only; by V4Only it is false already
		if err := n.FitMTU(n.Underlay.MTU, "IPIP", overhead, false); err != nil {
			return nil, nil, err
		}
		return ipip{backend.Plain{Node: n, Name: "ipip"}, direct}, nil, nil
	}
}

// Wire implements backend.Backend. One hop is left for the peer's kernel, because the tunnel
// counts as none.
func (i ipip) Wire() backend.Wire {
	return backend.Wire{Name: "ipip", Paths: true, Echo: true, Hops: 1}
}

// ForWindows implements backend.Backend.
func (i ipip) ForWindows() string {
	return "Backend: Type is ipip, which Windows nodes do not have; use vxlan with VNI 4096 and Port 4789, or host-gw"
}

// MTU implements backend.Backend.
func (i ipip) MTU() int { return i.Underlay.MTU - overhead }

// Devices implements backend.Backend. The device has the base address of the
// subnet, which no pod gets, as with vxlan.
func (i ipip) Devices(local subnet.Lease) []dataplane.Device {
	devices := i.Plain.Devices(local)
	for e := range i.Shared(&local) {
		base := e.Subnet.Addr()
		devices = append(devices, dataplane.Device{Name: device, Kind: dataplane.IPIP{Tunnel: dataplane.Tunnel{
			MTU: i.MTU(), Addr: []netip.Prefix{netip.PrefixFrom(base, base.BitLen())}, Parent: i.Underlay.Name, Local: i.Underlay.V4,
		}}})
	}
	return devices
}

// Paths implements backend.Backend.
func (i ipip) Paths(peer *subnet.Lease) ([]*dataplane.Path, error) {
	var paths []*dataplane.Path
	for e := range i.Shared(peer) {
		if i.directRouting { // an error means that the peer is not on our link: tunnel to it
			if path, err := i.Direct(e); err == nil {
				paths = append(paths, path)
				continue
			}
		}
		paths = append(paths, &dataplane.Path{Dst: e.Subnet, Via: e.PublicIP, Device: device, Encap: dataplane.IPInIP{}})
	}
	return paths, nil
}
