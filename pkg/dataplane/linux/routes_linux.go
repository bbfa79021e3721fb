package linux

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"flannel/pkg/dataplane/driver"
	"flannel/pkg/reconcile"
	"flannel/pkg/rtnetlink"
)

// routeStore are our routes in the main table. A new one leads through a nexthop object where there is one; whether
// the kernel holds a route in this or in the plain form makes no difference, so what a flannel left is not touched.
type routeStore struct {
	conn     *rtnetlink.Conn
	scope    *scopePointer
	nexthops *nexthopStore
	doubled  map[routeKey]bool // found by List: of that key there is another route before ours, or a second one of ours
	plain    bool              // write routes as flannel does: without nexthop object, of the protocol "boot"
}

func newRouteStore(c *rtnetlink.Conn, scope *scopePointer, nexthops *nexthopStore) routeStore {
	return routeStore{conn: c, scope: scope, nexthops: nexthops, doubled: map[routeKey]bool{}}
}

func (routeStore) Name() string { return "routes" }

var families = []uint8{unix.AF_INET, unix.AF_INET6}

func (s routeStore) List(context.Context) (map[routeKey]hop, error) {
	clear(s.doubled)
	out := map[routeKey]hop{}
	for _, fam := range families {
		if err := s.list(fam, out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (s routeStore) list(fam uint8, out map[routeKey]hop) error {
	scope := s.scope.Load()
	first := map[routeKey]bool{} // routes of others: the kernel uses the first of a key
	reset := func() {
		clear(first)
		for key := range out {
			if rtnetlink.Family(key.Dst.Addr()) == fam {
				delete(out, key)
			}
		}
	}
	return s.read(fam, reset, func(r kernelRoute) {
		if !scope.owns(r) {
			if driver.Inside(r.key.Dst, scope.networks) {
				first[r.key] = true
			}
			return
		}
		if _, twice := out[r.key]; twice || first[r.key] {
			s.doubled[r.key], r.hop = true, hop{Odd: true}
		}
		out[r.key] = r.hop
	})
}

// read calls each for every route of a family in the main table that can concern us. A hop that the route takes from its
// nexthop object is filled in; for that, the objects must have been listed. reset is as for conn.dump.
func (s routeStore) read(fam uint8, reset func(), each func(kernelRoute)) error {
	body := make([]byte, unix.SizeofRtMsg)
	body[0] = fam
	filter := func(m rtnetlink.Message) rtnetlink.Message { return m.Uint32(unix.RTA_TABLE, unix.RT_TABLE_MAIN) }
	err := s.conn.Dump(unix.RTM_GETROUTE, body, filter, reset, func(body []byte) error {
		r, ok, err := parseRoute(body)
		if err == nil && ok {
			r.hop = s.nexthops.resolve(r)
			each(r)
		}
		return err
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil // no route was ever added, or the family is switched off
	}
	return err
}

// find returns the routes that match.
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
	// What is replaced is the first of a key: one of ours behind it, through which nothing goes, would stay for good.
	for _, e := range entries {
		if s.doubled[e.Key] {
			delete(s.doubled, e.Key)
			s.Delete(ctx, []routeEntry{e})
		}
	}
	set := func(m rtnetlink.Message, e routeEntry) rtnetlink.Message {
		r := kernelRoute{key: e.Key, hop: e.Value, protocol: protocolBoot}
		if !s.plain {
			r.protocol, r.nexthop = protocolOurs, s.nexthops.id(e.Value)
		}
		return writeRoute(m, unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, r)
	}
	errs := s.conn.Batch(each(entries, set))
	overrule(s.conn, errs, func(i int) hop { return entries[i].Value }, func(m rtnetlink.Message, i int) rtnetlink.Message { return set(m, entries[i]) })
	for i, err := range errs {
		// Ours is there, but behind somebody else's of the same key. Taking ours away lets it replace that one.
		if errors.Is(err, unix.EEXIST) {
			s.Delete(ctx, entries[i:i+1])
			errs[i] = first(s.conn.Batch(each(entries[i:i+1], set)))
		}
		if errs[i] != nil {
			errs[i] = fmt.Errorf("%s: %w", entries[i].Value, errs[i])
		}
	}
	return errs
}

func first(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	return errs[0]
}

// Delete tries our own protocol number first, and then flannel's shape: so somebody else's route of the same key stays.
func (s routeStore) Delete(ctx context.Context, entries []routeEntry) []error {
	errs := s.conn.Batch(each(entries, func(m rtnetlink.Message, e routeEntry) rtnetlink.Message {
		return writeRoute(m, unix.RTM_DELROUTE, 0, kernelRoute{key: e.Key, hop: hop{Blackhole: e.Value.Blackhole}, protocol: protocolOurs})
	}))
	for i, err := range errs {
		if errors.Is(err, unix.ESRCH) {
			errs[i] = first(s.conn.Batch(each(entries[i:i+1], func(m rtnetlink.Message, e routeEntry) rtnetlink.Message {
				return writeRoute(m, unix.RTM_DELROUTE, 0, kernelRoute{key: e.Key, hop: e.Value, protocol: protocolBoot})
			})))
		}
	}
	for _, e := range entries {
		if s.doubled[e.Key] {
			delete(s.doubled, e.Key)
			s.Delete(ctx, []routeEntry{e}) // the other one of ours, if there are two
		}
	}
	return gone(errs)
}
