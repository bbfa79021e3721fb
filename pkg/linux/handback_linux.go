package linux

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"flannel/pkg/dataplane"
)

// Handback prepares the node for flannel, when flanneld does not run any more. It gives the routes
// the form that flannel gives them, and removes our nexthop objects, blackholes and the policies that
// flannel does not have. flannel adopts plain routes, but cannot delete a route that uses a
// nexthop object. Each route is replaced in one step, so that no packet is lost. The TUN
// devices of the udp backend, which forward nothing without a flanneld, are deleted with
// their routes: flannel makes its own. flannel also starts a charon of its own for ipsec, so
// that the one that flanneld has started is ended, and its keys stay in the kernel.
//
// A route that cannot be rewritten keeps its nexthop object and is in the error, which does
// not stop the rest. s is as for Cleanup. The result describes what was done or, with
// dryRun, would be done.
func Handback(ctx context.Context, opts dataplane.Options, s dataplane.State, dryRun bool) (done []string, err error) {
	d, err := New(opts)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	tunnels, err := d.findOurs(ctx, s)
	if err != nil {
		return nil, err
	}
	l, idle := &leaving{back: true}, map[int]bool{} // idle: devices to delete, by index
	for _, link := range tunnels {
		idle[link.Attrs().Index] = isIdle(link)
	}
	err = errors.Join(d.rewriteRoutes(l, idle), d.each(func(k kind) error { return k.leave(ctx, l) }), d.guard.leave(l))
	if err != nil {
		return nil, err
	}
	for _, link := range tunnels {
		if idle[link.Attrs().Index] {
			l.will("remove", "device %s", link.Attrs().Name)
			l.end(func(context.Context) error { return d.deleteLink(link) })
		}
	}
	slices.Sort(l.what)
	if dryRun {
		return l.what, nil
	}
	return l.what, l.run(ctx)
}

// rewriteRoutes has l give our routes flannel's form, and remove nexthop objects and
// blackholes. It leaves out routes through the idle devices (idle has their indexes), which the
// kernel deletes with the devices. It reads the routes itself, because the table does not say
// which routes have protocol 70, and the others have flannel's form already.
func (d *Driver) rewriteRoutes(l *leaving, idle map[int]bool) error {
	store, scope := newRouteStore(d.store), d.scope.Load() // a store of its own, whose Set writes flannel's form
	store.plain = true
	routes, err := store.find(func(r kernelRoute) bool {
		return r.protocol == protocolOurs && scope.owns(r) && !idle[r.hop.Index]
	})
	if err != nil {
		return err
	}
	var rewrite, remove []routeEntry
	for _, r := range routes {
		verb, list := "rewrite", &rewrite
		if r.hop.Blackhole { // flannel has none
			verb, list = "remove", &remove
		}
		*list = append(*list, routeEntry{Key: r.key, Value: r.hop})
		l.will(verb, "route %s %s", r.key, r.hop)
	}
	nexthops := d.nexthops.AllActual()
	for _, e := range nexthops {
		l.will("remove", "nexthop object %s", e.Key.packedHop)
	}
	l.step(func(ctx context.Context) error {
		errs := store.Set(ctx, rewrite)
		for i, err := range errs {
			if err != nil {
				errs[i] = fmt.Errorf("rewrite route %s %w", rewrite[i].Key, err)
			}
		}
		return errors.Join(append(append(errs, store.Delete(ctx, remove)...), d.store.removeUnused(ctx, store, nexthops))...)
	})
	return nil
}

// removeUnused deletes those of the nexthop objects that no route uses: with an object, the
// kernel would delete the routes that use it, such as those that could not be rewritten.
func (s *nexthopStore) removeUnused(ctx context.Context, routes routeStore, nexthops []nexthopEntry) error {
	using, err := routes.find(func(r kernelRoute) bool { return r.nexthop != 0 })
	if err != nil {
		return err
	}
	used := map[uint32]bool{}
	for _, r := range using {
		used[r.nexthop] = true
	}
	unused := slices.DeleteFunc(nexthops, func(e nexthopEntry) bool { return used[s.idOf(e.Key)] })
	return errors.Join(s.Delete(ctx, unused)...)
}
