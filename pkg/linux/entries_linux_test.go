package linux

import (
	"net/netip"
	"testing"

	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
)

// Different hops are different when they are packed.
func TestPackedHop(t *testing.T) {
	seen := map[packedHop]hop{}
	for _, via := range []string{"", "0.0.0.0", "192.0.2.1", "::", "::ffff:192.0.2.1", "2001:db8::1"} {
		for flags := range 8 {
			h := hop{Index: 1<<31 - 1, Blackhole: flags&1 != 0, Onlink: flags&2 != 0, Unmanaged: flags&4 != 0}
			if via != "" {
				h.Via = netip.MustParseAddr(via)
			}
			if other, twice := seen[h.pack()]; twice {
				t.Errorf("%+v and %+v are the same", h, other)
			}
			if seen[h.pack()] = h; h.pack().unpack() != h {
				t.Errorf("%+v became %+v", h, h.pack().unpack())
			}
		}
	}
}

// A nexthop object is wanted as long as any route uses it.
func TestSharedHop(t *testing.T) {
	r := &rows{
		nexthops: reconcile.NewTable(taker[nexthopKey, struct{}](func(nexthopKey, struct{}) {})),
		routes:   reconcile.NewTable(taker[routeKey, hop](func(routeKey, hop) {}))}
	h := hop{Via: netip.MustParseAddr("192.0.2.2"), Index: 2}
	put := func(verb dataplane.Verb, dst string) {
		r.putRoute(&dataplane.Filling{Verb: verb}, netip.MustParsePrefix(dst), h)
	}
	for round := range 2 {
		for _, dst := range []string{"10.5.2.0/24", "10.5.3.0/24", "10.5.4.0/24"} {
			put(dataplane.Want, dst)
		}
		for _, dst := range []string{"10.5.3.0/24", "10.5.2.0/24", "10.5.4.0/24"} {
			if !r.nexthops.Wanted(nexthopKey{packedHop: h.pack()}) {
				t.Errorf("round %d: not wanted, although %s uses it", round, dst)
			}
			put(dataplane.Drop, dst)
		}
		if r.nexthops.Len() != 0 || r.routes.Len() != 0 || r.hopUsers.Len() != 0 {
			t.Errorf("round %d: wanted without routes, %d users", round, r.hopUsers.Len())
		}
	}
}
