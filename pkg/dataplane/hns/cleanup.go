package hns

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/hns"
)

// cleanup removes every HNS network and host route that is ours (policies and endpoints go with their network), and
// returns them as text for a person; with dryRun it only lists them. It waits until the host has its addresses back,
// or for as long as an address by DHCP is waited for: what is missing then, the next run of the daemon puts back. If
// networks or routes cannot be read, nothing is removed.
func (d *Driver) cleanup(ctx context.Context, networks []netip.Prefix, dryRun bool) (removed []string, err error) {
	if d.networks, err = d.client.Networks(ctx); err != nil {
		return nil, unanswered(err)
	}
	routes, err := d.stack.Routes()
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	var errs []error
	if d.home.unread != nil {
		errs = append(errs, fmt.Errorf("%w: networks that only it knows to be ours stay, such as External: look at those that HNS has, then delete the file", d.home.unread))
	}
	d.scope.networks = networks
	for _, r := range routes {
		if (hostScope{r.Index, networks}).ours(r) {
			removed = append(removed, fmt.Sprintf("route %s", hostRoute{r.Dst, r.NextHop}))
			if !dryRun {
				errs = append(errs, d.stack.DeleteRoute(r))
			}
		}
	}
	for _, n := range d.leftovers() {
		removed = append(removed, fmt.Sprintf("HNS network %s (%s, %s, %d policies)", n.Name, n.Type, n.ID, len(n.Policies)))
		if !dryRun {
			errs = append(errs, d.deleteNetwork(ctx, n))
		}
	}
	if !dryRun {
		if errors.Join(errs...) == nil {
			for _, name := range d.home.names() { // of networks that went by another hand
				errs = append(errs, d.home.own(device{name: name}, false))
			}
			for _, name := range d.home.switches() {
				errs = append(errs, d.home.own(device{name: name, Network: dataplane.Network{Switch: true}}, false))
			}
		}
		errs = append(errs, d.home.wait(ctx, d.pace.Address+d.pace.DHCP, d.client))
	}
	return removed, errors.Join(errs...)
}

// leftovers are the networks that are ours, those last that hold the switch: so the host's address moves once.
func (d *Driver) leftovers() []hns.Network {
	var ours, switches []hns.Network
	for _, n := range d.networks {
		switch {
		case d.ours(n) || n.Type == hns.L2Bridge && n.Name == "cbr0":
			ours = append(ours, n)
		case ourType(n) && slices.Contains(d.home.switches(), n.Name):
			switches = append(switches, n)
		}
	}
	return append(ours, switches...)
}

// wait returns when the host has everything back.
func (h *home) wait(ctx context.Context, limit time.Duration, client *hns.Client) error {
	deadline := time.Now().Add(limit)
	for said := false; h.pending(); said = true {
		networks, err := client.Networks(ctx)
		if err == nil {
			err = h.mend(networks)
		}
		if err != nil && time.Now().After(deadline) {
			return err
		}
		if !said {
			h.log.Info("waiting until the host has its addresses, routes and DNS servers back")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(h.pace.Wait):
		}
	}
	return nil
}
