package hns

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"flannel/pkg/hns"
	"flannel/pkg/reconcile"
)

// hostOf is the adapter with the host's addresses on a network; zero if there is none.
func (d *Driver) hostOf(n hns.Network, adapters []hns.Adapter) hns.Adapter {
	if host, ok := adapterWith(adapters, n.ManagementIP); ok && n.ManagementIP.IsValid() {
		return host
	}
	physical, found := adapterOf(n, adapters)
	if !found {
		return hns.Adapter{}
	}
	host, _ := hostAdapter(adapters, physical, true)
	return host
}

// leave writes down what the host has on a network that is about to be deleted.
func (d *Driver) leave(n hns.Network) error {
	adapters, err1 := d.stack.Adapters()
	routes, err2 := d.stack.Routes()
	if err := errors.Join(err1, err2); err != nil {
		return reconcile.Unknown(fmt.Errorf("look at what the host has on network %s: %w", n.Name, err))
	}
	physical, found := adapterOf(n, adapters)
	if !found {
		return nil // its adapter is gone, so nothing will go back there
	}
	host := d.hostOf(n, adapters)
	if host.Index == 0 {
		host = physical
	}
	return d.home.leave(host, physical, d.scope.theirs(routes))
}

// managementIP is the host's address on the network, which HNS learns some time after it made that.
func (d *Driver) managementIP(ctx context.Context, dev device) error {
	if !dev.network().tunnels() && !d.network.ManagementIP.IsValid() {
		ip, err := d.client.ManagementIP(ctx, d.network.ID)
		if err != nil {
			return reconcile.Unknown(unanswered(err))
		}
		d.network.ManagementIP = ip
	}
	if d.network.ManagementIP.IsValid() {
		return nil
	}
	if err := d.home.mend(d.networks); err != nil {
		return fmt.Errorf("%w (HNS does not know the host's address yet)", err)
	}
	return waiting(causeNoManagement, "HNS to learn the host's address")
}

// meets finds the adapter on which the host meets the network: that with the management address. HNS may keep one that
// the host has no more; a bridge does not send from it, so there the host's own counts as well.
func (d *Driver) meets(dev device, adapters []hns.Adapter) (host hns.Adapter, there bool) {
	if host, there = adapterWith(adapters, d.network.ManagementIP); there && !d.network.ManagementIP.IsLinkLocalUnicast() {
		return host, true
	}
	host = d.hostOf(*d.network, adapters)
	return host, !dev.network().tunnels() && hasAddress(host, dev.Local)
}

// wrong is a management address that is not the host's.
type wrong struct {
	network string // ID
	ip      netip.Addr
	since   time.Time
}

// notThere waits for the interface with the management address. When the host has another one and keeps it, HNS would
// send from an address that is nobody's for ever: then the network is made again.
func (d *Driver) notThere(ctx context.Context, dev device, adapters []hns.Adapter) error {
	n := *d.network
	now := d.hostOf(n, adapters)
	if !dev.network().tunnels() || !hasAddress(now, dev.Local) {
		d.network.ManagementIP = netip.Addr{} // ask again
		return waiting(causeNoManagement, "an interface to have the network's address %s", n.ManagementIP)
	}
	if d.foreign.network != n.ID || d.foreign.ip != n.ManagementIP {
		d.foreign = wrong{n.ID, n.ManagementIP, time.Now()}
	}
	why := fmt.Sprintf("it sends from %s, and the host's address is %s", n.ManagementIP, dev.Local)
	if time.Since(d.foreign.since) < d.pace.Wrong {
		return waiting(causeNoManagement, "HNS to learn the host's address: %s", why)
	}
	return d.remake(ctx, n, why)
}

// well notes that the host has all that it should.
func (d *Driver) well(host hns.Adapter, adapters []hns.Adapter) error {
	physical, found := adapterOf(*d.network, adapters)
	if !found {
		return nil
	}
	routes, err := d.stack.Routes()
	if err != nil {
		return reconcile.Unknown(fmt.Errorf("list routes: %w", err))
	}
	d.home.well(snapshot(host, physical, d.scope.theirs(routes)))
	return nil
}
