package backend

import (
	"net/netip"

	"flannel/pkg/conf"
	"flannel/pkg/dataplane"
	"flannel/subnet"
)

// ipip is the ipip backend: an IPv4 packet of a pod travels as the payload of another
// IPv4 packet, to the peer that is the gateway to its destination (RFC 2003). The
// tunnel device has no peer; the onlink gateway of a route is the destination of the
// outer packet. Peers need nothing more than a lease's addresses: Describe publishes no
// data, as plain does.
type ipip struct {
	plain
	directRouting bool // no tunnel to peers on the same link
}

// ipipDevice is the name of the tunnel device.
const ipipDevice = "flannel.ipip"

// ipipOverhead is what the tunnel adds to a packet, in bytes. false: the outer header is IPv4.
var ipipOverhead = dataplane.TraitsOf(dataplane.IPIP{}).Overhead(false)

// parseIPIP implements Kind.Parse. The Maker has no warnings.
func parseIPIP(o *conf.Object, os string) Maker {
	direct := o.Bool("DirectRouting", false)
	if os == "windows" {
		o.Problem("Type", "ipip needs the kernel of Linux; for a cluster with Windows nodes use vxlan or host-gw")
	}
	return func(n Node) (Backend, []string, error) {
		n.V6 = false // so that shared yields IPv4 only; by V4Only it is false already
		if err := n.fitMTU(n.Underlay.MTU, "IPIP", ipipOverhead, false); err != nil {
			return nil, nil, err
		}
		return ipip{plain{Node: n, Name: "ipip"}, direct}, nil, nil
	}
}

// Wire implements Backend. One hop is left for the peer's kernel, because the tunnel
// counts as none.
func (i ipip) Wire() Wire {
	return Wire{Name: "ipip", Paths: true, Echo: true, Hops: 1}
}

// ForWindows implements Backend.
func (i ipip) ForWindows() string {
	return "Backend: Type is ipip, which Windows nodes do not have; use vxlan with VNI 4096 and Port 4789, or host-gw"
}

// MTU implements Backend.
func (i ipip) MTU() int { return i.Underlay.MTU - ipipOverhead }

// Devices implements Backend. The device has the base address of the
// subnet, which no pod gets, as with vxlan.
func (i ipip) Devices(local subnet.Lease) []dataplane.Device {
	devices := i.plain.Devices(local)
	for e := range i.shared(&local) {
		base := e.Subnet.Addr()
		devices = append(devices, dataplane.Device{Name: ipipDevice, Kind: dataplane.IPIP{Tunnel: dataplane.Tunnel{
			MTU: i.MTU(), Addr: []netip.Prefix{netip.PrefixFrom(base, base.BitLen())}, Parent: i.Underlay.Name, Local: i.Underlay.V4,
		}}})
	}
	return devices
}

// Paths implements Backend.
func (i ipip) Paths(peer *subnet.Lease) ([]*dataplane.Path, error) {
	var paths []*dataplane.Path
	for e := range i.shared(peer) {
		if i.directRouting { // an error means that the peer is not on our link: tunnel to it
			if path, err := i.direct(e); err == nil {
				paths = append(paths, path)
				continue
			}
		}
		paths = append(paths, &dataplane.Path{Dst: e.Subnet, Via: e.PublicIP, Device: ipipDevice, Encap: dataplane.IPInIP{}})
	}
	return paths, nil
}
