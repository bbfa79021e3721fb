package linux

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"flannel/internal/test/eventually"
	"flannel/internal/test/nstest"
	"flannel/pkg/linux/rtnetlink"
	"flannel/pkg/reconcile"
)

// The kernel notifies of a deleted nexthop object before it removes the routes, which takes milliseconds if there are
// many. A list that begins then must not contain them, since no other notification follows.
func TestListAfterNexthopNotification(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		const routes, id = 50000, 7
		run(t, "ip link add eth0 type veth peer name far; ip link set far up; ip addr add 192.168.100.1/24 dev eth0; ip link set eth0 up; ip nexthop add id %d via 192.168.100.2 dev eth0 proto 70", id)
		c, err := rtnetlink.Dial(unix.NETLINK_ROUTE)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close() //nolint:errcheck // only read from
		errs := c.Batch(routes, func(m rtnetlink.Message, i int) rtnetlink.Message {
			dst := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte(i >> 8), byte(i)}), 32)
			return writeRoute(m, unix.RTM_NEWROUTE, unix.NLM_F_CREATE, kernelRoute{key: routeKey{Dst: dst}, nexthop: id, protocol: protocolOurs})
		})
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		var all scopePointer
		all.Store(&scope{everything: true})
		store := newRouteStore(newNexthopStore(c, &all, ""))
		listed, err := store.List(t.Context())
		if err != nil || len(listed) != routes {
			t.Fatalf("%d routes (%v), want %d", len(listed), err, routes)
		}

		notified := make(chan struct{}, 1)
		watch, err := rtnetlink.Listen(rtnetlink.Notifications{Protocol: unix.NETLINK_ROUTE, Groups: []int{unix.RTNLGRP_NEXTHOP},
			Each: func(h rtnetlink.Header, _ []byte) error {
				if h.Kind == unix.RTM_DELNEXTHOP {
					reconcile.Notify(notified)
				}
				return nil
			},
			Lost: func(err error) { t.Error(err) }})
		if err != nil {
			t.Fatal(err)
		}
		defer watch.Close() //nolint:errcheck // only read from
		deleted := make(chan string)
		go func() { deleted <- run(t, "ip nexthop del id %d", id) }()
		<-notified
		listed, err = store.List(t.Context())
		if err != nil || len(listed) != 0 {
			t.Errorf("%d routes (%v) through a deleted nexthop object", len(listed), err)
		}
		<-deleted
	})
}

// The list of nexthop objects misses one before the notification of its deletion is read.
func TestNexthopMissing(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		m.mustPass()
		o := newObserver(m)
		before := o.look()
		key := routeKey{Dst: netip.MustParsePrefix("10.5.3.0/24")}
		id := m.store.idOf(nexthopKey{packedHop: before.routes[key].pack()})
		// The watcher is not told of writes of our own socket.
		errs := m.conn.Batch(1, func(b rtnetlink.Message, _ int) rtnetlink.Message {
			return writeNexthop(b, unix.RTM_DELNEXTHOP, 0, id, hop{})
		})
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		if hop, there := o.look().routes[key]; there {
			t.Fatalf("the kernel kept the route %s", hop)
		}
		m.nexthops.Relist()
		m.mustPass()
		if got := kernel(t); got != synced {
			t.Errorf("the kernel holds\n%s\nwant\n%s", got, synced)
		}
	})
}

// A route whose object the kernel has deleted, which the watcher has not read yet, is written without the object, and is
// not refused as if the peer's address were wrong. The table of objects lists again before its next Add.
func TestRouteOfDeletedNexthop(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		m.mustPass()
		before := newObserver(m).look()
		var routes []routeEntry
		for _, dst := range []string{"10.5.3.0/24", "2001:cafe:42:3::/64"} {
			key := routeKey{netip.MustParsePrefix(dst), defaultMetric(netip.MustParsePrefix(dst).Addr())}
			routes = append(routes, routeEntry{Key: key, Value: before.routes[key]})
		}
		relists := false
		m.store.relist = func() { relists = true }
		// The watcher is not told of writes of our own socket.
		errs := m.conn.Batch(len(routes), func(b rtnetlink.Message, i int) rtnetlink.Message {
			return writeNexthop(b, unix.RTM_DELNEXTHOP, 0, m.store.idOf(nexthopKey{packedHop: routes[i].Value.pack()}), hop{})
		})
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(newRouteStore(m.store).Set(t.Context(), routes)...); err != nil {
			t.Error(err)
		}
		if got := kernel(t); got != synced {
			t.Errorf("the kernel holds\n%s\nwant\n%s", got, synced)
		}
		if !relists {
			t.Error("the table of objects does not list again")
		}
		m.nexthops.Relist()
		m.mustPass()
		if out := run(t, "ip nexthop show proto 70"); strings.Count(out, "\n") != 6 {
			t.Errorf("the objects are\n%s", out)
		}
	})
}

// An object of ours with the hop of another one, which the kernel lists before the one that routes use, takes no
// route with it: neither one that appears while we run, nor one that a new run finds.
func TestNexthopTwice(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		m.mustPass()
		const another = "via 10.5.3.0 dev flannel.1 onlink proto 70"
		hasOne := func(when string) {
			t.Helper()
			if got := kernel(t); got != synced {
				t.Errorf("%s: the kernel holds\n%s\nwant\n%s", when, got, synced)
			}
			if out := run(t, "ip nexthop show proto 70 | grep 10.5.3.0"); strings.Count(out, "\n") != 1 {
				t.Errorf("%s: the objects of one hop are\n%s", when, out)
			}
		}
		for _, restart := range []bool{false, true} {
			m.told(fmt.Sprintf("ip nexthop add id %d %s", usualNexthop, another))
			if restart {
				if got, want := m.found(), pathsText(byDst(m.state.Paths)); got != want {
					t.Errorf("a new run finds\n%s\nwant\n%s", got, want)
				}
			} else {
				m.nexthops.Relist()
			}
			m.mustPass()
			hasOne(fmt.Sprintf("restart %t", restart))
			// As if the watcher had read the creation of this object during the list that chose it.
			key := nexthopKey{packedHop: hop{Index: m.links["flannel.1"].Index, Via: netip.MustParseAddr("10.5.3.0"), Onlink: true}.pack()}
			if key.extra = m.store.idOf(key); key.extra != usualNexthop {
				t.Fatalf("routes use the object %d", key.extra)
			}
			m.nexthops.Observe(key, struct{}{}, true)
			m.mustPass()
			hasOne("the used object was observed as superfluous")
			// Now the used object is the one with the lowest ID: the next pass gives the route one with a higher ID.
			m.told(fmt.Sprintf("ip nexthop del id %d", usualNexthop))
			m.mustPass()
		}
		const superfluous = usualNexthop + nexthopRange - 1
		m.told(fmt.Sprintf("ip nexthop add id %d %s", superfluous, another))
		m.told(fmt.Sprintf("ip route replace 10.5.3.0/24 nhid %d proto 70", superfluous))
		m.mustPass()
		hasOne("a route was moved to a superfluous object")
	})
}

// A route of ours that somebody moves to an object of theirs is moved back: the kernel would delete it with that object,
// without a notification. With nexthop_compat_mode 0, the kernel says of the route only the ID of the object.
func TestNexthopOfOthers(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		m.mustPass()
		run(t, `ip nexthop add id 7 via 10.5.3.0 dev flannel.1 onlink; ip nexthop add id 9 group 7
			ip nexthop add id 67 via 2001:cafe:42:3:: dev flannel-v6.1 onlink; ip nexthop add id 69 group 67`)
		moves := []struct{ route, object string }{
			{"-4 route %s 10.5.3.0/24", "7"}, {"-4 route %s 10.5.3.0/24", "9"},
			{"-6 route %s 2001:cafe:42:3::/64", "67"}, {"-6 route %s 2001:cafe:42:3::/64", "69"},
		}
		run(t, "ip route add 10.5.99.0/24 nhid 7; ip route add 2001:cafe:42:99::/64 nhid 67") // with protocol boot, as flannel's
		// each calls movedBack after each route was moved to each object.
		each := func(protocol string, movedBack func(what string, holds func() error)) {
			for mode := range 2 {
				run(t, "echo %d > /proc/sys/net/ipv4/nexthop_compat_mode", mode)
				for _, move := range moves {
					run(t, "ip "+move.route+" nhid %s proto %s", "replace", move.object, protocol)
					movedBack(fmt.Sprintf("object %s, protocol %s, nexthop_compat_mode %d", move.object, protocol, mode), func() error {
						if out := run(t, "ip "+move.route, "show"); out == "" || strings.Contains(out, "nhid "+move.object+" ") {
							return fmt.Errorf("the route is %q", out)
						}
						return nil
					})
				}
			}
		}
		each("70", func(what string, holds func() error) {
			m.restart()
			m.mustPass()
			if err := holds(); err != nil {
				t.Errorf("after a restart, %s: %v", what, err)
			}
		})
		m.serve()
		for _, protocol := range []string{"70", "boot", "static"} {
			each(protocol, func(what string, holds func() error) { eventually.Nil(t, what, holds) })
		}
		if out := run(t, "ip route show 10.5.99.0/24; ip -6 route show 2001:cafe:42:99::/64"); strings.Count(out, "\n") != 2 {
			t.Errorf("of the routes of others through objects of theirs, there is\n%s", out)
		}
		run(t, "ip nexthop del id 7; ip nexthop del id 67") // and the groups with them
		if got := kernel(t); got != synced {
			t.Errorf("after the deletion of objects that routes used, the kernel holds\n%s\nwant\n%s", got, synced)
		}
	})
}

// The deletion of any object of ours may have deleted routes, but leaves other objects with its hop.
func TestObserveDeletedNexthop(t *testing.T) {
	const used, superfluous, unknown, others = usualNexthop + 1, usualNexthop + 2, usualNexthop + 3, 7
	h := hop{Index: 2, Via: netip.MustParseAddr("192.0.2.2")}
	var ofNobody scopePointer
	ofNobody.Store(&scope{})
	store := newNexthopStore(nil, &ofNobody, "")
	store.reserveID(h.pack())
	if id := store.idOf(nexthopKey{packedHop: h.pack()}); id != used {
		t.Fatalf("the object %d was reserved", id)
	}
	store.observe(superfluous, protocolOurs, h, true)
	store.observe(others, protocolOurs, h, true)
	for _, d := range []struct {
		id         uint32
		ours, lost bool
	}{{superfluous, false, true}, {unknown, false, true}, {others, false, false}, {used, true, true}} {
		key, ours, lost := store.observe(d.id, protocolOurs, h, false)
		if ours != d.ours || lost != d.lost || ours && key != (nexthopKey{packedHop: h.pack()}) {
			t.Errorf("object %d: ours %t, routesLost %t, key %+v", d.id, ours, lost, key)
		}
	}
}
