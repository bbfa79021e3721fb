package linux

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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
		c, err := rtnetlink.Dial(unix.NETLINK_ROUTE, answerTimeout)
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

// An object of ours with the hop of another one, which the kernel lists before the one that routes use, takes no
// route with it: neither one that appears while we run, nor one that a new run finds.
func TestNexthopTwice(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		m.mustPass()
		for _, restart := range []bool{false, true} {
			run(t, "ip nexthop del id %[1]d 2>/dev/null || true; ip nexthop add id %[1]d via 10.5.3.0 dev flannel.1 onlink proto 70", usualNexthop)
			if restart {
				m.restart()
			} else {
				m.nexthops.Relist()
			}
			m.mustPass()
			if got := kernel(t); got != synced {
				t.Errorf("restart %t: the kernel holds\n%s\nwant\n%s", restart, got, synced)
			}
			if out := run(t, "ip nexthop show proto 70 | grep 10.5.3.0"); strings.Count(out, "\n") != 1 {
				t.Errorf("restart %t: the objects of one hop are\n%s", restart, out)
			}
			// Now the used object is the one with the lowest ID: the next pass gives the route one with a higher ID.
			run(t, "ip nexthop del id %d", usualNexthop)
			m.nexthops.Relist()
			m.mustPass()
		}
	})
}

// An object that is deleted while the first list is under way is not in the store afterwards, or the store says that
// routes are lost.
func TestNexthopDeletedDuringList(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		const others = 400 // so that reading the list takes some time
		run(t, "ip link add eth0 type veth peer name far; ip link set far up; ip addr add 192.168.100.1/24 dev eth0; ip link set eth0 up")
		lists, deletes := dialTest(t), dialTest(t)
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			t.Fatal(err)
		}
		h := hop{Index: link.Index, Via: netip.MustParseAddr("192.168.100.2")}
		write := func(kind, flags uint16, id uint32) {
			t.Helper()
			h := h
			if id != usualNexthop {
				h.Via = netip.MustParseAddr("192.168.100.3")
			}
			if err := errors.Join(deletes.Batch(1, func(m rtnetlink.Message, _ int) rtnetlink.Message {
				return writeNexthop(m, kind, flags, id, h)
			})...); err != nil {
				t.Fatal(err)
			}
		}
		for i := range uint32(others) {
			write(unix.RTM_NEWNEXTHOP, unix.NLM_F_CREATE, i+1)
		}
		var all scopePointer
		all.Store(&scope{})
		for try := range 300 {
			write(unix.RTM_NEWNEXTHOP, unix.NLM_F_CREATE, usualNexthop)
			store := newNexthopStore(lists, &all, "")
			listed := make(chan error)
			go func() {
				_, err := store.List(t.Context())
				listed <- err
			}()
			time.Sleep(time.Duration(try) * time.Microsecond) // until another moment of the list
			write(unix.RTM_DELNEXTHOP, 0, usualNexthop)
			_, _, routesLost := store.observe(usualNexthop, protocolOurs, h, false) // as the watcher does
			if err := <-listed; err != nil {
				t.Fatal(err)
			}
			if store.idOf(nexthopKey{packedHop: h.pack()}) != 0 && !routesLost {
				t.Fatalf("try %d: the store has an object that does not exist", try)
			}
		}
	})
}

// dialTest opens a connection until the test ends.
func dialTest(t *testing.T) *rtnetlink.Conn {
	t.Helper()
	c, err := rtnetlink.Dial(unix.NETLINK_ROUTE, answerTimeout)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}
