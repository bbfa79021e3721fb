// This file is the udp backend. Packets to other nodes go through a TUN device to
// flanneld, which sends each as the payload of one UDP datagram to the peer's public
// IP. It works wherever UDP does and needs no module of the kernel except tun, but
// all packets pass through a process. It is flannel's backend for a configuration
// that names none, and has IPv4 only.

package backend

import (
	"fmt"
	"net/netip"

	"flannel/pkg/conf"
	"flannel/pkg/dataplane"
	"flannel/subnet"
)

// udpTraits has flannel's port, and what the tunnel adds to a packet. All nodes use one port: a
// lease contains no port, so a node sends to its own port number.
var udpTraits = dataplane.TraitsOf(dataplane.TUN{})

// parseUDP implements Kind.Parse. Its message is for a Windows node that reads this
// configuration; that of ForWindows is for Linux nodes that have Windows nodes as peers. The
// Maker has no warnings. Outer and inner packets are IPv4: Overhead and fitMTU get false.
func parseUDP(o *conf.Object, os string) Maker {
	port := o.Int("Port", int(udpTraits.Port), 1, 65535)
	if os == "windows" {
		o.Problem("Type", "udp is not supported on Windows, whose nodes need vxlan with VNI 4096 and Port 4789, or host-gw; set one of them for all nodes")
	}
	return func(n Node) (Backend, []string, error) {
		u := udp{plain: plain{Node: n, Name: "udp"}, port: uint16(port)}
		return u, nil, n.fitMTU(n.Underlay.MTU, "UDP", udpTraits.Overhead(false), false)
	}
}

// udp implements Backend.
type udp struct {
	plain
	port uint16
}

// MTU implements Backend.
func (u udp) MTU() int { return u.Underlay.MTU - udpTraits.Overhead(false) }

// Wire returns Untyped true: flannel's leases for udp have no BackendType, and
// neither have ours. Paths is true because the method Paths makes some, and Echo because
// the peer's kernel answers pings to the address of its TUN device. A packet has three hops
// to the peer's kernel, because the forwarders of both nodes lower its hop limit, too.
func (u udp) Wire() Wire {
	return Wire{Name: fmt.Sprintf("udp, port %d", u.port), Paths: true, Echo: true, Hops: 3, Untyped: true}
}

// device returns the name of the TUN device. flannel takes the first free name of
// this form. A name that depends on the port is the same after every restart, and
// two flannelds on one host, which have two ports, have two names.
func (u udp) device() string {
	if u.port == udpTraits.Port {
		return "flannel0"
	}
	return fmt.Sprintf("flannel%d", u.port)
}

// Devices implements Backend: the underlay, and a TUN device, whose packets
// the daemon forwards. The device has the base address of the subnet, which no pod gets.
// local has IPv4: without it, the configuration is refused (withoutIPv6).
func (u udp) Devices(local subnet.Lease) []dataplane.Device {
	base := local.V4.Subnet.Addr()
	return append(u.plain.Devices(local), dataplane.Device{
		Name: u.device(), Kind: dataplane.TUN{
			Tunnel: dataplane.Tunnel{
				MTU: u.MTU(), Addr: []netip.Prefix{netip.PrefixFrom(base, base.BitLen())},
				Parent: u.Underlay.Name, Local: u.Underlay.V4,
			},
			Port: u.port,
		},
	})
}

// Describe implements Backend. The lease has the public IP alone, as flannel
// publishes it.
func (u udp) Describe(local subnet.Lease, links dataplane.Links) (subnet.Lease, error) {
	local, err := u.plain.Describe(local, links)
	local.Backend = ""
	return local, err
}

// Paths implements Backend. shared yields the IPv4 endpoint of the peer, if any.
func (u udp) Paths(peer *subnet.Lease) ([]*dataplane.Path, error) {
	var paths []*dataplane.Path
	for e := range u.shared(peer) {
		paths = append(paths, &dataplane.Path{Dst: e.Subnet, Via: e.PublicIP, Device: u.device(), Encap: dataplane.Datagram{}})
	}
	return paths, nil
}

// ForWindows implements Backend.
func (udp) ForWindows() string {
	return "Backend: Type is udp, which Windows nodes do not have. Set it to vxlan, with VNI 4096 and Port 4789, or host-gw, in the one configuration of all nodes"
}
