package dataplane

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"flannel/pkg/reconcile"
)

// Cleanup removes every route, nexthop object and device that is ours (neighbours and FDB entries go with their
// device), and returns them as text for a person; with dryRun it only lists them. networks are the pod networks: what
// belongs to another one is another flanneld's. If there are none, they are not known, and all that any flanneld made is
// removed; then routes of a flannel, which are told by the networks, stay. It reads everything first, and removes nothing if that fails. What cannot
// be removed is in the error, and blocks nothing else.
func Cleanup(ctx context.Context, opts Options, networks []netip.Prefix, dryRun bool) (removed []string, err error) {
	d, err := New(opts)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	mine, links, err := d.scopeOf(networks)
	if err != nil {
		return nil, err
	}
	d.scope.Store(mine)
	nexthops, err := d.store.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list nexthop objects: %w", err)
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

// scopeOf is what is ours without a configuration: the tunnel devices, and what leads into the networks; all that any
// flanneld of this host made if there are none.
func (d *Linux) scopeOf(networks []netip.Prefix) (mine *scope, tunnels []netlink.Link, err error) {
	all, err := d.listLinks()
	if err != nil {
		return nil, nil, err
	}
	mine = &scope{tunnels: map[int]bool{}, networks: networks, everything: len(networks) == 0}
	d.store.everything = mine.everything
	for _, l := range all {
		ours, err := d.ownsDevice(mine, l)
		if err != nil {
			return nil, nil, fmt.Errorf("list the addresses of %s: %w", l.Attrs().Name, err)
		}
		if ours {
			tunnels = append(tunnels, l)
			mine.tunnels[l.Attrs().Index] = true
		}
	}
	return mine, tunnels, nil
}

// removeAll empties the tables and deletes devices of ours.
func (d *Linux) removeAll(ctx context.Context, links []netlink.Link) error {
	remove := []func() error{
		step(ctx, d.opts, d.routes, (*reconcile.Table[routeKey, hop]).Prune),
		step(ctx, d.opts, d.nexthops, (*reconcile.Table[nexthopKey, struct{}]).Prune),
	}
	for _, l := range links {
		remove = append(remove, func() error {
			if err := d.handle.LinkDel(l); err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) {
				return fmt.Errorf("delete the device %s: %w", l.Attrs().Name, err)
			}
			return nil
		})
	}
	// Nothing is wanted, so pruning takes away all that is listed. Adding nothing lists.
	return addThenRemove(false, []func() error{
		step(ctx, d.opts, d.nexthops, (*reconcile.Table[nexthopKey, struct{}]).Add),
		step(ctx, d.opts, d.routes, (*reconcile.Table[routeKey, hop]).Add),
	}, remove)
}
