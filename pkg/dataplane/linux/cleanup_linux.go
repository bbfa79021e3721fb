package linux

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"flannel/pkg/dataplane/driver"
)

// Cleanup removes every route, nexthop object and device that is ours (the kernel
// deletes neighbours and FDB entries with their device), and returns their
// descriptions; with dryRun it removes nothing. networks are the pod networks; what
// is in another network belongs to another flanneld. If the networks are not known
// (none), the flanneld without a name (Options.Instance) removes everything that
// any flanneld made, but no routes of flannel, which only the networks identify;
// for any other flanneld the error is errNoNetwork. Cleanup reads everything first
// and removes nothing if that fails. The error holds what could not be removed,
// which does not stop the rest.
func Cleanup(ctx context.Context, opts driver.Options, networks []netip.Prefix, dryRun bool) (removed []string, err error) {
	d, err := New(opts)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	links, nexthops, err := d.survey(ctx, networks)
	if err != nil {
		return nil, err
	}
	routes, err := newRouteStore(d.conn, &d.scope, d.store).List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	for key, hop := range routes {
		removed = append(removed, fmt.Sprintf("route %s %s", key, hop))
	}
	for key := range nexthops {
		removed = append(removed, fmt.Sprintf("nexthop object %s", key.hop))
	}
	slices.Sort(removed)
	for _, l := range links {
		removed = append(removed, "device "+l.Attrs().Name)
	}
	if dryRun {
		return removed, nil
	}
	return removed, d.removeAll(ctx, links)
}

// errNoNetwork is the error of commands for one of several flannelds on a host.
var errNoNetwork = errors.New("the pod network of this flanneld is not known, so its devices and routes cannot be distinguished from those of others")

// survey finds our tunnel devices and nexthop objects without a configuration, and
// sets the scope. Without networks, everything of every flanneld is ours.
func (d *Driver) survey(ctx context.Context, networks []netip.Prefix) (tunnels []netlink.Link, nexthops map[nexthopKey]struct{}, err error) {
	if len(networks) == 0 && d.opts.Instance != "" {
		return nil, nil, errNoNetwork
	}
	all, err := d.listLinks()
	if err != nil {
		return nil, nil, err
	}
	ours := &scope{tunnels: map[int]bool{}, networks: networks, everything: len(networks) == 0}
	for _, l := range all {
		owns, err := d.ownsDevice(ours, l)
		if err != nil {
			return nil, nil, fmt.Errorf("list the addresses of %s: %w", l.Attrs().Name, err)
		}
		if owns {
			tunnels = append(tunnels, l)
			ours.tunnels[l.Attrs().Index] = true
		}
	}
	d.scope.Store(ours)
	d.store.setEverything(ours.everything)
	if nexthops, err = d.store.List(ctx); err != nil {
		return nil, nil, fmt.Errorf("list nexthop objects: %w", err)
	}
	return tunnels, nexthops, nil
}

// removeAll deletes all entries of the tables, and the devices.
func (d *Driver) removeAll(ctx context.Context, links []netlink.Link) error {
	tables := driver.Tables{d.nexthops, d.routes}
	remove := tables.Prune(ctx, d.opts)
	for _, l := range links {
		remove = append(remove, func() error {
			if err := d.handle.LinkDel(l); err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) {
				return fmt.Errorf("delete the device %s: %w", l.Attrs().Name, err)
			}
			return nil
		})
	}
	// The tables want nothing: Add only lists, and Prune deletes everything.
	return driver.AddThenRemove(false, tables.Add(ctx, d.opts), remove)
}
