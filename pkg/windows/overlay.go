package windows

import (
	"context"
	"fmt"
	"net/netip"

	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
	"flannel/pkg/windows/hostconfig"
)

// overlay drives HNS networks that are a VXLAN tunnel. A path is a
// RemoteSubnetRoute policy of the network: for the peer 10.244.2.0/24 on the host
// 10.99.0.3, it holds these two, the VNI, and the MAC address of the peer's
// network, to which HNS sends the inner packet. Before HNS 9.2 there are no such
// policies, and a remote endpoint with the same values takes their place. overlay
// is a networkKind: kinds.go says what its methods are for.
type overlay struct{ dataplane.Overlay }

func (o overlay) complete(n *hns.Network, v hns.Version) error {
	n.Type, n.MACs = hns.Overlay, o.MACs
	for i := range n.Subnets {
		n.Subnets[i].VSID = o.VNI
	}
	if o.Port == 0 || o.Port == hns.DefaultVxlanPort {
		return nil
	}
	if !v.Features().VxlanPort {
		return fmt.Errorf("Backend.Port: %d is not supported by this Windows (HNS %s; ports other than %d need 10.3): update it, or set %d for all nodes",
			o.Port, v, hns.DefaultVxlanPort, hns.DefaultVxlanPort)
	}
	n.VxlanPort = o.Port
	return nil
}

func (overlay) tunnels() bool { return true }

func (overlay) finish(_ context.Context, d *Driver, dev device, host hns.Adapter, _ []hns.Adapter) error {
	if dev.Local.IsValid() && dev.Local != d.network.ManagementIP && hostconfig.HasAddress(host, dev.Local) {
		d.warnOnce(causeOtherAddress, fmt.Sprintf("HNS tunnels from %s, and the underlay's address is %s: select the first with --iface, or peers send to an address where HNS does not listen",
			d.network.ManagementIP, dev.Local))
	}
	return nil
}

func (overlay) carries(e dataplane.Encap) bool { _, ok := e.(dataplane.VTEP); return ok }

func (o overlay) fill(d *Driver, f *dataplane.Filling, p *dataplane.Path) {
	end := p.Encap.(dataplane.VTEP).MAC // carries has been asked
	if !d.version.Features().RemoteSubnet {
		dataplane.Put(f, d.remotes, p.Dst, remoteValue{p.Via, end})
		return
	}
	r := hns.RemoteSubnet{Prefix: p.Dst, VSID: o.VNI, Provider: p.Via, MAC: end}
	dataplane.Put(f, d.policies, policyKey{hns.RemoteSubnetType, p.Dst}, policyValue{VSID: r.VSID, Provider: r.Provider, MAC: r.MAC})
}

// tables includes the host's routes: an earlier backend may have left some.
func (overlay) tables(d *Driver) dataplane.Tables {
	if d.version.Features().RemoteSubnet {
		return dataplane.Tables{d.policies, d.routes}
	}
	return dataplane.Tables{d.remotes, d.routes}
}

// pathsOf leaves out policies of another VNI, which belong to an earlier
// configuration. A table that was not listed has no actual entries.
func (o overlay) pathsOf(d *Driver, path func(netip.Prefix, netip.Addr, dataplane.Encap)) {
	for _, e := range d.policies.AllActual() {
		if !e.Value.Invalid && e.Value.VSID == o.VNI {
			path(e.Key.Prefix, e.Value.Provider, dataplane.VTEP{MAC: e.Value.MAC})
		}
	}
	if d.version.Features().RemoteSubnet {
		return
	}
	for _, e := range d.remotes.AllActual() {
		path(e.Key, e.Value.Provider, dataplane.VTEP{MAC: e.Value.MAC})
	}
}
