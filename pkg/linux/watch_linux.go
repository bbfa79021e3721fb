package linux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"flannel/pkg/dataplane"
	"flannel/pkg/linux/rtnetlink"
	"flannel/pkg/reconcile"
)

// watcher receives the kernel's notifications in a goroutine, that of its listener, which calls
// handle and lost. The loop calls watch, setDevices and close. What it finds, it leaves in the
// driver's tables and flags, which have locks or are atomic, for the next pass.
//
//	notification of           action
//	route, neighbour, FDB     Table.Observe
//	nexthop object            Table.Observe; if routes used it, list the routes
//	device, its addresses     mark devices dirty and, if the kernel may have deleted
//	                          entries without notifications, list all tables
//	carrier of the underlay   list nexthop objects and routes
//	sysctl of a device        mark devices or sysctls dirty, see netconf
//	address of this node's    mark sysctls dirty: pods' interfaces must forward
//	subnet, on any device
//	gateway of a former       mark bridges dirty, see formerBridges
//	subnet of this node,
//	or a port left a bridge
//	that has one
//
// If what it reads differs from the desired state (drift), or must be read again, it notifies
// the daemon's loop by Driver.changes, whose next pass repairs it. A filter on the socket drops
// the notifications of neighbours and FDB entries of other devices than our tunnels, and of our
// own writes, except those of FDB entries, for which the kernel does not report the writer.
type watcher struct {
	d        *Driver
	listener *rtnetlink.Listener
	// last has our devices, those with a name that flannel gives, and the underlay, by index, as of their
	// last notifications. It is for the listener's goroutine alone.
	last map[int]linkState
	// addrs has the flags of addresses of our devices and the underlay, as of their last notifications.
	// It is for the listener's goroutine alone, and so is problem.
	addrs   map[addrKey]uint8
	problem reconcile.Once // of logged losses; is told only errors, so that each is repeated hourly
}

// addrKey identifies an address of a device. On a point-to-point device, ip is the peer's, and
// local is ours.
type addrKey struct {
	index     int
	ip, local netip.Addr
	bits      uint8 // the prefix length
}

// linkState holds the properties of a device whose changes matter, unlike those
// of counters or a tunnel's carrier.
type linkState struct {
	name string
	up   bool
	mtu  uint32
	mac  dataplane.MAC
	data string // a tunnel's own properties, such as its local address

	// operState is the operational state of the underlay (IF_OPER_*), 0 for a tunnel. The kernel changes it just
	// before it deletes the nexthop objects at a loss of carrier. The flag of the carrier changes earlier: an
	// unrelated notification in between would show it, and hide the deletion that follows.
	operState uint8
}

// groups are the multicast groups of rtnetlink(7) for the notifications above.
var groups = []int{
	unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE,
	unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF,
	unix.RTNLGRP_NEXTHOP,
}

// watch subscribes to the notifications, and starts the goroutine. The caller closes the
// watcher. There are no devices of ours yet, for the filter: Ensure sets them.
func watch(d *Driver) (*watcher, error) {
	w := &watcher{d: d, last: map[int]linkState{}, addrs: map[addrKey]uint8{}, problem: reconcile.Once{Repeat: repeatLog}}
	filter, err := w.filter(nil)
	if err != nil {
		return nil, err
	}
	w.listener, err = rtnetlink.Listen(rtnetlink.Notifications{Protocol: unix.NETLINK_ROUTE, Groups: groups, Filter: filter,
		Each: w.handle, Lost: w.lost, Log: d.opts.Log.With("cause", causeNotificationsLost)})
	return w, err
}

// filter returns a filter that drops the notifications of what the driver writes, and of
// neighbours and FDB entries of other devices than those with these indexes (nil: of all
// devices): the neighbours of pods and of the underlay change all the time.
func (w *watcher) filter(devices []int) ([]unix.SockFilter, error) {
	port, err := w.d.conn.Port()
	if err != nil {
		return nil, err
	}
	return append(rtnetlink.WithoutNeighbours(devices), rtnetlink.WithoutSender(port)...), nil
}

// setDevices sets the devices whose neighbours and FDB entries are received. If that fails, those
// of all devices are, and our own writes: the old filter would drop those of new devices.
func (w *watcher) setDevices(indexes []int) {
	filter, err := w.filter(indexes)
	if err == nil {
		err = w.listener.SetFilter(filter)
	}
	if err != nil {
		err = errors.Join(err, w.listener.SetFilter(nil))
		w.d.opts.Log.Warn("cannot filter notifications of the kernel, receiving all of them", "cause", causeNoFilter, "error", err)
	}
}

func (w *watcher) close() error { return w.listener.Close() }

// lost makes the loop list everything again, because notifications may be missing: the socket
// was full (ENOBUFS) or failed, or handle has returned an error. The listener has logged other
// errors than ENOBUFS. QueueResync may be called beside the loop: it only sets flags.
func (w *watcher) lost(err error) {
	if errors.Is(err, unix.ENOBUFS) && w.problem.Due(err, time.Now()) {
		w.d.opts.Log.Warn("lost notifications of the kernel, listing its tables again", "cause", causeNotificationsLost, "error", err)
	}
	clear(w.addrs) // so that the next notification of each address counts
	w.d.QueueResync()
	reconcile.Notify(w.d.changes)
}

// Causes in the log.
const (
	causeNotificationsLost = "notifications-lost"
	causeNoFilter          = "notifications-unfiltered"
)

// repeatLog is after what time the warning about lost notifications is repeated.
const repeatLog = time.Hour

// handle handles one notification. The methods that it calls return whether there is
// drift, so that a pass is due. After an error, the listener calls lost.
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
		drift, err = w.address(h.Kind == unix.RTM_NEWADDR, body)
	case unix.RTM_NEWNETCONF:
		drift, err = w.netconf(body)
	}
	if err != nil {
		return fmt.Errorf("read notification %d: %w", h.Kind, err)
	}
	if drift {
		reconcile.Notify(w.d.changes)
	}
	return nil
}

// route handles a changed route. A route of others matters only if it is in the place of
// one of ours, or, while diverting is set, if it leads into our networks.
func (w *watcher) route(h rtnetlink.Header, body []byte) (drift bool, err error) {
	present := h.Kind == unix.RTM_NEWROUTE
	r, ok, err := parseRoute(body)
	if err != nil || !ok {
		return false, err
	}
	r.hop = w.d.store.resolve(r) // that of its nexthop object, if it has one; store has these objects
	scope := w.d.scope.Load()
	if !scope.owns(r) && !w.d.routes.Wanted(r.key) {
		if w.d.diverting.Load() && dataplane.Inside(r.key.Dst, scope.networks) { // diverting: see tun.diverted
			w.d.routes.Relist() // the list also finds the routes of others
			return true, nil
		}
		return false, nil
	}
	r.hop.OtherObject = w.d.store.usesOther(r)
	drift = w.d.routes.Observe(r.key, r.hop, present)
	if drift && present && h.Flags&unix.NLM_F_REPLACE == 0 { // it replaced nothing
		w.d.routes.Relist() // ours may still exist, before or behind it: only a list says so
	}
	return drift, nil
}

// nexthop handles a changed nexthop object; see nexthopStore.observe. present is false if it
// was deleted, here and below.
func (w *watcher) nexthop(present bool, body []byte) (drift bool, err error) {
	id, protocol, h, err := parseNexthop(body)
	if err != nil {
		return false, err
	}
	key, ours, routesLost := w.d.store.observe(id, protocol, h, present) // ours: the table's entry key has changed
	if routesLost {
		w.d.routes.Relist()
		w.d.nexthops.Relist() // an object that replaced ours may have our protocol
	}
	if ours {
		drift = w.d.nexthops.Observe(key, struct{}{}, present && !routesLost)
	}
	return drift || routesLost, nil
}

// neigh handles a changed neighbour or FDB entry. One that is not permanent is not ours, but
// may have replaced ours: then ours is gone.
func (w *watcher) neigh(present bool, body []byte) (drift bool, err error) {
	n, ok, err := parseNeigh(body)
	if err != nil || !ok || !n.ip.IsValid() || !w.d.scope.Load().tunnels[n.index] { // tunnels: our devices
		return false, err
	}
	if n.fam == unix.AF_BRIDGE {
		key := fdbKey{n.index, n.mac}
		if !n.permanent && !w.d.fdb.Wanted(key) {
			return false, nil // learned from a packet
		}
		return w.d.fdb.Observe(key, n.ip, present && n.permanent), nil
	}
	key := neighKey{n.index, n.ip}
	if !n.permanent && !w.d.neighs.Wanted(key) {
		return false, nil
	}
	return w.d.neighs.Observe(key, n.mac, present && n.permanent), nil
}

// link handles changes of our devices and of the underlay. body is struct ifinfomsg, with the
// index at byte 4 and the flags at byte 8, and attributes. When a device goes down, the kernel
// deletes its routes and neighbours without notifications, so all tables are listed again.
// When a device loses its carrier, the kernel deletes its nexthop objects likewise, with the
// routes that use them. When the carrier returns, the objects can be made again. If it returns and is lost
// again within a second, the kernel may report that as one change, with the same state: so each notification
// of an underlay without a carrier may follow a deletion.
func (w *watcher) link(present bool, body []byte) (drift bool, err error) {
	if len(body) < unix.SizeofIfInfomsg {
		return false, rtnetlink.ErrShort
	}
	if body[0] == unix.AF_BRIDGE { // about its port in a bridge
		if present {
			return false, nil
		}
		return w.d.bridges.observePortLeft(), nil
	}
	index := int(int32(binary.NativeEndian.Uint32(body[4:])))
	flags := binary.NativeEndian.Uint32(body[8:])
	old, known := w.last[index]
	state := old // notifications of wireless extensions lack most attributes
	state.up = flags&unix.IFF_UP != 0
	flushed := false // the kernel may have deleted nexthop objects
	scope := w.d.scope.Load()
	for kind, value := range rtnetlink.Attrs(body[unix.SizeofIfInfomsg:]) {
		switch kind {
		case unix.IFLA_IFNAME:
			state.name = unix.ByteSliceToString(value)
		case unix.IFLA_MTU:
			state.mtu = rtnetlink.Number(value)
		case unix.IFLA_ADDRESS:
			if len(value) == len(state.mac) {
				state.mac = dataplane.MAC(value)
			}
		case unix.IFLA_LINKINFO:
			state.data = tunnelData(value)
		case unix.IFLA_OPERSTATE:
			if len(value) == 1 && scope.links[index] && !scope.tunnels[index] {
				state.operState = value[0]
				// the kernel's condition for the deletion
				flushed = state.up && flags&(unix.IFF_RUNNING|unix.IFF_LOWER_UP) == 0
			}
		}
	}
	// scope.links are our devices and the underlay. A device with a name of ours that is not in
	// the scope is one that Ensure has just made, or a stray one: of a former configuration.
	relevant := scope.links[index] || isOurName(state.name)
	// known, but not relevant: it was one of these, or had such a name
	if !relevant && !known || present && known && old == state && !flushed {
		return false, nil // it does not matter, or nothing that matters has changed
	}
	if present && relevant {
		w.last[index] = state
	} else {
		delete(w.last, index)
	}
	if flushed || old.operState != state.operState {
		w.d.nexthops.Relist()
		w.d.routes.Relist()
	}
	old.operState = state.operState
	if known && present && old == state {
		return true, nil // only the carrier: the device and other entries are as they were
	}
	w.d.markDirty()
	if known && present && old.up == state.up && old.name == state.name {
		return true, nil // only properties: the entries still exist
	}
	clear(w.addrs) // another device may get the index, and IPv6 checks addresses that stayed for duplicates again
	w.d.tables.Relist()
	return true, nil
}

// tunnelData returns the properties of a tunnel in IFLA_LINKINFO, as the kernel encodes them:
// they are only compared. Those of other kinds of device, such as a bridge, also change by
// themselves, and are left out: the result is "".
func tunnelData(info []byte) (data string) {
	tunnel := false
	for kind, value := range rtnetlink.Attrs(info) {
		switch kind {
		case unix.IFLA_INFO_KIND:
			name := unix.ByteSliceToString(value)
			tunnel = slices.ContainsFunc(kindRows, func(row kindRow) bool { return row.watched != "" && row.watched == name })
		case unix.IFLA_INFO_DATA:
			data = string(value)
		}
	}
	if !tunnel {
		return ""
	}
	return data
}

// address handles changed addresses. When one of our devices or the underlay loses its last
// address, the kernel deletes its routes without notifications. A notification that repeats a known
// address does not matter: only its lifetime has changed, as at each router advertisement or
// renewal by DHCP. Addresses of other devices matter if the device has a name of ours or is a
// pods' interface, to the guard, and to the bridges of former subnets. body is struct ifaddrmsg,
// with the prefix length at byte 1, the flags at byte 2 and the index at byte 4, and attributes.
func (w *watcher) address(present bool, body []byte) (drift bool, err error) {
	if len(body) < unix.SizeofIfAddrmsg {
		return false, rtnetlink.ErrShort
	}
	index, attrs := int(int32(binary.NativeEndian.Uint32(body[4:]))), body[unix.SizeofIfAddrmsg:]
	ip := rtnetlink.Address(rtnetlink.Attr(attrs, unix.IFA_ADDRESS))
	local := rtnetlink.Address(rtnetlink.Attr(attrs, unix.IFA_LOCAL)) // differs from ip on a point-to-point device
	key, flags := addrKey{index: index, ip: ip, local: local, bits: body[1]}, body[2]
	old, repeated := w.addrs[key]
	delete(w.addrs, key)
	if _, known := w.last[index]; !w.d.scope.Load().links[index] { // neither ours nor the underlay
		if known { // it has a name of ours; with the new address it may belong to our network
			w.d.strays.Store(true) // so that pruneStrays looks at it
		}
		ofPods := slices.ContainsFunc(w.d.scope.Load().subnets, func(s netip.Prefix) bool { return s.Contains(ip) })
		if ofPods {
			w.d.sysctls.dirty.Store(true)
		}
		ofGuard := w.d.guard.observeAddr(ip) || w.d.guard.observeAddr(local)
		ofFormer := w.d.bridges.observeAddr(ip)
		return known || ofPods || ofGuard || ofFormer, nil
	}
	if ip.IsLinkLocalUnicast() {
		return false, nil // the kernel gives a device such an address by itself
	}
	if present {
		w.addrs[key] = flags
		if repeated && old == flags {
			return false, nil
		}
	}
	w.d.markDirty()
	w.d.tables.Relist()
	return true, nil
}

// netconf handles changes of the sysctls forwarding and rp_filter. Our own writes lead
// to values on which nothing is to be done.
//
//	device       change                            action
//	ours         forwarding off, rp_filter strict  mark devices dirty
//	"all"        rp_filter strict                  mark devices dirty
//	any other    forwarding off                    mark sysctls dirty
//	any          forwarding on, while the last     mark sysctls dirty
//	             check of sysctls had an error
func (w *watcher) netconf(body []byte) (drift bool, err error) {
	const ( // of linux/netconf.h
		netconfaIndex, netconfaForwarding, netconfaRPFilter = 1, 2, 3
		all                                                 = -1 // NETCONFA_IFINDEX_ALL
		strict                                              = 1  // of rp_filter
		lenNetconfmsg                                       = 4  // one byte and padding
	)
	if len(body) < 1 {
		return false, rtnetlink.ErrShort
	}
	index, forwarding, rpFilter := 0, -1, -1 // -1: unchanged
	for kind, value := range rtnetlink.Attrs(body[min(len(body), lenNetconfmsg):]) {
		n := int(int32(rtnetlink.Number(value)))
		switch kind {
		case netconfaIndex:
			index = n
		case netconfaForwarding:
			forwarding = n
		case netconfaRPFilter:
			rpFilter = n
		}
	}
	ours := w.d.scope.Load().tunnels[index]
	switch {
	case ours && forwarding == 0, (ours || index == all) && rpFilter == strict:
		w.d.dirty.Store(true)
		return true, nil
	case forwarding == 0, forwarding == 1 && w.d.sysctls.blocked.Load():
		w.d.sysctls.dirty.Store(true)
		return true, nil
	}
	return false, nil
}
