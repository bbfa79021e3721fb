package linux

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"flannel/pkg/dataplane"
	"flannel/pkg/linux/rtnetlink"
	"flannel/pkg/reconcile"
)

// routeStore is the kernel's side of the table rows.routes: our routes of the main
// table. Only the loop uses it, or the goroutine of Apply for which the loop waits (see Driver).
// A new route uses the nexthop object of its hop if there is one. A route with the same hop but
// without the object is as good, so that those of flannel are not touched. One that uses another object is
// written again (hop.OtherObject).
//
// The kernel keeps routes of one key (destination and metric) in a list and uses
// the first. If somebody else's route is before ours, ours is shadowed: packets
// do not take it, and a replacement would replace the other one. List then returns an Unmanaged
// hop, which no table wants, so that Set is called, or Delete.
type routeStore struct {
	conn     *rtnetlink.Conn
	scope    *scopePointer     // says which routes are ours
	nexthops *nexthopStore     // the objects that routes use
	shadowed map[routeKey]bool // found by List: another route is before ours, or there are two of ours
	foreign  map[routeKey]hop  // found by List: routes of others into our networks; rows has the same map
	plain    bool              // for Handback: write routes as flannel does, without nexthop object, with protocol "boot"
}

// newRouteStore returns the store of routes, which refer to nexthops.
func newRouteStore(nexthops *nexthopStore) routeStore {
	return routeStore{conn: nexthops.conn, scope: nexthops.scope, nexthops: nexthops, shadowed: map[routeKey]bool{}, foreign: map[routeKey]hop{}}
}

func (routeStore) Name() string { return "routes" }

// families are those of which routes are listed, one after the other.
var families = []uint8{unix.AF_INET, unix.AF_INET6}

func (s routeStore) List(context.Context) (map[routeKey]hop, error) {
	clear(s.shadowed)
	if err := s.awaitWriters(); err != nil {
		return nil, err
	}
	out := make(map[routeKey]hop, s.nexthops.count()) // most objects have one route
	for _, fam := range families {
		if err := s.list(fam, out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// awaitWriters waits until the kernel has done what it has notified of. The kernel sends the
// notification of a deleted nexthop object, IPv4 route or address before it removes the
// routes. Since Linux 6.9 a list of routes takes no lock, so it could still contain
// these routes, and no other notification would follow. A write takes the lock that the kernel
// holds from before such a notification until the routes are gone. awaitWriters therefore writes:
// it deletes a route that does not exist.
func (s routeStore) awaitWriters() error {
	none := kernelRoute{key: routeKey{Dst: netip.PrefixFrom(netip.IPv4Unspecified(), 32)}, hop: hop{Blackhole: true}, protocol: protocolOurs}
	return errors.Join(ignoreMissing(s.conn.Batch(1, func(m rtnetlink.Message, _ int) rtnetlink.Message {
		return writeRoute(m, unix.RTM_DELROUTE, 0, none)
	}))...)
}

// list lists the routes of one family into out, and fills foreign and shadowed. When the kernel's
// list was not consistent, it begins again.
func (s routeStore) list(fam uint8, out map[routeKey]hop) error {
	scope := s.scope.Load()
	ofFamily := func(key routeKey, _ hop) bool { return rtnetlink.Family(key.Dst.Addr()) == fam }
	reset := func() {
		maps.DeleteFunc(s.foreign, ofFamily)
		maps.DeleteFunc(out, ofFamily)
		maps.DeleteFunc(s.shadowed, func(key routeKey, _ bool) bool { return ofFamily(key, hop{}) })
	}
	reset()
	return s.read(fam, reset, func(r kernelRoute) {
		if !scope.owns(r) {
			if dataplane.Inside(r.key.Dst, scope.networks) {
				s.foreign[r.key] = r.hop
			}
			return
		}
		_, before := s.foreign[r.key] // the kernel lists routes of one key in the order in which it uses them
		if _, twice := out[r.key]; twice || before {
			s.shadowed[r.key], r.hop = true, hop{Unmanaged: true} // differs from any desired hop, so that Set is called
		} else {
			r.hop.OtherObject = !scope.everything && s.nexthops.usesOther(r) // everything: it is being deleted, whatever its object
		}
		out[r.key] = r.hop
	})
}

// read calls each for every route of a family in the main table that may be ours.
// Nexthop objects must have been listed before, for the hops of routes that use
// one. reset is as for Conn.Dump.
func (s routeStore) read(fam uint8, reset func(), each func(kernelRoute)) error {
	return s.conn.DumpRoutes(fam, reset, func(body []byte) error {
		r, ok, err := parseRoute(body)
		if err == nil && ok {
			r.hop = s.nexthops.resolve(r)
			each(r)
		}
		return err
	})
}

// find returns the routes of the main table that match, for Handback.
func (s routeStore) find(matches func(kernelRoute) bool) (found []kernelRoute, err error) {
	for _, fam := range families {
		others := len(found)
		err := s.read(fam, func() { found = found[:others] }, func(r kernelRoute) {
			if matches(r) {
				found = append(found, r)
			}
		})
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
	}
	return found, nil
}

type routeEntry = reconcile.Entry[routeKey, hop]

func (s routeStore) Set(ctx context.Context, entries []routeEntry) []error {
	// A replacement replaces the first route of a key; a shadowed one, behind it, would stay.
	for _, e := range entries {
		if s.shadowed[e.Key] {
			delete(s.shadowed, e.Key)
			s.Delete(ctx, []routeEntry{e}) // if it fails, the next list finds the route again
		}
	}
	set := func(m rtnetlink.Message, e routeEntry) rtnetlink.Message {
		r := kernelRoute{key: e.Key, hop: e.Value, protocol: protocolBoot}
		if !s.plain { // idOf is 0 without an object: the route then names the hop itself
			r.protocol, r.nexthop = protocolOurs, s.nexthops.idOf(nexthopKey{packedHop: e.Value.pack()})
		}
		return writeRoute(m, unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, r)
	}
	errs := batch(s.conn, entries, set)
	s.retryPlain(entries, errs, set)
	retryOnlink(s.conn, entries, errs, func(e routeEntry) hop { return e.Value }, set) // updates errs
	for i, err := range errs {
		// Ours exists behind somebody else's. After deleting ours, the new one can
		// replace the other.
		if errors.Is(err, unix.EEXIST) {
			s.Delete(ctx, entries[i:i+1])
			errs[i] = errors.Join(batch(s.conn, entries[i:i+1], set)...)
		}
		if errs[i] != nil {
			errs[i] = fmt.Errorf("%s: %w", entries[i].Value, errs[i])
		}
	}
	return errs
}

// retryPlain retries entries that the kernel refused because they name an object that the kernel has deleted.
// The watcher has not read that yet. Without the object, the route names the hop itself. The notification of
// the device causes a pass, which lists the objects, and makes this one again if the device has a carrier.
// retryPlain updates errs (nil: no errors).
func (s routeStore) retryPlain(entries []routeEntry, errs []error, set func(rtnetlink.Message, routeEntry) rtnetlink.Message) {
	var refused []routeEntry
	var indexes []int // of refused in entries
	for i, err := range errs {
		if key := (nexthopKey{packedHop: entries[i].Value.pack()}); !s.plain && errors.Is(err, unix.EINVAL) && s.nexthops.idOf(key) != 0 {
			refused, indexes = append(refused, entries[i]), append(indexes, i)
		}
	}
	if len(refused) == 0 {
		return
	}
	s.nexthops.relist()
	for _, e := range refused { // several may have the same object
		s.nexthops.releaseID(nexthopKey{packedHop: e.Value.pack()})
	}
	retried := batch(s.conn, refused, set)
	for j, i := range indexes {
		errs[i] = nil
		if retried != nil {
			errs[i] = retried[j]
		}
	}
}

// Delete tries to delete a route with our protocol number first, and if there is none (ESRCH),
// one of flannel's form, so that somebody else's route of the same key stays. If a request names
// no metric, the kernel deletes the first IPv4 route with that protocol, whatever its metric is. So
// flannel's form comes first for a route without a metric to a whole network or to this node's
// subnet: there may be another route of ours to it with a metric, which has to stay (addNetworkRoutes).
func (s routeStore) Delete(ctx context.Context, entries []routeEntry) []error {
	scope := s.scope.Load()
	toNetwork := func(e routeEntry) bool { return slices.Contains(scope.networks, e.Key.Dst) }
	flannelsFirst := func(e routeEntry) bool {
		return e.Key.Metric == 0 && (toNetwork(e) || slices.Contains(scope.subnets, e.Key.Dst))
	}
	deleteOurs := func(m rtnetlink.Message, e routeEntry) rtnetlink.Message {
		hop := hop{Blackhole: e.Value.Blackhole} // any hop, in the route or in an object, of routes to peers
		if toNetwork(e) {
			hop = e.Value // ours has no nexthop object
		}
		return writeRoute(m, unix.RTM_DELROUTE, 0, kernelRoute{key: e.Key, hop: hop, protocol: protocolOurs})
	}
	deleteFlannels := func(m rtnetlink.Message, e routeEntry) rtnetlink.Message {
		return writeRoute(m, unix.RTM_DELROUTE, 0, kernelRoute{key: e.Key, hop: e.Value, protocol: protocolBoot})
	}
	errs := batch(s.conn, entries, func(m rtnetlink.Message, e routeEntry) rtnetlink.Message {
		if flannelsFirst(e) {
			return deleteFlannels(m, e)
		}
		return deleteOurs(m, e)
	})
	for i, err := range errs {
		if errors.Is(err, unix.ESRCH) {
			other := deleteFlannels
			if flannelsFirst(entries[i]) {
				other = deleteOurs
			}
			errs[i] = errors.Join(batch(s.conn, entries[i:i+1], other)...)
		}
	}
	for _, e := range entries {
		if s.shadowed[e.Key] {
			delete(s.shadowed, e.Key)
			s.Delete(ctx, []routeEntry{e}) // there may be a second one of ours
		}
	}
	return ignoreMissing(errs)
}
