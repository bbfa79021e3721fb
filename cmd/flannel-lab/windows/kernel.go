package windows

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flannel/internal/test/hnstest"
	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
)

// kernel is the Body of a machine that acts on the network namespace of this
// process: the hnstest.Machine decides what Windows would do, calls one of these
// methods for each change, with itself locked, and only records their errors (see
// Machine.Trouble). It translates:
//
//   - an adapter to a device whose alias is the Windows name;
//   - the virtual adapter of a switch to a bridge with the physical adapter as
//     its port;
//   - an overlay network to a VXLAN device, whose MAC is that of HNS' distributed
//     router;
//   - a remote subnet to a route, a neighbour entry and an FDB entry of that
//     device;
//   - an endpoint that is not attached to the host to an address, so that it
//     answers pings.
type kernel struct {
	// priorities are those of the routes that Route has added, by their keys: on Linux, routes to one
	// destination need different ones. The lock of the machine guards it.
	priorities map[rowKey]int
}

// rowKey is the key of a route in Windows.
type rowKey struct {
	dst   netip.Prefix
	hop   netip.Addr
	index int
}

// Add makes a device for a virtual adapter and returns its index. parent is the index of
// the physical adapter that becomes its port; 0: none. After an error, an index other than
// 0 is that of a device that exists nevertheless.
func (k *kernel) Add(a hns.Adapter, parent int) (int, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = freeName(), a.MTU
	if a.MAC != (dataplane.MAC{}) {
		attrs.HardwareAddr = a.MAC[:]
	}
	// An adapter without a parent is a bridge without ports, because not every
	// kernel has dummy devices.
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	if err := netlink.LinkAdd(bridge); err != nil {
		return 0, err
	}
	if err := netlink.LinkSetAlias(bridge, a.Name); err != nil {
		return bridge.Index, err
	}
	if parent != 0 {
		port, err := netlink.LinkByIndex(parent)
		if err == nil {
			err = netlink.LinkSetMaster(port, bridge)
		}
		if err != nil {
			return bridge.Index, err
		}
	}
	return bridge.Index, netlink.LinkSetUp(bridge)
}

// freeName returns a device name that is not in use. Windows' names, which may be long
// and have blanks, are aliases.
func freeName() string {
	for i := 1; ; i++ {
		name := fmt.Sprintf("vEthernet%d", i)
		if _, err := net.InterfaceByName(name); err != nil {
			return name
		}
	}
}

// Remove deletes the device of a virtual adapter. Its port stays.
func (k *kernel) Remove(index int) error {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return err
	}
	return netlink.LinkDel(l)
}

// Rename gives an adapter another Windows name. The device keeps its own.
func (k *kernel) Rename(index int, name string) error {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return err
	}
	return netlink.LinkSetAlias(l, name)
}

// Address adds or deletes an address. That it is gone already is no error.
func (k *kernel) Address(index int, p netip.Prefix, add bool) error {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return err
	}
	addr := &netlink.Addr{IPNet: toIPNet(p)}
	if add {
		return netlink.AddrReplace(l, addr)
	}
	if err := netlink.AddrDel(l, addr); !errors.Is(err, unix.EADDRNOTAVAIL) {
		return err
	}
	return nil
}

// Route adds or deletes a route. The priority on Linux is the metric in Windows plus that
// of the adapter, or the next higher one that no route to the destination has.
func (k *kernel) Route(r hns.Route, add bool) error {
	key := rowKey{r.Dst, r.NextHop, r.Index}
	row := &netlink.Route{LinkIndex: r.Index, Dst: toIPNet(r.Dst), Protocol: unix.RTPROT_STATIC}
	if !r.NextHop.IsUnspecified() {
		// Windows accepts next hops that are in no subnet of the adapter, and
		// resolves them on the adapter.
		row.Gw, row.Flags = r.NextHop.AsSlice(), int(netlink.FLAG_ONLINK)
	} else if r.Dst.Addr().Is4() {
		row.Scope = netlink.SCOPE_LINK
	}
	if !add {
		row.Priority = k.priorities[key]
		delete(k.priorities, key)
		if err := netlink.RouteDel(row); !errors.Is(err, unix.ESRCH) {
			return err
		}
		return nil // the kernel deleted it with its device or address
	}
	// Windows accepts two routes that differ in the next hop alone, which Linux would
	// replace by each other if they had the same priority.
	taken := map[int]bool{}
	for other, priority := range k.priorities {
		taken[priority] = taken[priority] || other.dst == r.Dst
	}
	for row.Priority = r.Metric + hnstest.UsualMetric; taken[row.Priority]; row.Priority++ {
	}
	k.priorities[key] = row.Priority
	return netlink.RouteReplace(row)
}

// Forwarding switches the forwarding of an interface on or off.
func (k *kernel) Forwarding(index int, v6, on bool) error {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return err
	}
	name, value := "ipv4/conf/"+l.Attrs().Name+"/forwarding", "0"
	if on {
		value = "1"
	}
	if v6 { // on Linux only that of all devices makes a node forward
		name = "ipv6/conf/all/forwarding"
	}
	return sysctl(name, value)
}

// Cut closes all TCP connections from an address. Linux itself would keep them until
// they time out.
func (k *kernel) Cut(from netip.Addr) error {
	family := uint8(unix.AF_INET)
	if from.Is6() {
		family = unix.AF_INET6
	}
	sockets, err := netlink.SocketDiagTCP(family)
	if err != nil {
		return err
	}
	for _, s := range sockets {
		if s.ID.Destination == nil || !s.ID.Source.Equal(from.AsSlice()) || s.ID.DestinationPort == 0 {
			continue // another address, or a socket that listens
		}
		local, remote := net.TCPAddr{IP: s.ID.Source, Port: int(s.ID.SourcePort)}, net.TCPAddr{IP: s.ID.Destination, Port: int(s.ID.DestinationPort)}
		if e := netlink.SocketDestroy(&local, &remote); !errors.Is(e, unix.ENOENT) { // it ended after it was listed
			err = errors.Join(err, e)
		}
	}
	return err // EOPNOTSUPP if the kernel lacks CONFIG_INET_DIAG_DESTROY
}

// carrier returns the name of the device of an overlay network, which is given by its
// ID: "hns" and its first eight digits, as device names have 15 bytes at most.
func carrier(network string) string { return "hns" + strings.ReplaceAll(network, "-", "")[:8] }

// Overlay adds or deletes the VXLAN device of an overlay network.
func (k *kernel) Overlay(o hnstest.Overlay, add bool) error {
	if !add {
		l, err := netlink.LinkByName(carrier(o.Network))
		if err != nil {
			return err
		}
		return netlink.LinkDel(l)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr, attrs.MTU = carrier(o.Network), o.MAC[:], o.MTU
	device := &netlink.Vxlan{LinkAttrs: attrs, VxlanId: int(o.VSID), Port: int(o.Port), SrcAddr: o.Local.AsSlice()}
	if err := netlink.LinkAdd(device); err != nil {
		return err
	}
	// Linux deletes the routes of a device with its last address, and HNS does not
	// delete a network's with its last endpoint. Nothing is sent from an address of
	// scope host.
	keep := &netlink.Addr{IPNet: toIPNet(netip.MustParsePrefix("169.254.255.254/32")), Scope: unix.RT_SCOPE_HOST}
	return errors.Join(netlink.AddrAdd(device, keep), netlink.LinkSetUp(device))
}

// Remote adds or deletes the entries that lead to the subnet of a peer: a route through the
// first address of the subnet, the neighbour with this address and the MAC of the peer's
// VTEP, and the FDB entry of that MAC with the peer's address on the underlay (Provider).
func (k *kernel) Remote(network string, r hns.RemoteSubnet, add bool) error {
	l, err := netlink.LinkByName(carrier(network))
	if err != nil {
		return err
	}
	hop, index := r.Prefix.Addr(), l.Attrs().Index
	fdb := &netlink.Neigh{
		LinkIndex: index, Family: unix.AF_BRIDGE, Flags: netlink.NTF_SELF,
		State: netlink.NUD_PERMANENT | netlink.NUD_NOARP,
		IP:    r.Provider.AsSlice(), HardwareAddr: r.MAC[:],
	}
	neighbour := &netlink.Neigh{LinkIndex: index, State: netlink.NUD_PERMANENT, IP: hop.AsSlice(),
		HardwareAddr: r.MAC[:]}
	route := &netlink.Route{LinkIndex: index, Dst: toIPNet(r.Prefix), Protocol: unix.RTPROT_STATIC}
	if r.Prefix.IsSingleIP() { // the destination is itself the neighbour
		route.Scope = netlink.SCOPE_LINK
	} else {
		route.Gw, route.Flags = hop.AsSlice(), int(netlink.FLAG_ONLINK)
	}
	// The route is added last and deleted first, so that it never lacks its
	// neighbour.
	if add {
		return errors.Join(netlink.NeighSet(fdb), netlink.NeighSet(neighbour), netlink.RouteReplace(route))
	}
	return errors.Join(netlink.RouteDel(route), netlink.NeighDel(neighbour), netlink.NeighDel(fdb))
}

// Pod adds or deletes the address of an endpoint of a network, which is given by its ID.
func (k *kernel) Pod(network string, addr netip.Addr, add bool) error {
	l, err := netlink.LinkByName(carrier(network))
	if err != nil { // not an overlay, so the network has no device
		if l, err = netlink.LinkByName("lo"); err != nil {
			return err
		}
	}
	return k.Address(l.Attrs().Index, netip.PrefixFrom(addr, addr.BitLen()), add)
}

// Close does nothing: the devices end with the network namespace.
func (k *kernel) Close() error { return nil }
