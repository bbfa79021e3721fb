package linux

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"flannel/pkg/dataplane/driver"
)

// Handback gives this node's routes the form that flannel gives them, and removes our nexthop objects and blackholes:
// flannel takes plain routes over, but cannot delete one that leads through a nexthop object. It returns what it did, or
// with dryRun would do, as text for a person. Each route is replaced in one step, so no packet is lost. networks are as
// for Cleanup. A route that cannot be rewritten keeps its nexthop object, is in the error, and blocks nothing else.
func Handback(ctx context.Context, opts driver.Options, networks []netip.Prefix, dryRun bool) (done []string, err error) {
	d, err := New(opts)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	_, nexthops, err := d.survey(ctx, networks)
	if err != nil {
		return nil, err
	}
	store, scope := newRouteStore(d.conn, &d.scope, d.store), d.scope.Load()
	store.plain = true
	routes, err := store.find(func(r kernelRoute) bool { return r.protocol == protocolOurs && scope.owns(r) })
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
	for key := range nexthops {
		done = append(done, fmt.Sprintf("remove nexthop object %s", key.hop))
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
	errs = append(append(errs, store.Delete(ctx, remove)...), d.store.removeUnused(ctx, store, nexthops))
	return done, errors.Join(errs...)
}

// removeUnused removes the nexthop objects that no route leads through: with an object the kernel removes its routes.
func (s *nexthopStore) removeUnused(ctx context.Context, routes routeStore, nexthops map[nexthopKey]struct{}) error {
	users, err := routes.find(func(r kernelRoute) bool { return r.nexthop != 0 })
	if err != nil {
		return err
	}
	used := map[uint32]bool{}
	for _, r := range users {
		used[r.nexthop] = true
	}
	var unused []nexthopEntry
	for key := range nexthops {
		if !used[s.idOf(key)] {
			unused = append(unused, nexthopEntry{Key: key})
		}
	}
	return errors.Join(s.Delete(ctx, unused)...)
}
