package dataplane

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// Handback gives this node's routes the form that flannel gives them, and removes our nexthop objects and blackholes:
// flannel takes plain routes over, but cannot delete one that leads through a nexthop object. It returns what it did, or
// with dryRun would do, as text for a person. Each route is replaced in one step, so no packet is lost. networks are as
// for Cleanup. A route that cannot be rewritten keeps its nexthop object, is in the error, and blocks nothing else.
func Handback(ctx context.Context, opts Options, networks []netip.Prefix, dryRun bool) (done []string, err error) {
	d, err := New(opts)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	mine, _, err := d.scopeOf(networks)
	if err != nil {
		return nil, err
	}
	d.scope.Store(mine)
	nexthops, err := d.store.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list nexthop objects: %w", err)
	}
	routes, err := d.listOwn()
	if err != nil {
		return nil, err
	}
	var problems []error
	rewritten, blackholes := splitBlackholes(routes)
	for _, r := range rewritten {
		done = append(done, fmt.Sprintf("rewrite route %s %s", r.key, r.hop))
	}
	for _, r := range blackholes {
		done = append(done, fmt.Sprintf("remove route %s %s", r.key, r.hop))
	}
	for key := range nexthops {
		done = append(done, fmt.Sprintf("remove nexthop object %s", key.hop))
	}
	slices.Sort(done)
	if dryRun {
		return done, nil
	}
	problems = append(problems, d.rewrite(rewritten), d.remove(blackholes), d.removeUnused(nexthops))
	return done, errors.Join(problems...)
}

// listOwn lists the routes that carry our protocol number.
func (d *Linux) listOwn() (own []kernelRoute, err error) {
	scope := d.scope.Load()
	err = d.eachRoute(func(r kernelRoute) {
		if r.protocol == protocolOurs && scope.owns(r) {
			own = append(own, r)
		}
	})
	return own, err
}

// eachRoute goes through the main table; a hop that a route takes from its nexthop object is filled in.
func (d *Linux) eachRoute(do func(kernelRoute)) error {
	for _, fam := range []uint8{unix.AF_INET, unix.AF_INET6} {
		body := make([]byte, unix.SizeofRtMsg)
		body[0] = fam
		filter := func(m message) message { return m.uint32(unix.RTA_TABLE, unix.RT_TABLE_MAIN) }
		var routes []kernelRoute
		err := d.conn.dump(unix.RTM_GETROUTE, body, filter, func() { routes = nil }, func(body []byte) error {
			r, ok, err := parseRoute(body)
			if err == nil && ok {
				r.hop = d.store.resolve(r)
				routes = append(routes, r)
			}
			return err
		})
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EAFNOSUPPORT) && !errors.Is(err, unix.EOPNOTSUPP) {
			return fmt.Errorf("list routes: %w", err)
		}
		for _, r := range routes {
			do(r)
		}
	}
	return nil
}

func splitBlackholes(routes []kernelRoute) (others, blackholes []kernelRoute) {
	for _, r := range routes {
		if r.hop.Blackhole {
			blackholes = append(blackholes, r)
		} else {
			others = append(others, r)
		}
	}
	return others, blackholes
}

// rewrite replaces routes by plain ones of the protocol that a route gets when nobody says otherwise, as flannel's do.
func (d *Linux) rewrite(routes []kernelRoute) error {
	write := func(m message, i int) message {
		plain := kernelRoute{key: routes[i].key, hop: routes[i].hop, protocol: protocolBoot}
		return m.route(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, plain)
	}
	errs := make([]error, len(routes))
	if got := d.conn.batch(len(routes), write); got != nil {
		errs = got
	}
	d.conn.overrule(errs, func(i int) hop { return routes[i].hop }, write)
	for i, err := range errs {
		if err != nil {
			errs[i] = fmt.Errorf("rewrite route %s %s: %w", routes[i].key, routes[i].hop, err)
		}
	}
	return errors.Join(errs...)
}

func (d *Linux) remove(routes []kernelRoute) error {
	return errors.Join(gone(d.conn.batch(len(routes), func(m message, i int) message {
		return m.route(unix.RTM_DELROUTE, 0, kernelRoute{key: routes[i].key, hop: hop{Blackhole: true}, protocol: protocolOurs})
	}))...)
}

// removeUnused removes the nexthop objects that no route leads through: with an object the kernel removes its routes.
func (d *Linux) removeUnused(nexthops map[nexthopKey]struct{}) error {
	used := map[uint32]bool{}
	if err := d.eachRoute(func(r kernelRoute) { used[r.nexthop] = true }); err != nil {
		return err
	}
	var ids []uint32
	for key := range nexthops {
		if id := d.store.release(key); !used[id] {
			ids = append(ids, id)
		}
	}
	return errors.Join(gone(d.conn.batch(len(ids), func(m message, i int) message {
		return m.nexthop(unix.RTM_DELNEXTHOP, 0, ids[i], hop{})
	}))...)
}
