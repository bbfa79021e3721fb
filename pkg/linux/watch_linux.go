package linux

import (
	"errors"
	"fmt"
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
