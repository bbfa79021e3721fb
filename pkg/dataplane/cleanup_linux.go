package dataplane

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
)

// Cleanup removes every route, nexthop object and device that is ours (neighbours and FDB entries go with their
// device), and returns them as text for a person; with dryRun it only lists them. networks are the pod networks, if
// known: routes of a flannel are told by them. What cannot be removed is in the error, and blocks nothing else.
func Cleanup(ctx context.Context, opts Options, networks []netip.Prefix, dryRun bool) (removed []string, err error) {
	d, err := New(opts)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	links, err := listLinks()
	if err != nil {
		return nil, err
	}
	tunnels := &scope{tunnels: map[int]bool{}, networks: networks}
	for _, l := range links {
		if isOurs(l) {
			tunnels.tunnels[l.Attrs().Index] = true
		}
	}
	d.scope.Store(tunnels)

	nexthops, err := d.store.List(ctx)
	errs := []error{err}
	routes, err := newRouteStore(d.conn, &d.scope, d.store).List(ctx)
	errs = append(errs, err)
	for key, hop := range routes {
		removed = append(removed, fmt.Sprintf("route %s %s", key, hop))
	}
	for key := range nexthops {
		removed = append(removed, fmt.Sprintf("nexthop object %s", key.hop))
	}
	slices.Sort(removed)
	if !dryRun {
		// Nothing is wanted, so pruning takes away all that is listed. Adding nothing lists.
		_, err = d.routes.Add(ctx)
		errs = append(errs, err)
		_, err = d.routes.Prune(ctx)
		errs = append(errs, err)
		_, err = d.nexthops.Add(ctx)
		errs = append(errs, err)
		_, err = d.nexthops.Prune(ctx)
		errs = append(errs, err)
	}
	for _, l := range links {
		if !isOurs(l) {
			continue
		}
		removed = append(removed, "device "+l.Attrs().Name)
		if !dryRun {
			if err := netlink.LinkDel(l); err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) {
				errs = append(errs, fmt.Errorf("delete the device %s: %w", l.Attrs().Name, err))
			}
		}
	}
	return removed, errors.Join(errs...)
}
