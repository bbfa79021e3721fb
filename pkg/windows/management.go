package windows

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
	"flannel/pkg/windows/hns"
	"flannel/pkg/windows/hostconfig"
)

// A network's management address is the host's address on the network's adapter,
// from which HNS sends tunnelled packets. HNS learns it once, some time after it
// made the network. If the host's address changes later, or HNS learned a wrong
// one, the network has to be made again. This file has the steps of Ensure about it.

// hostAdapter returns the adapter with the host's addresses on a network; the
// zero Adapter if there is none, whose Index is 0.
func (d *Driver) hostAdapter(n hns.Network, adapters []hns.Adapter) hns.Adapter {
	if host, ok := hostconfig.AdapterWith(adapters, n.ManagementIP); ok && n.ManagementIP.IsValid() {
		return host
	}
	physical, found := hostconfig.NetworkAdapter(n, adapters)
	if !found {
		return hns.Adapter{}
	}
	const bound = true // by n itself
	host, _ := hostconfig.HostAdapter(adapters, physical, bound)
	return host
}

// saveHostConfig saves the host's settings before a network is deleted. Of a network that
// HNS has put on another adapter (misplaced), it saves what that adapter had before:
// createNetwork has only saved the settings of the wanted one. While the journal cannot be
// read, there is an error, even if there is nothing to save.
func (d *Driver) saveHostConfig(n hns.Network) error {
	if err := d.hostConfig.ReadErr(); reconcile.IsUnknown(err) {
		return err
	}
	adapters, err := d.stack.Adapters()
	if err != nil {
		return reconcile.Unknown(fmt.Errorf("list adapters: %w", err))
	}
	if m := d.misplaced; m.id != "" && strings.EqualFold(m.id, n.ID) {
		if len(hostconfig.Addresses(m.at.host)) == 0 {
			return nil // there is nothing to lose
		}
		return d.hostConfig.Save(m.at.host, m.at.physical, adapters, m.at.routes)
	}
	routes, err := d.routesOfOthers()
	if err != nil {
		return err
	}
	physical, found := hostconfig.NetworkAdapter(n, adapters)
	if !found {
		return nil // without its adapter, nothing moves back
	}
	host := d.hostAdapter(n, adapters)
	if host.Index == 0 {
		host = physical
	}
	return d.hostConfig.Save(host, physical, adapters, routes)
}

// recordGood is the end of each Ensure that waits for nothing more: it records the host's
// settings, with which the network works.
func (d *Driver) recordGood(host hns.Adapter, adapters []hns.Adapter) error {
	physical, found := hostconfig.NetworkAdapter(*d.network, adapters)
	if !found {
		return nil
	}
	routes, err := d.routesOfOthers()
	if err != nil {
		return err
	}
	save := changeOf(verbSaveGood, d.hostConfig.RecordGood(host, physical, routes))
	d.tries.forget(func(c change) bool { return c.verb == save.verb && c != save }) // of former settings
	if save.request != "" {                                                         // "": the journal has these settings
		err = d.tries.try(save, d.hostConfig.SaveGood)
	}
	if err == nil { // else it would be the same error again
		err = d.hostConfig.WriteSettled()
	}
	d.leave(err, causeJournal, "could not write what is known of the host's settings, will retry")
	return nil
}

// findManagementIP sets the management address of d.network. A bridge does not need
// one if the host's adapter has the host's address: HNS may learn the address only when the
// host's endpoint is attached. (flannel waits for the address first, and so for ever:
// flannel#1066; Calico attaches first.) HNS does not list the address of a bridge, and has
// to be asked. While the address is missing, host settings are restored, since that may be
// why.
func (d *Driver) findManagementIP(ctx context.Context, dev device, adapters []hns.Adapter) error {
	bridge := !dev.network.tunnels()
	if bridge && hostconfig.HasAddress(d.hostAdapter(*d.network, adapters), dev.Local) {
		return nil
	}
	if bridge && !d.network.ManagementIP.IsValid() {
		ip, err := d.client.ManagementIP(ctx, d.network.ID)
		if err != nil {
			return reconcile.Unknown(waitIfSilent(err))
		}
		d.network.ManagementIP = ip
	}
	if d.network.ManagementIP.IsValid() {
		return nil
	}
	if err := d.hostConfig.Restore(d.networks); err != nil {
		return fmt.Errorf("%w (HNS does not know the host's address yet)", err)
	}
	return dataplane.Waiting(causeNoManagement, "HNS to learn the host's address")
}

// managementAdapter returns the adapter with the management address. For a
// bridge, the adapter with the host's address will do, because HNS does not send
// from the management address there. A link-local address is not the host's.
func (d *Driver) managementAdapter(dev device, adapters []hns.Adapter) (host hns.Adapter, found bool) {
	if host, found = hostconfig.AdapterWith(adapters, d.network.ManagementIP); found && !d.network.ManagementIP.IsLinkLocalUnicast() {
		return host, true
	}
	host = d.hostAdapter(*d.network, adapters)
	return host, !dev.network.tunnels() && hostconfig.HasAddress(host, dev.Local)
}

// wrongManagementIP is a management address that no adapter has, although the
// host has the address of the underlay (dev.Local). The zero value: there is none.
type wrongManagementIP struct {
	network string // ID
	ip      netip.Addr
}

// waitForHost is called when no adapter has the management address. It waits for
// that, unless the host has another address for longer than Pace.Wrong: HNS would
// send from the wrong one for ever, so the network is made again. It never returns nil.
func (d *Driver) waitForHost(ctx context.Context, dev device, adapters []hns.Adapter) error {
	n := *d.network
	if !dev.network.tunnels() || !hostconfig.HasAddress(d.hostAdapter(n, adapters), dev.Local) {
		d.wrongIP = lasting[wrongManagementIP]{}
		d.network.ManagementIP = netip.Addr{} // the next pass asks again
		return dataplane.Waiting(causeNoManagement, "an interface to have the network's address %s", n.ManagementIP)
	}
	reason := fmt.Sprintf("it sends from %s, and the host's address is %s", n.ManagementIP, dev.Local)
	if d.wrongIP.look(wrongManagementIP{n.ID, n.ManagementIP}, d.pace.Wrong) < d.pace.Wrong {
		return dataplane.Waiting(causeNoManagement, "HNS to learn the host's address: %s", reason)
	}
	return d.deleteToRecreate(ctx, n, reason)
}
