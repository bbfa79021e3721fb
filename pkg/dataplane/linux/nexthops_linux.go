package linux

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"

	"golang.org/x/sys/unix"

	"flannel/pkg/reconcile"
	"flannel/pkg/rtnetlink"
)

// nexthopStore are our nexthop objects (kernel 5.3 and later). The kernel finds plain routes through one device only
// by walking over all of them, so that n routes cost n²; with one object for each gateway they cost n.
type nexthopStore struct {
	conn  *rtnetlink.Conn
	first uint32 // our IDs are the nexthopRange from here

	mu sync.Mutex
	// everything is set for a cleanup that takes every flanneld's objects away. Only the goroutine that lists sets it.
	everything bool
	none       bool           // the kernel has no nexthop objects
	ids        map[hop]uint32 // the object of a hop
	hops       map[uint32]hop // every object that is there, also those that others made
	last       uint32         // the last ID given to an object of ours
}

// nexthopKey is a hop; extra tells apart objects of ours that lead to the same one, of which only one is needed.
type nexthopKey struct {
	hop
	extra uint32
}

// IDs are numbers of 32 bits. Ours start far from the small ones that people choose by hand; several flannelds on a host
// each have a range of their own, since one must not delete an object through which another's routes lead.
const (
	nexthopRange = 1 << 18
	usualNexthop = 70 << 24
	otherRanges  = (1<<32 - usualNexthop) / nexthopRange // the usual one's included
)

func newNexthopStore(c *rtnetlink.Conn, instance string) *nexthopStore {
	first := uint32(usualNexthop)
	if instance != "" {
		h := fnv.New32a()
		h.Write([]byte(instance)) //nolint:errcheck // it never fails
		first += nexthopRange * (1 + h.Sum32()%(otherRanges-1))
	}
	return &nexthopStore{conn: c, first: first, ids: map[hop]uint32{}, hops: map[uint32]hop{}, last: first}
}

// owns reports whether an object is ours.
func (s *nexthopStore) owns(id uint32, protocol uint8) bool {
	return protocol == protocolOurs && (s.everything || id >= s.first && id-s.first < nexthopRange)
}

// ownAll makes every flanneld's objects ours.
func (s *nexthopStore) ownAll(everything bool) {
	s.mu.Lock() // the watcher reads it
	defer s.mu.Unlock()
	s.everything = everything
}

func (*nexthopStore) Name() string { return "nexthops" }

func (s *nexthopStore) List(context.Context) (map[nexthopKey]struct{}, error) {
	s.mu.Lock()
	n := len(s.hops) // as many as there were: to grow a map step by step takes twice the memory and time
	s.mu.Unlock()
	out, ids, hops := make(map[nexthopKey]struct{}, n), make(map[hop]uint32, n), make(map[uint32]hop, n)
	reset := func() { clear(out); clear(ids); clear(hops) }
	err := s.conn.Dump(unix.RTM_GETNEXTHOP, make([]byte, 8), nil, reset, func(body []byte) error {
		id, protocol, h, err := parseNexthop(body)
		if err != nil {
			return err
		}
		hops[id] = h
		if !s.owns(id, protocol) {
			return nil
		}
		key := nexthopKey{hop: h}
		if _, twice := ids[h]; twice {
			key.extra = id
		} else {
			ids[h] = id
		}
		out[key] = struct{}{}
		return nil
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.Is(err, unix.EOPNOTSUPP) {
		s.none, err = true, nil
	}
	if err != nil {
		return nil, err // what is known is more than a part of a list
	}
	s.ids, s.hops = ids, hops
	return out, nil
}

// id returns the object of a hop, 0 if there is none: then the route is a plain one.
func (s *nexthopStore) id(h hop) uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ids[h]
}

func (s *nexthopStore) unsupported() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.none
}

// resolve completes a route that names its nexthop object alone (sysctl nexthop_compat_mode 0).
func (s *nexthopStore) resolve(r kernelRoute) hop {
	if r.nexthop == 0 || r.hop.Via.IsValid() {
		return r.hop
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if h, ok := s.hops[r.nexthop]; ok {
		return h
	}
	return hop{Odd: true}
}

// claim reserves an ID for a hop before it is sent, so that its notification is known as our own.
func (s *nexthopStore) claim(h hop) uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	for taken := true; taken; {
		s.last = s.first + (s.last+1-s.first)%nexthopRange
		_, taken = s.hops[s.last]
	}
	s.ids[h], s.hops[s.last] = s.last, h
	return s.last
}

// idOf returns the object of a key, also if it is not the one that routes take.
func (s *nexthopStore) idOf(key nexthopKey) uint32 {
	if key.extra != 0 {
		return key.extra
	}
	return s.id(key.hop)
}

// release forgets an object; its notification will then concern nobody.
func (s *nexthopStore) release(key nexthopKey) (id uint32) {
	id = s.idOf(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if key.extra == 0 {
		delete(s.ids, key.hop)
	}
	delete(s.hops, id)
	return id
}

type nexthopEntry = reconcile.Entry[nexthopKey, struct{}]

func (s *nexthopStore) Set(_ context.Context, entries []nexthopEntry) []error {
	if s.unsupported() {
		return nil
	}
	create := func(m rtnetlink.Message, h hop, id uint32) rtnetlink.Message {
		return writeNexthop(m, unix.RTM_NEWNEXTHOP, unix.NLM_F_CREATE|unix.NLM_F_EXCL, id, h)
	}
	errs := s.conn.Batch(each(entries, func(m rtnetlink.Message, e nexthopEntry) rtnetlink.Message {
		return create(m, e.Key.hop, s.claim(e.Key.hop))
	}))
	overrule(s.conn, errs, func(i int) hop { return entries[i].Key.hop }, func(m rtnetlink.Message, i int) rtnetlink.Message {
		h := entries[i].Key.hop
		return create(m, h, s.id(h))
	})
	for i, err := range errs {
		if err != nil {
			s.release(entries[i].Key)
			errs[i] = fmt.Errorf("%s: %w", entries[i].Key.hop, err)
		}
	}
	return errs
}

func (s *nexthopStore) Delete(_ context.Context, entries []nexthopEntry) []error {
	if s.unsupported() {
		return nil
	}
	return gone(s.conn.Batch(each(entries, func(m rtnetlink.Message, e nexthopEntry) rtnetlink.Message {
		return writeNexthop(m, unix.RTM_DELNEXTHOP, 0, s.release(e.Key), hop{})
	})))
}

// observe takes in a notification about any nexthop object. It returns what to tell the table, and whether routes may
// have gone or changed with it: the kernel does not tell of those.
func (s *nexthopStore) observe(id uint32, protocol uint8, h hop, present bool) (key nexthopKey, tell, routes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, known := s.hops[id]
	if present && known && old == h {
		return key, false, false // our own, or no change
	}
	mine := known && s.ids[old] == id
	if known {
		delete(s.hops, id)
	}
	if mine {
		delete(s.ids, old)
	}
	if present {
		s.hops[id] = h
	}
	switch {
	case mine: // deleted, or somebody else changed it
		return nexthopKey{hop: old}, true, true
	case present && s.owns(id, protocol):
		return nexthopKey{hop: h, extra: id}, true, false
	}
	return key, false, false
}
