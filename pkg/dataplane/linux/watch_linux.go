package linux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"flannel/pkg/mac"
	"flannel/pkg/rtnetlink"
)

// watcher hears what the kernel tells of its tables. Notifications of entries go into what the tables know is there;
// those of devices only mark what must be read again. What we write ourselves it does not hear, but for FDB entries,
// of which the kernel does not say who wrote them.
type watcher struct {
	d    *Driver
	conn *rtnetlink.Conn
	stop atomic.Bool
	done sync.WaitGroup
	seen map[int]linkState // of the devices of ours and the underlay
}

// linkState is what of a device concerns us: its other changes (counters, carrier of a tunnel) do not.
type linkState struct {
	name string
	up   bool
	mtu  uint32
	mac  mac.Addr
}

// The groups of rtnetlink(7) that tell of devices, addresses, routes, nexthops, neighbours and forwarding sysctls.
var groups = []int{
	unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE,
	unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF,
	unix.RTNLGRP_NEXTHOP,
}

func watch(d *Driver) (*watcher, error) {
	c, err := rtnetlink.Dial(noticeClose, groups...)
	if err != nil {
		return nil, err
	}
	if err := c.Ignore(d.conn); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	w := &watcher{d: d, conn: c, seen: map[int]linkState{}}
	w.done.Go(w.run)
	return w, nil
}

func (w *watcher) close() error {
	w.stop.Store(true)
	w.conn.Rouse()
	w.done.Wait()
	return w.conn.Close()
}

func (w *watcher) run() {
	for !w.stop.Load() {
		err := w.conn.Receive(w.handle)
		if err == nil || errors.Is(err, unix.EAGAIN) {
			continue
		}
		// ENOBUFS: more happened than the socket could hold. Whatever it was, it is read anew.
		w.d.opts.Log.Warn("lost notifications of the kernel; reading its tables again", "cause", causeNotificationsLost, "error", err)
		w.d.Distrust()
		w.d.wake()
		time.Sleep(lossPause)
	}
}

// causeNotificationsLost is a cause in the log.
const causeNotificationsLost = "notifications-lost"

// noticeClose is how long the watcher may take to notice Close where it is not roused.
const noticeClose = 500 * time.Millisecond

// lossPause keeps a storm, or a socket that is broken for good, from keeping us busy with nothing else.
const lossPause = 100 * time.Millisecond

func (w *watcher) handle(h rtnetlink.Header, body []byte) error {
	drift, err := false, error(nil)
	switch h.Kind {
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		drift, err = w.route(h, body)
	case unix.RTM_NEWNEXTHOP, unix.RTM_DELNEXTHOP:
		drift, err = w.nexthop(h.Kind == unix.RTM_NEWNEXTHOP, body)
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		drift, err = w.neigh(h.Kind == unix.RTM_NEWNEIGH, body)
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		drift, err = w.link(h.Kind == unix.RTM_NEWLINK, body)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		drift, err = w.address(body)
	case unix.RTM_NEWNETCONF:
		drift, err = w.netconf(body)
	}
	if err != nil {
		return fmt.Errorf("read notification %d: %w", h.Kind, err)
	}
	if drift {
		w.d.wake()
	}
	return nil
}

func (w *watcher) route(h rtnetlink.Header, body []byte) (bool, error) {
	present := h.Kind == unix.RTM_NEWROUTE
	r, ok, err := parseRoute(body)
	if err != nil || !ok {
		return false, err
	}
	r.hop = w.d.store.resolve(r)
	scope := w.d.scope.Load()
	if !scope.owns(r) && !w.d.routes.Wanted(r.key) {
		return false, nil
	}
	drift := w.d.routes.Observe(r.key, r.hop, present)
	if drift && present && h.Flags&unix.NLM_F_REPLACE == 0 {
		w.d.routes.Relist() // it may be one beside ours
	}
	return drift, nil
}

func (w *watcher) nexthop(present bool, body []byte) (bool, error) {
	id, protocol, h, err := parseNexthop(body)
	if err != nil {
		return false, err
	}
	key, tell, routes := w.d.store.observe(id, protocol, h, present)
	if !tell {
		return false, nil
	}
	if routes {
		w.d.routes.Relist()
		w.d.nexthops.Relist() // what replaced ours may still carry our protocol
	}
	return w.d.nexthops.Observe(key, struct{}{}, present && !routes) || routes, nil
}

func (w *watcher) neigh(present bool, body []byte) (bool, error) {
	n, ok, err := parseNeigh(body)
	if err != nil || !ok || !n.ip.IsValid() || !w.d.scope.Load().tunnels[n.index] {
		return false, err
	}
	if n.fam == unix.AF_BRIDGE {
		key := fdbKey{n.index, n.mac}
		if !n.permanent && !w.d.fdb.Wanted(key) {
			return false, nil // learned
		}
		return w.d.fdb.Observe(key, n.ip, present && n.permanent), nil
	}
	key := neighKey{n.index, n.ip}
	if !n.permanent && !w.d.neighs.Wanted(key) {
		return false, nil
	}
	return w.d.neighs.Observe(key, n.mac, present && n.permanent), nil
}

// link looks for a change of a device that is ours or the underlay. The kernel drops the routes and neighbours of a
// device that goes down without a word, so all tables are read again.
func (w *watcher) link(present bool, body []byte) (bool, error) {
	if len(body) < unix.SizeofIfInfomsg {
		return false, rtnetlink.ErrShort
	}
	if body[0] == unix.AF_BRIDGE {
		return false, nil // of its port in a bridge
	}
	index := int(int32(binary.NativeEndian.Uint32(body[4:])))
	state := linkState{up: binary.NativeEndian.Uint32(body[8:])&unix.IFF_UP != 0}
	for kind, value := range rtnetlink.Attrs(body[unix.SizeofIfInfomsg:]) {
		switch kind {
		case unix.IFLA_IFNAME:
			state.name = string(value[:max(0, len(value)-1)])
		case unix.IFLA_MTU:
			state.mtu = rtnetlink.Number(value)
		case unix.IFLA_ADDRESS:
			if len(value) == len(state.mac) {
				state.mac = mac.Addr(value)
			}
		}
	}
	concerned := w.d.scope.Load().links[index] || oursByName(state.name)
	old, known := w.seen[index]
	if !concerned && !known || present && known && old == state {
		return false, nil
	}
	if present && concerned {
		w.seen[index] = state
	} else {
		delete(w.seen, index)
	}
	w.d.suspectDevices()
	if known && present && old.up == state.up && old.name == state.name {
		return true, nil // MTU or address: its entries are still there
	}
	w.d.tables.Relist()
	return true, nil
}

// address: with its last address a device loses its routes, again without a word.
func (w *watcher) address(body []byte) (bool, error) {
	if len(body) < unix.SizeofIfAddrmsg {
		return false, rtnetlink.ErrShort
	}
	index := int(int32(binary.NativeEndian.Uint32(body[4:])))
	if _, seen := w.seen[index]; !w.d.scope.Load().links[index] {
		if seen { // a device of ours by its name; by its address it may be that of our network, too
			w.d.strayDevices.Store(true)
		}
		return seen, nil
	}
	for kind, value := range rtnetlink.Attrs(body[unix.SizeofIfAddrmsg:]) {
		if kind == unix.IFA_ADDRESS {
			if ip, ok := netip.AddrFromSlice(value); ok && ip.IsLinkLocalUnicast() {
				return false, nil
			}
		}
	}
	w.d.suspectDevices()
	w.d.tables.Relist()
	return true, nil
}

// netconf tells of a forwarding sysctl, of one device or of all.
func (w *watcher) netconf(body []byte) (bool, error) {
	const netconfaForwarding = 2 // NETCONFA_FORWARDING of linux/netconf.h
	if len(body) < 1 {
		return false, rtnetlink.ErrShort
	}
	for kind, value := range rtnetlink.Attrs(body[min(len(body), 4):]) {
		if kind == netconfaForwarding && rtnetlink.Number(value) == 0 {
			w.d.sysctlsDirty.Store(true)
			return true, nil
		}
	}
	return false, nil
}
