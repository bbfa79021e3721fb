package hns

import (
	"context"
	"fmt"
	"net/netip"

	"flannel/pkg/dataplane"
	"flannel/pkg/dataplane/driver"
	"flannel/pkg/hns"
	"flannel/pkg/mac"
)

// overlay drives HNS networks that are the tunnel, too. A path is a policy of the network or, where HNS has none such, an
// endpoint that stands for the peer.
type overlay struct{ dataplane.Overlay }

func (o overlay) ensure(ctx context.Context, d *Driver, dev device, list bool, adapters []hns.Adapter, links dataplane.Links) error {
	if err := d.findNetwork(ctx, dev, list, adapters); err != nil {
		return err
	}
	if d.network.DRMAC == (mac.Addr{}) && !dev.Switch {
		return waiting(causeNoMAC, "HNS to give the network its MAC address")
	}
	return d.meetNetwork(ctx, dev, adapters, links)
}

func (o overlay) want(n *hns.Network, v hns.Version, f hns.Features) error {
	n.Type, n.MACs = hns.Overlay, o.MACs
	for i := range n.Subnets {
		n.Subnets[i].VSID = o.VNI
	}
	if o.Port == 0 || o.Port == hns.DefaultVxlanPort {
		return nil
	}
	if !f.VxlanPort {
		return fmt.Errorf("Backend.Port: %d is not possible with this Windows (HNS %s; other ports than %d need 10.3): update it, or set %d for all nodes",
			o.Port, v, hns.DefaultVxlanPort, hns.DefaultVxlanPort)
	}
	n.VxlanPort = o.Port
	return nil
}

func (overlay) tunnels() bool { return true }

func (overlay) meet(_ context.Context, d *Driver, dev device, host hns.Adapter, _ []hns.Adapter) error {
	if dev.Local.IsValid() && dev.Local != d.network.ManagementIP && hasAddress(host, dev.Local) {
		d.warnOnce(causeOtherAddress, fmt.Sprintf("HNS tunnels from %s, and the underlay's address is %s: take the first with --iface, or peers send to where HNS does not listen",
			d.network.ManagementIP, dev.Local))
	}
	return nil
}

func (overlay) carries(e dataplane.Encap) bool { _, is := e.(dataplane.VTEP); return is }

func (o overlay) fill(d *Driver, f *driver.Filling, p *dataplane.Path) {
	end, _ := p.VTEP()
	if !d.features.RemoteSubnet {
		driver.Put(f, d.remotes, p.Dst, remoteValue{p.Via, end})
		return
	}
	r := hns.RemoteSubnet{Prefix: p.Dst, VSID: o.VNI, Provider: p.Via, MAC: end}
	driver.Put(f, d.policies, policyKey{r.Policy().Type, p.Dst}, policyValue{VSID: r.VSID, Provider: r.Provider, MAC: r.MAC})
}

// tables: also beside an overlay there may be routes of the host, of an earlier backend.
func (overlay) tables(d *Driver) driver.Tables {
	if d.features.RemoteSubnet {
		return driver.Tables{d.policies, d.routes}
	}
	return driver.Tables{d.remotes, d.routes}
}

// raise takes policies of another VNI for those of a former configuration.
func (o overlay) raise(d *Driver, path func(netip.Prefix, netip.Addr, dataplane.Encap)) {
	for _, e := range d.policies.AllThere() {
		if !e.Value.Odd && e.Value.VSID == o.VNI {
			path(e.Key.Prefix, e.Value.Provider, dataplane.VTEP{MAC: e.Value.MAC})
		}
	}
	if d.features.RemoteSubnet {
		return
	}
	for _, e := range d.remotes.AllThere() {
		path(e.Key, e.Value.Provider, dataplane.VTEP{MAC: e.Value.MAC})
	}
}
