package linux

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flannel/pkg/dataplane/driver"
)

// Handback prepares the node for flannel. It gives the routes the form that
// flannel gives them, and removes our nexthop objects, blackholes and the policies that
// flannel does not have: it adopts plain routes, but cannot delete a route that uses a
// nexthop object.
// Each route is replaced in one step, so that no packet is lost. The TUN devices of
// the udp backend, which forward nothing without a flanneld, are deleted with their
// routes: flannel makes its own. It also starts a charon of its own for ipsec, so that
// the one that flanneld has started is ended, and its keys stay in the kernel. A route that cannot be rewritten keeps its
// nexthop object and is in the error, which does not stop the rest. networks are as
// for Cleanup. The result describes what was done or, with dryRun, would be done.
func Handback(ctx context.Context, opts driver.Options, networks []netip.Prefix, dryRun bool) (done []string, err error) {
	d, err := New(opts)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	tunnels, err := d.findOurs(ctx, networks)
	if err != nil {
		return nil, err
	}
	idle := map[int]netlink.Link{} // by index
	for _, l := range tunnels {
		if isIdle(l) {
			idle[l.Attrs().Index] = l
			done = append(done, "remove device "+l.Attrs().Name)
		}
	}
	store, scope := newRouteStore(d.store), d.scope.Load()
	store.plain = true
	routes, err := store.find(func(r kernelRoute) bool {
		return r.protocol == protocolOurs && scope.owns(r) && idle[r.hop.Index] == nil
	})
	if err != nil {
		return nil, err
	}
	var rewrite, remove []routeEntry
	for _, r := range routes {
		verb, list := "rewrite", &rewrite
		if r.hop.Blackhole {
			verb, list = "remove", &remove
		}
		*list = append(*list, routeEntry{Key: r.key, Value: r.hop})
		done = append(done, fmt.Sprintf("%s route %s %s", verb, r.key, r.hop))
	}
	for _, e := range d.nexthops.AllActual() {
		done = append(done, fmt.Sprintf("remove nexthop object %s", e.Key.hop))
	}
	var policies []policyEntry
	for _, e := range d.policies.AllActual() {
		if e.Value.Priority != 0 {
			policies = append(policies, e)
			done = append(done, fmt.Sprintf("remove policy %s %s", e.Key, e.Value))
		}
	}
	if d.ike.mayStop() {
		done = append(done, "end strongSwan's charon")
	}
	guard, err := d.guard.remove(true)
	if err != nil {
		return nil, err
	}
	for _, table := range guard { // whose peers nobody would keep up to date
		done = append(done, "remove "+table)
	}
	slices.Sort(done)
	if dryRun {
		return done, nil
	}
	errs := store.Set(ctx, rewrite)
	for i, err := range errs {
		if err != nil {
			errs[i] = fmt.Errorf("rewrite route %s %w", rewrite[i].Key, err)
		}
	}
	errs = append(append(errs, store.Delete(ctx, remove)...), d.store.removeUnused(ctx, store, d.nexthops.AllActual()))
	if len(policies) > 0 {
		errs = append(errs, d.xfrm.Delete(ctx, policies)...)
	}
	_, err = d.guard.remove(false)
	errs = append(errs, err, d.ike.stop(unix.SIGKILL))
	for _, l := range idle {
		errs = append(errs, d.deleteLink(l))
	}
	return done, errors.Join(errs...)
}

// removeUnused deletes the nexthop objects that no route uses. With an object, the
// kernel deletes the routes that use it.
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
