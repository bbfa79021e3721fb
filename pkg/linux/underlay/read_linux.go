// Package underlay reads the interfaces and routes of Linux for the choice of package underlay beside package linux, and
// watches them.
package underlay

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"flannel/pkg/linux/rtnetlink"
	"flannel/pkg/underlay"
)

// Read reads a Snapshot of the network namespace of the calling goroutine's thread, for a choice of the underlay.
// Of o, it uses CanReach alone. After an error, the daemon keeps its last choice, and tries again.
func Read(o underlay.Options) (underlay.Snapshot, error) {
	links, err := rtnetlink.Whole(netlink.LinkList)
	if err == nil && len(links) == 0 {
		err = errors.New("no device, not even lo")
	}
	if err != nil {
		return underlay.Snapshot{}, fmt.Errorf("list links: %w", err)
	}
	addrs, err := rtnetlink.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return underlay.Snapshot{}, fmt.Errorf("list addresses: %w", err)
	}
	routes, err := listRoutes()
	if err != nil {
		return underlay.Snapshot{}, fmt.Errorf("list routes: %w", err)
	}
	// The lists of links, of addresses and of the routes of IPv4 and of IPv6, and each nexthop object are from
	// different moments. An address or a route of a device that is not in the first list is left out. Watch notifies of the new device, so that
	// its caller calls Read again.
	var s underlay.Snapshot
	for _, l := range links {
		in := toInterface(l.Attrs())
		in.Veth = l.Type() == "veth"
		s.Interfaces = append(s.Interfaces, in)
	}
	slices.SortFunc(s.Interfaces, func(a, b underlay.Interface) int { return cmp.Compare(a.Index, b.Index) })
	for _, a := range addrs {
		if in := s.ByIndex(a.LinkIndex); in != nil {
			in.Addrs = append(in.Addrs, toAddr(a))
		}
	}
	for i := range s.Interfaces { // the first of several equal addresses is chosen
		s.Interfaces[i].Addrs = oldestFirst(s.Interfaces[i].Addrs)
	}
	for _, r := range routes {
		addRoute(&s, r)
	}
	if o.CanReach.IsValid() {
		if s.Reach, err = reach(o.CanReach); err != nil {
			return underlay.Snapshot{}, fmt.Errorf("look up the route to %s: %w", o.CanReach, err)
		}
	}
	return s, nil
}

// toInterface converts a device, without its addresses and routes. Up is IFF_UP, not
// IFF_RUNNING: an unplugged cable shall not make the node choose another underlay.
func toInterface(a *netlink.LinkAttrs) underlay.Interface {
	in := underlay.Interface{
		Name: a.Name, AltNames: a.AltNames, Index: a.Index, MTU: a.MTU,
		Up: a.RawFlags&unix.IFF_UP != 0, Loopback: a.RawFlags&unix.IFF_LOOPBACK != 0,
	}
	if len(a.HardwareAddr) == len(in.MAC) {
		copy(in.MAC[:], a.HardwareAddr)
	}
	return in
}

// toAddr converts an address. An optimistic one (RFC 4429) is usable while duplicate
// address detection still runs, therefore it is not Tentative.
func toAddr(a netlink.Addr) underlay.Addr {
	ip := rtnetlink.AddrOf(a.IP)
	addr := underlay.Addr{
		IP:         ip,
		Global:     a.Scope == unix.RT_SCOPE_UNIVERSE,
		Deprecated: a.Flags&unix.IFA_F_DEPRECATED != 0,
		Tentative:  a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 && a.Flags&unix.IFA_F_OPTIMISTIC == 0,
	}
	// Two kinds of single addresses are no Host: those of DHCP, which have a lifetime (they are not permanent), and
	// that of a point-to-point link, which has a Peer.
	ones, bits := a.Mask.Size()
	addr.Host = ones == bits && a.Peer == nil && a.Flags&unix.IFA_F_PERMANENT != 0
	// IFA_F_SECONDARY and IFA_F_TEMPORARY are the same bit.
	if bit := a.Flags&unix.IFA_F_SECONDARY != 0; ip.Is4() {
		addr.Secondary = bit
	} else {
		addr.Temporary = bit
	}
	// The network is on-link by the address alone, unless the kernel was told to make
	// no route for it. On a point-to-point link, what is on-link is the other end.
	if a.Flags&unix.IFA_F_NOPREFIXROUTE == 0 {
		n := a.IPNet
		if a.Peer != nil {
			n = a.Peer
		}
		if p := rtnetlink.PrefixOf(n).Masked(); a.Peer != nil || p.Bits() < ip.BitLen() { // else it is the address itself
			addr.Net = p
		}
	}
	return addr
}

// oldestFirst reverses IPv6 addresses, which the kernel lists newest first. It
// lists IPv4 addresses oldest first.
func oldestFirst(addrs []underlay.Addr) []underlay.Addr {
	var v4, v6 []underlay.Addr
	for _, a := range addrs {
		if a.IP.Is4() {
			v4 = append(v4, a)
		} else {
			v6 = append(v6, a)
		}
	}
	slices.Reverse(v6)
	return append(v4, v6...)
}

// reach looks up the route to an address (--iface-can-reach). If the kernel answers that there
// is none, that is a Problem, not an error. The zero Reach means that the answer was empty; the
// choice treats it like one without a route.
func reach(to netip.Addr) (underlay.Reach, error) {
	// The netlink library cannot read some routes, such as those with segment routing and a key.
	request := nl.NewNetlinkRequest(unix.RTM_GETROUTE, 0)
	request.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{Family: rtnetlink.Family(to), Dst_len: uint8(to.BitLen())}})
	request.AddData(nl.NewRtAttr(unix.RTA_DST, to.AsSlice()))
	answers, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWROUTE)
	switch {
	case rtnetlink.NoRoute(err):
		return underlay.Reach{Problem: err.Error()}, nil
	case err != nil:
		return underlay.Reach{}, err
	case len(answers) == 0 || len(answers[0]) < unix.SizeofRtMsg:
		return underlay.Reach{}, nil
	}
	r := parseRoute(answers[0])
	return underlay.Reach{Index: r.hops[0].index, Source: r.source}, nil // the answer has the hop that the kernel takes
}
