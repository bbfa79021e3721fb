package linux

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"flannel/pkg/dataplane"
	"flannel/pkg/linux/rtnetlink"
)

// Here are the handlers of watcher (watch_linux.go) for devices, their addresses and their sysctls.

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
