// This file is vxlan on Windows, where HNS has the tunnel.

package backend

import (
	"fmt"
	"net/netip"

	"flannel/pkg/conf"
	"flannel/pkg/dataplane"
	"flannel/subnet"
)

// overlayOptions are options for Windows only, in the same object Backend as the others.
type overlayOptions struct {
	name string           // of the HNS network; newVXLAN puts it into vxlan.names, as that for IPv4
	pool [2]dataplane.MAC // first and last MAC address of pods; zero: HNS chooses
}

// parseOverlay parses the options for Windows into opts, which has the other ones, and
// warns about options that Windows does not support. They are not errors, since one
// configuration serves the nodes of both systems, and the node can join without them. The
// parser of vxlan (vxlan.go) calls parseOverlay on Windows. The limits of the VNI and the
// ports are explained in vxlan_mixed.go.
func parseOverlay(o *conf.Object, opts *vxlanOptions) {
	if opts.directRouting {
		o.Warn("DirectRouting", "not supported on Windows: this node tunnels to all peers, but a Linux peer on the same link sends"+
			" outside of the tunnel, and its packets do not reach this node's pods; set it to false for a cluster with Windows nodes")
	}
	if opts.gbp {
		o.Warn("GBP", "not supported on Windows: packets of this node carry no group, so policies of Linux nodes that require one do not match them")
	}
	if opts.mtu > 0 {
		o.Warn("MTU", "not supported on Windows, where pods get 1450, or less by the CNI configuration: see flanneld cni-conf --encap-overhead; only the subnet file contains this value")
	}
	if opts.vni < leastVSID {
		o.Problem("VNI", "%d is below %d, the least that Windows supports: set VNI to %d or more and Port to %d in the one configuration of all nodes",
			opts.vni, leastVSID, leastVSID, vxlanWindowsPort)
	}
	if opts.vni > mostVSID {
		o.Warn("VNI", "%d is above %d, the most that kube-proxy on Windows can read: it will not find the network, and there are no Services; set %d for all",
			opts.vni, mostVSID, leastVSID)
	}
	if !o.Has("VNI") {
		o.Warn("VNI", "not given, which is %d for this node and 1 for Linux nodes: set %d for all", leastVSID, leastVSID)
	}
	if !o.Has("Port") {
		o.Warn("Port", "not given, which is %d for this node and %d for Linux nodes: set %d for all", vxlanWindowsPort, vxlanLinuxPort, vxlanWindowsPort)
	}
	// vxlan.Wire and vxlan.Paths, which overlay inherits, describe by these options what the node
	// does. Learning needs no warning: peers are reached without it, on Linux, too.
	opts.gbp, opts.learning, opts.directRouting = false, false, false
	opts.overlay = &overlayOptions{name: networkName(o, fmt.Sprintf("flannel.%d", opts.vni)), pool: macPool(o)}
}

// macPool parses the first two bytes of the pods' MAC addresses, and returns the
// first and the last address of the range: for "0E-2A", 0e:2a:00:00:00:00 and
// 0e:2a:ff:ff:ff:ff. Without the option, or after a problem, both are zero.
func macPool(o *conf.Object) (pool [2]dataplane.MAC) {
	prefix := o.String("MacPrefix", "")
	if prefix == "" {
		return pool
	}
	first, err := dataplane.ParseMAC(prefix + "-00-00-00-00")
	if err != nil || !first.Unicast() || len(prefix) != len("0E-2A") {
		o.Problem("MacPrefix", "%.40q is not the beginning of a unicast MAC address; use two bytes like 0E-2A", prefix)
		return pool
	}
	last := first
	last[2], last[3], last[4], last[5] = 0xff, 0xff, 0xff, 0xff
	return [2]dataplane.MAC{first, last}
}

// overlay is vxlan on Windows: Backend with other Devices (below) and ForWindows
// (vxlan_mixed.go). newVXLAN returns it for options that parseOverlay has parsed. One HNS
// network is the tunnel, the router and the pods' switch. HNS chooses the MAC address of
// its VTEP.
type overlay struct{ vxlan }

// Devices implements Backend. It returns no underlay device: the HNS network makes
// a switch of the adapter. HNS chooses MTU and MAC address of the tunnel. Only IPv4 is
// used, as Kinds declares (V4Only).
func (v overlay) Devices(local subnet.Lease) []dataplane.Device {
	return []dataplane.Device{{
		Name: v.names[false], Kind: dataplane.Overlay{
			Network: dataplane.Network{Parent: v.Underlay.Name, Local: v.Underlay.V4, Subnets: []netip.Prefix{local.V4.Subnet}},
			VNI:     uint32(v.vni), Port: uint16(v.port), MACs: v.vxlanOptions.overlay.pool,
		},
	}}
}
