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

// Cleanup removes every route, nexthop object and device that is ours (neighbours and FDB entries go with their
// device), and returns them as text for a person; with dryRun it only lists them. networks are the pod networks: what
// belongs to another one is another flanneld's. If there are none, they are not known: the usual flanneld (without
// Options.Instance) then removes everything that any flanneld made, but no route of a flannel, since only the networks
// identify those; for any other the error is errNoNetwork. It reads everything first, and removes nothing if that fails.
// What cannot be removed is in the error, and blocks nothing else.
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

// errNoNetwork means that what belongs to one of several flannelds on a host cannot be told from what the others need.
var errNoNetwork = errors.New("this flanneld's pod network is not known, so its devices and routes cannot be told from those of others")

// survey finds what is ours without a configuration, and makes it the scope: the tunnel devices, what leads into the
// networks, and our nexthop objects; without networks, all that any flanneld of this host made.
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
	d.store.ownAll(ours.everything)
	if nexthops, err = d.store.List(ctx); err != nil {
		return nil, nil, fmt.Errorf("list nexthop objects: %w", err)
	}
	return tunnels, nexthops, nil
}

// removeAll empties the tables and deletes devices of ours.
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
	// Nothing is wanted, so pruning takes away all that is listed. Adding nothing lists.
	return driver.AddThenRemove(false, tables.Add(ctx, d.opts), remove)
}
