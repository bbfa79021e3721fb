//go:build linux

package linux

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flannel/internal/test/eventually"
	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
	"flannel/pkg/linux/rtnetlink"
)

// held is all that the kernel holds of ours.
type held struct {
	routes map[routeKey]hop
	neighs map[neighKey]dataplane.MAC
	fdb    map[fdbKey]netip.Addr
	links  map[string]dataplane.Link
}

// observer looks at the kernel through sockets of its own, and changes it as somebody else does.
type observer struct {
	t        *testing.T
	m        *machine
	conn     *rtnetlink.Conn
	scope    scopePointer
	nexthops *nexthopStore
}

func newObserver(m *machine) *observer {
	m.t.Helper()
	c, err := rtnetlink.Dial(unix.NETLINK_ROUTE)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() {
		if err := c.Close(); err != nil {
			m.t.Error(err)
		}
	})
	o := &observer{t: m.t, m: m, conn: c}
	o.nexthops = newNexthopStore(c, &o.scope, "")
	return o
}

func (o *observer) must(what string, err error) {
	o.t.Helper()
	if err != nil {
		o.t.Fatalf("%s: %v", what, err)
	}
}

func (o *observer) routeStore() routeStore { return newRouteStore(o.nexthops) }

func (o *observer) look() (h held) {
	o.t.Helper()
	ctx := o.t.Context()
	h.links = map[string]dataplane.Link{}
	all, err := netlink.LinkList()
	o.must("list devices", err)
	for _, l := range all {
		h.links[l.Attrs().Name] = linkOf(l)
	}
	o.scope.Store(&scope{tunnels: map[int]bool{h.links["flannel.1"].Index: true, h.links["flannel-v6.1"].Index: true}, networks: o.m.state.Networks})
	_, err = o.nexthops.List(ctx)
	o.must("list nexthops", err)
	h.routes, err = o.routeStore().List(ctx)
	o.must("list routes", err)
	h.neighs, err = neighStore{o.conn, &o.scope}.List(ctx)
	o.must("list neighbours", err)
	h.fdb, err = fdbStore{o.conn, &o.scope}.List(ctx)
	o.must("list fdb", err)
	return h
}

// works reports whether a packet for the path's peer finds all that it needs.
func (h held) works(p *dataplane.Path) bool {
	hop, ok := h.routes[routeKey{p.Dst, defaultMetric(p.Dst.Addr())}]
	if !ok || h.links[p.Device].Index != hop.Index {
		return false
	}
	if _, tunnelled := p.End(); !tunnelled {
		return true
	}
	mac, ok := h.neighs[neighKey{hop.Index, hop.Via}]
	_, tunnel := h.fdb[fdbKey{hop.Index, mac}]
	return ok && tunnel
}

// drift leaves work of every kind: a device with another MTU, a missing route, neighbour and FDB entry, a route too many
// and a device too many, forwarding switched off.
func (o *observer) drift() {
	o.t.Helper()
	now := o.look()
	index := now.links["flannel.1"].Index
	flannel, err := netlink.LinkByName("flannel.1")
	o.must("find flannel.1", err)
	o.must("set its MTU", netlink.LinkSetMTU(flannel, 1400))
	key2 := routeKey{netip.MustParsePrefix("10.5.2.0/24"), 0}
	o.must("delete a route", errors.Join(o.routeStore().Delete(o.t.Context(), []routeEntry{{Key: key2, Value: now.routes[key2]}})...))
	key3 := neighKey{index, netip.MustParseAddr("10.5.3.0")}
	o.must("delete a neighbour", errors.Join(neighStore{o.conn, nil}.Delete(o.t.Context(), []neighEntry{{Key: key3, Value: now.neighs[key3]}})...))
	key4 := fdbKey{index, dataplane.MAC{2, 0, 0, 0, 1, 4}}
	o.must("delete an FDB entry", errors.Join(fdbStore{o.conn, nil}.Delete(o.t.Context(), []fdbEntry{{Key: key4, Value: now.fdb[key4]}})...))
	stray := routeEntry{Key: routeKey{netip.MustParsePrefix("10.5.99.0/24"), 0}, Value: hop{Blackhole: true}}
	o.must("add a route", errors.Join(o.routeStore().Set(o.t.Context(), []routeEntry{stray})...))
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "flannel.77"
	former := &netlink.Vxlan{LinkAttrs: attrs, VxlanId: 77, Port: 8477}
	o.must("add a device", netlink.LinkAdd(former))
	o.must("add its address", netlink.AddrAdd(former, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 5, 1, 0), Mask: net.CIDRMask(32, 32)}}))
	for _, path := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		o.must("set a sysctl", os.WriteFile("/proc/sys/net/"+path, []byte("0"), 0))
	}
	o.must("set a sysctl", os.WriteFile("/proc/sys/net/ipv6/conf/eth0/accept_ra", []byte("1"), 0))
}

// upToDate returns what differs from the desired state.
func (o *observer) upToDate() error {
	now := o.look()
	for _, p := range o.m.state.Paths {
		e, err := lower(p, now.links)
		if err != nil {
			return err
		}
		if got, ok := now.routes[e.route]; !ok || got != e.hop {
			return fmt.Errorf("route %s leads %s, want %s", e.route, got, e.hop)
		}
		if _, tunnelled := p.End(); tunnelled && (now.neighs[e.neigh] != e.mac || now.fdb[e.fdb] != e.via) {
			return fmt.Errorf("%s: neighbour %s and FDB entry %s, want %s and %s", p.Dst, now.neighs[e.neigh], now.fdb[e.fdb], e.mac, e.via)
		}
	}
	if n := len(o.m.state.Paths); len(now.routes) != n || len(now.fdb) != n-1 || len(now.neighs) != n-1 { // one has no tunnel
		return fmt.Errorf("%d routes, %d neighbours, %d FDB entries for %d paths", len(now.routes), len(now.neighs), len(now.fdb), n)
	}
	if _, stray := now.links["flannel.77"]; stray || now.links["flannel.1"].MTU != 1450 {
		return fmt.Errorf("the devices are %v", now.links)
	}
	for path, want := range map[string]string{"ipv4/ip_forward": "1\n", "ipv6/conf/all/forwarding": "1\n", "ipv6/conf/eth0/accept_ra": "2\n"} {
		if raw, err := os.ReadFile("/proc/sys/net/" + path); err != nil || string(raw) != want {
			return fmt.Errorf("sysctl %s is %q, want %q (%v)", path, raw, want, err)
		}
	}
	return nil
}

// whenCallFails runs a pass over drift whose n-th system call fails, and returns how many calls it made.
func (o *observer) whenCallFails(faults *nstest.Faults, n int, errno unix.Errno) (calls int) {
	o.t.Helper()
	o.drift()
	// A peer moves to another VTEP, another to another gateway: their old entries serve until the new ones are there.
	for i, p := range o.m.state.Paths {
		q := *p
		end, tunnelled := p.End()
		switch {
		case p.Dst.Addr() == netip.MustParseAddr("10.5.5.0"):
			end.MAC[4] = byte(n % 2)
			q.Encap = dataplane.VTEP{MAC: end.MAC}
		case !tunnelled:
			q.Via = netip.AddrFrom4([4]byte{192, 168, 100, byte(8 + n%2)})
		default:
			continue
		}
		o.m.state.Paths = slices.Clone(o.m.state.Paths)
		o.m.state.Paths[i] = &q
	}
	before := o.look()
	o.m.QueueResync()
	faults.Fail(n, errno)
	err := o.m.pass()
	calls = faults.Fail(0, 0)
	after := o.look()
	what := fmt.Sprintf("call %d failed with %v, the pass with %v", n, errno, err)
	for _, p := range o.m.state.Paths {
		if before.works(p) && !after.works(p) {
			o.t.Errorf("%s: there is no way to %s any more", what, p.Dst)
		}
	}
	for name, l := range before.links {
		if name != "flannel.77" && after.links[name].Index != l.Index {
			o.t.Errorf("%s: the device %s is gone", what, name)
		}
	}
	// The kernel does not say who wrote an FDB entry. So the notification of an earlier write of ours may arrive after that
	// entry was listed; the notifications that follow it correct what it said.
	again := func() error { return nil }
	if err != nil {
		again = o.m.pass
	}
	eventually.Nil(o.t, what+": without the fault", func() error {
		err := again()
		if again = o.m.pass; err == nil {
			err = o.upToDate()
		}
		return err
	})
	return calls
}

// Whatever system call of a pass fails, no peer that could be reached is cut off, and everything is up to date once
// none fails any more.
func TestNoFailedCallCutsAPeerOff(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		m.state.Paths = append(m.state.Paths, peerPaths(5)...)
		m.state.Paths = append(m.state.Paths, &dataplane.Path{Dst: netip.MustParsePrefix("10.5.8.0/24"), Via: netip.MustParseAddr("192.168.100.8"), Device: "eth0", Encap: dataplane.Direct{}})
		m.mustPass()
		o := newObserver(m)
		faults := nstest.NewFaults(t)
		calls := o.whenCallFails(faults, 0, 0)
		for _, errno := range []unix.Errno{unix.EMFILE, unix.ENOBUFS, unix.ENOMEM} {
			for n := 1; n <= calls && !t.Failed(); n++ {
				o.whenCallFails(faults, n, errno)
			}
		}
		t.Logf("a pass makes %d calls", calls)
	})
}

// The first pass after a start knows of no device that it could not look at, and deletes nothing either.
func TestStartWithFailedCalls(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		m.mustPass()
		o := newObserver(m)
		faults := nstest.NewFaults(t)
		for n, calls := 0, 0; n <= calls && !t.Failed(); n++ {
			m.restart()
			before := o.look()
			faults.Fail(n, unix.ENOBUFS)
			err := m.pass()
			calls = max(calls, faults.Fail(0, 0))
			if after := o.look(); !maps.Equal(before.routes, after.routes) || !maps.Equal(before.neighs, after.neighs) || !maps.Equal(before.fdb, after.fdb) {
				t.Errorf("call %d of the first pass failed (%v): the kernel held\n%v\nand holds\n%v", n, err, before, after)
			}
		}
	})
}
