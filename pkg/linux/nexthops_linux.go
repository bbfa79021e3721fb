package linux

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"

	"golang.org/x/sys/unix"

	"flannel/pkg/linux/rtnetlink"
	"flannel/pkg/reconcile"
)

// nexthopStore is the kernel's side of the table rows.nexthops: our nexthop objects
// (kernel 5.3 and later). With one object for each gateway, adding n routes through one
// device costs n steps. Without them, the kernel walks over all routes of the device for
// each, so it costs n².
//
// Example: the routes 10.244.2.0/24 and 10.244.3.0/24, both via 192.168.0.2 on
// link 2, share one object:
//
//	$ ip nexthop
//	id 1174405121 via 192.168.0.2 dev eth0 scope link proto 70
//	$ ip route
//	10.244.2.0/24 nhid 1174405121 via 192.168.0.2 dev eth0 proto 70
//	10.244.3.0/24 nhid 1174405121 via 192.168.0.2 dev eth0 proto 70
//
// Then ids[{192.168.0.2, 2}] is 1174405121, and hops[1174405121] the hop. When
// somebody deletes the object, the kernel deletes both routes without a
// notification; see observe.
//
// The table calls List, Set and Delete, on the loop's goroutine or that of Apply for which the loop
// waits (see Driver). The watcher calls observe and resolve, routeStore calls resolve and idOf.
type nexthopStore struct {
	conn  *rtnetlink.Conn
	scope *scopePointer // for scope.everything: a cleanup that owns the objects of every flanneld
	first uint32        // our IDs are first to first+nexthopRange-1
	// lost is called, with mu held, when List misses an object that routes use (the kernel has
	// deleted these routes), or finds another one for them. It makes the table of routes list.
	lost   func()
	relist func() // routeStore calls it when the kernel lacks an object: the table of objects lists before the next Add

	mu   sync.Mutex
	none bool                                    // the kernel has no nexthop objects, as List has found
	ids  reconcile.CompactMap[packedHop, uint32] // the object that routes through a hop take
	hops reconcile.CompactMap[uint32, packedHop] // all existing objects by ID, including those of others
	last uint32                                  // the last ID that was reserved
}

// nexthopKey identifies an object by its hop. Of several objects of ours with the
// same hop, routes use the one that the kernel lists first, which need not be the one that they used
// before: usesOther finds these routes. It is a key of the table, whose values are empty.
type nexthopKey struct {
	packedHop
	extra uint32 // 0: routes use this object; else the ID of a superfluous one, which is never desired
}

// IDs have 32 bits. Ours are far from the small ones that people choose. Each
// flanneld of a host has its own range, since it must not delete the objects that
// another one's routes use. The ranges of two named ones are the same if their
// hashes are, once in 11,903 pairs of names. Each then deletes the other's objects.
const (
	nexthopRange = 1 << 18                               // objects of one flanneld; with more gateways, reserveID would not end
	usualNexthop = protocolOurs << 24                    // the first ID of the flanneld without a name
	otherRanges  = (1<<32 - usualNexthop) / nexthopRange // including that of the flanneld without a name
)

// newNexthopStore returns the store of an instance, which has a range of IDs of its own.
func newNexthopStore(c *rtnetlink.Conn, scope *scopePointer, instance string) *nexthopStore {
	first := uint32(usualNexthop)
	if instance != "" {
		h := fnv.New32a()
		h.Write([]byte(instance)) //nolint:errcheck // it never fails
		first += nexthopRange * (1 + h.Sum32()%(otherRanges-1))
	}
	return &nexthopStore{conn: c, scope: scope, first: first, last: first, lost: func() {}, relist: func() {}}
}

// owns reports whether an object is ours, so that it may be deleted.
func (s *nexthopStore) owns(id uint32, protocol uint8) bool {
	return protocol == protocolOurs && (s.scope.Load().everything || id >= s.first && id-s.first < nexthopRange)
}

func (*nexthopStore) Name() string { return "nexthops" }

func (s *nexthopStore) List(context.Context) (map[nexthopKey]struct{}, error) {
	s.mu.Lock()
	n := s.hops.Len() // the expected size: growing a map takes twice the memory and time
	s.mu.Unlock()
	out := make(map[nexthopKey]struct{}, n) // those of ours
	var ids reconcile.CompactMap[packedHop, uint32]
	var hops reconcile.CompactMap[uint32, packedHop]
	reset := func() {
		clear(out)
		ids, hops = reconcile.CompactMap[packedHop, uint32]{}, reconcile.CompactMap[uint32, packedHop]{}
		ids.Reserve(n)
		hops.Reserve(n)
	}
	header := make(rtnetlink.Message, unix.SizeofNhmsg) // a zero struct nhmsg: the objects of all families
	// reset is called before each try: a change during the list has it begin again.
	err := s.conn.Dump(unix.RTM_GETNEXTHOP, header, reset, func(body []byte) error {
		id, protocol, h, err := parseNexthop(body)
		if err != nil {
			return err
		}
		packed := h.pack()
		hops.Set(id, packed)
		if !s.owns(id, protocol) {
			return nil
		}
		key := nexthopKey{packedHop: packed}
		if ids.Has(packed) || !h.Via.IsValid() { // no object without a gateway is desired
			key.extra = id
		} else {
			ids.Set(packed, id)
		}
		out[key] = struct{}{}
		return nil
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.Is(err, unix.EOPNOTSUPP) {
		s.none, err = true, nil // before Linux 5.3; out is empty
	}
	if err != nil {
		return nil, err // the old maps are better than a part of a list; the table lists again
	}
	// If an object that routes use is missing, the notification of its deletion may still
	// be on its way. observe will not recognize the ID then, as the new maps lack it, and so will
	// not report that the kernel has deleted routes. If the object is superfluous now, the list of
	// routes finds those that use it.
	for h, id := range s.ids.All() {
		if listed, _ := ids.Get(h); listed != id {
			s.lost()
			break
		}
	}
	// The watcher may have called observe since the kernel made its list, and the new maps then undo what
	// observe recorded. If an object of ours was deleted, the watcher has queued another list. If any
	// object was created, reserveID may choose its ID: the kernel refuses that, and the table lists again.
	s.ids, s.hops = ids, hops
	return out, nil
}

// count returns the number of objects that routes take.
func (s *nexthopStore) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ids.Len()
}

// unsupported reports whether the kernel has no nexthop objects.
func (s *nexthopStore) unsupported() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.none
}

// resolve returns the hop of a route. With the sysctl nexthop_compat_mode 0, the
// kernel reports only the ID of its object, and resolve looks the hop up. The hop of an unknown
// object is Unmanaged: no route is desired with it, so the route is written again.
func (s *nexthopStore) resolve(r kernelRoute) hop {
	if r.nexthop == 0 || r.hop.Via.IsValid() {
		return r.hop
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if h, ok := s.hops.Get(r.nexthop); ok {
		return h.unpack()
	}
	return hop{Unmanaged: true}
}

// usesOther reports whether a route uses an object, but not ours for r.hop (as returned by resolve). The
// object is a superfluous one of ours, or somebody else's. When an object is deleted, the kernel deletes its
// routes without notifications, so the route is moved to our object, or gets none.
func (s *nexthopStore) usesOther(r kernelRoute) bool {
	return r.nexthop != 0 && r.nexthop != s.idOf(nexthopKey{packedHop: r.hop.pack()})
}

// reserveID reserves an ID for a hop. It is called before the object is created, so
// that observe recognizes its notification. One ID of the range must be free.
func (s *nexthopStore) reserveID(h packedHop) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for used := true; used; {
		s.last = s.first + (s.last+1-s.first)%nexthopRange
		used = s.hops.Has(s.last)
	}
	s.ids.Set(h, s.last)
	s.hops.Set(s.last, h)
}

// idOf returns the ID of the object with a key; 0 if there is none.
func (s *nexthopStore) idOf(key nexthopKey) uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, _ := s.ids.Get(key.packedHop)
	return cmp.Or(key.extra, id) // extra is the ID of a superfluous object
}

// releaseID is the inverse of reserveID, and returns the ID. It is called before the object is
// deleted, so that observe ignores its notification. If the deletion fails, the table lists again, and
// List puts the ID back.
func (s *nexthopStore) releaseID(key nexthopKey) (id uint32) {
	id = s.idOf(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if key.extra == 0 {
		s.ids.Delete(key.packedHop)
	}
	s.hops.Delete(id)
	return id
}

type nexthopEntry = reconcile.Entry[nexthopKey, struct{}]

func (s *nexthopStore) Set(_ context.Context, entries []nexthopEntry) []error {
	if s.unsupported() { // all succeed: idOf then returns 0, and routes are written without an object
		return nil
	}
	for _, e := range entries { // only those without extra are ever desired
		s.reserveID(e.Key.packedHop)
	}
	create := func(m rtnetlink.Message, e nexthopEntry) rtnetlink.Message {
		return writeNexthop(m, unix.RTM_NEWNEXTHOP, unix.NLM_F_CREATE|unix.NLM_F_EXCL, s.idOf(e.Key), e.Key.unpack())
	}
	errs := batch(s.conn, entries, create)
	retryOnlink(s.conn, entries, errs, func(e nexthopEntry) hop { return e.Key.unpack() }, create) // updates errs
	for i, err := range errs {
		if err != nil {
			s.releaseID(entries[i].Key)
			errs[i] = fmt.Errorf("%s: %w", entries[i].Key.packedHop, err)
		}
	}
	return errs
}

// ignoreNoCarrier removes from err, of Tables.Add, the refusals of nexthop objects on a device without a
// carrier (ENETDOWN), on which the kernel accepts routes that name the hop themselves. These routes stay as
// they are when the carrier returns. The watcher then causes a pass that makes the objects; if the kernel
// does not report the return, a later pass does, which harms nothing, as no route needs them. On a device
// that is down, the kernel refuses the objects with the same error, but also the routes (ENETUNREACH,
// EHOSTUNREACH), which isPathsFault takes for the peers' fault. So if a route was refused, err stays as it
// is, and names the device.
func ignoreNoCarrier(err error) error {
	routesRefused := false
	reconcile.TakeRefusals(err, func(_ *reconcile.RefusedError, e reconcile.Refusal) bool {
		_, isRoute := e.Key.(routeKey)
		routesRefused = routesRefused || isRoute
		return false
	})
	if routesRefused {
		return err
	}
	return errors.Join(reconcile.TakeRefusals(err, func(_ *reconcile.RefusedError, e reconcile.Refusal) bool {
		_, isNexthop := e.Key.(nexthopKey)
		return isNexthop && errors.Is(e.Err, unix.ENETDOWN)
	})...)
}

func (s *nexthopStore) Delete(_ context.Context, entries []nexthopEntry) []error {
	if s.unsupported() { // all succeed, as there are no objects
		return nil
	}
	// A new object is observed as superfluous. A list under way may contain it before the one that routes used,
	// so that they use the new one: then the entry with extra is left out.
	var due []int // indexes of the other entries
	for i, e := range entries {
		if e.Key.extra == 0 || e.Key.extra != s.idOf(nexthopKey{packedHop: e.Key.packedHop}) {
			due = append(due, i)
		}
	}
	errs := make([]error, len(entries))
	for i, err := range ignoreMissing(batch(s.conn, due, func(m rtnetlink.Message, i int) rtnetlink.Message {
		return writeNexthop(m, unix.RTM_DELNEXTHOP, 0, s.releaseID(entries[i].Key), hop{})
	})) {
		errs[due[i]] = err
	}
	return errs
}

// observe records a notification for any nexthop object. With ours, key is an entry of the
// table that has changed.
//
//	notification                          result
//	no change, or our own write           ours false
//	an object that routes use was         its key, routesLost: the kernel has deleted
//	deleted, or now has another hop       or changed routes without notifications
//	another object of ours was deleted    ours false, routesLost: routes may have used
//	                                      it, and a list under way may contain it
//	an object of ours that nobody uses    a key with extra, to be deleted
//	was created
//	any other object                      ours false
//
// The deletion of somebody else's object needs no list: moving a route there was notified, and such a
// route never agrees (hop.OtherObject), so it is written, whether the object still exists or not.
// With ours false, the table does not change. With routesLost, both tables have to be listed.
func (s *nexthopStore) observe(id uint32, protocol uint8, h hop, present bool) (key nexthopKey, ours, routesLost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, known := s.hops.Get(id)
	packed := h.pack()
	if present && known && old == packed {
		return key, false, false
	}
	route, _ := s.ids.Get(old) // the object that routes through this hop use
	used := known && route == id
	if known {
		s.hops.Delete(id)
	}
	if used {
		s.ids.Delete(old)
	}
	if present {
		s.hops.Set(id, packed)
	}
	switch {
	case used:
		return nexthopKey{packedHop: old}, true, true
	case !s.owns(id, protocol):
	case present:
		return nexthopKey{packedHop: packed, extra: id}, true, false
	default: // deleted, but not by us: the watcher does not get the notifications of our own writes
		return key, false, true
	}
	return key, false, false
}
