package linux

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"flannel/pkg/dataplane"
)

// Cleanup removes every route, nexthop object, IPsec policy, connection of charon and
// device that is ours (the kernel deletes neighbours and FDB entries with their
// device), ends the charon that flanneld has started, and returns descriptions of all;
// with dryRun it removes nothing. s has the pod networks and this node's subnets; what is in
// another network belongs to another flanneld. If the networks are not known (none), the
// flanneld without a name (Options.Instance) removes everything that any flanneld made,
// but no routes of flannel, policies and connections, which only the networks identify;
// for any other flanneld the error is errNoNetwork. Cleanup reads everything first and
// removes nothing if that fails. The error holds what could not be removed, which does
// not stop the rest.
func Cleanup(ctx context.Context, opts dataplane.Options, s dataplane.State, dryRun bool) (removed []string, err error) {
	d, err := New(opts)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	links, err := d.findOurs(ctx, s)
	if err != nil {
		return nil, err
	}
	// l collects what is removed: descriptions (will), and functions (step, end), which run calls in this order.
	l := &leaving{}
	if err := errors.Join(d.guard.leave(l), d.each(func(k kind) error { return k.leave(ctx, l) })); err != nil {
		return nil, err
	}
	d.removeRows(l)
	slices.Sort(l.what)
	for _, link := range links {
		l.will("remove", "device %s", link.Attrs().Name)
		l.end(func(context.Context) error { return d.deleteLink(link) })
	}
	if dryRun {
		return l.what, nil
	}
	return l.what, l.run(ctx)
}

// removeRows has l remove the routes and nexthop objects: the tables, which findOurs has listed,
// want nothing, so Prune deletes all entries.
func (d *Driver) removeRows(l *leaving) {
	for _, e := range d.routes.AllActual() {
		l.will("remove", "route %s %s", e.Key, e.Value)
	}
	for _, e := range d.nexthops.AllActual() {
		l.will("remove", "nexthop object %s", e.Key.packedHop)
	}
	l.step(func(ctx context.Context) error { return dataplane.Tables{d.nexthops, d.routes}.Prune(ctx, d.opts) })
}

// errNoNetwork is the error of commands for one of several flannelds on a host.
var errNoNetwork = errors.New("the pod network of this flanneld is not known, so its devices and routes cannot be distinguished from those of others")

// findOurs finds what is ours without a configuration: it returns the tunnel
// devices, sets the scope, and lists the tables of routes and nexthop objects. The kinds list
// theirs in leave. Without networks, everything of every flanneld is ours. Handback calls it, too.
func (d *Driver) findOurs(ctx context.Context, s dataplane.State) (tunnels []netlink.Link, err error) {
	if len(s.Networks) == 0 && d.opts.Instance != "" {
		return nil, errNoNetwork
	}
	all, err := d.listLinks()
	if err != nil {
		return nil, err
	}
	ours := &scope{tunnels: map[int]bool{}, networks: s.Networks, subnets: s.Subnets, everything: len(s.Networks) == 0}
	ours.lengths.addSubnets(s)
	var others []netlink.Link // with a name and type that flannel gives; see unused
	for _, l := range all {
		owns, err := d.ownsDevice(ours, l)
		switch {
		case err != nil:
			return nil, err
		case owns:
			tunnels = append(tunnels, l)
		case isOurType(l):
			others = append(others, l)
		}
	}
	unused, err := d.unused(tunnels, others)
	if err != nil {
		return nil, err
	}
	tunnels = append(tunnels, unused...)
	for _, l := range tunnels {
		ours.tunnels[l.Attrs().Index] = true
	}
	d.scope.Store(ours)
	return tunnels, dataplane.Tables{d.nexthops, d.routes}.Refresh(ctx)
}

// unused returns those of the other devices with a name and type that flannel gives which
// have no address, and which no other flanneld has made. A flanneld made them, and could not
// give them one. Such a device is ours if the one of the same tunnel for the other address
// family is; or if this is the flanneld without a name, and no device of such a name and type is in
// another network, which would be that of another flanneld.
func (d *Driver) unused(ours, others []netlink.Link) (unused []netlink.Link, err error) {
	alone := d.opts.Instance == "" // no other flanneld is seen, by its name or a device in its network
	for _, l := range others {
		addrs, err := d.addresses(l)
		switch {
		case err != nil:
			return nil, err
		case len(addrs) == 0:
			unused = append(unused, l)
		default:
			alone = false
		}
	}
	tunnel := func(l netlink.Link) string { return strings.Replace(l.Attrs().Name, "-v6", "", 1) } // flannel-v6.1, flannel-wg-v6
	return slices.DeleteFunc(unused, func(l netlink.Link) bool {
		return !alone && !slices.ContainsFunc(ours, func(o netlink.Link) bool { return tunnel(o) == tunnel(l) })
	}), nil
}

// deleteLink deletes a device, if it is still there.
func (d *devices) deleteLink(l netlink.Link) error {
	if err := d.handle.LinkDel(l); err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) {
		return fmt.Errorf("delete the device %s: %w", l.Attrs().Name, err)
	}
	return nil
}
