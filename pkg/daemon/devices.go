package daemon

import (
	"context"
	"maps"
	"slices"

	"flannel/pkg/dataplane"
	"flannel/pkg/status"
)

// devicesPart keeps the devices, such as that of the tunnel.
func (d *Daemon) devicesPart() part {
	return part{name: partDevices, wakes: []<-chan struct{}{d.Dataplane.Changes()}, report: tellDevices,
		reconcile: func(ctx context.Context, p *pass) (err error) {
			if p.resync {
				d.Dataplane.QueueResync()
			}
			p.links, err = d.Dataplane.Ensure(ctx, p.devices())
			return err
		}}
}

// devices returns the desired devices: those that the backend needs, with the
// node's networks, and with Readdress as duplicates.resolve and acquire set it.
func (n *node) devices() []dataplane.Device {
	devices, networks := n.backend.Devices(n.lease), slices.Concat(n.networks(), n.former.networks)
	for i := range devices {
		devices[i].Readdress, devices[i].Networks = n.readdressed[devices[i].Name], networks
	}
	return devices
}

// tellDevices says which devices there are, and in which form ESP is sent.
func tellDevices(p *pass) {
	links, encap := p.links, false
	for _, d := range p.backend.Devices(p.lease) {
		if k, ok := d.Kind.(dataplane.IPsec); ok {
			encap = k.UDPEncap
		}
	}
	p.tell(status.OfNode, func(r *status.Report) {
		r.Node.UDPEncap = encap // tellNode, which comes first, has made r.Node
		for _, name := range slices.Sorted(maps.Keys(links)) {
			l := links[name]
			dev := status.Device{Name: name, Index: l.Index, MTU: l.MTU}
			if l.MAC != (dataplane.MAC{}) {
				dev.MAC = l.MAC.String()
			}
			if l.Key != (dataplane.PublicKey{}) {
				dev.PublicKey = l.Key.Base64()
			}
			r.Node.Devices = append(r.Node.Devices, dev)
		}
	})
}
