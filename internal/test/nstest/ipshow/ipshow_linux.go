// Package ipshow returns what ip(8) and bridge(8) print, for tests that look at the
// kernel again and again. It reads from the network namespace of the calling thread by
// netlink, without starting a program, which an emulated processor takes 90 ms for.
//
// The lines are those of the programs, except that they lack what differs between two
// equal states: IDs of nexthop objects, timers, the preference of IPv6 routes and
// whether a device has a carrier.
package ipshow

import (
	"encoding/binary"
	"fmt"
	"iter"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"flannel/pkg/linux/rtnetlink"
)

// names returns the names of all devices by index. Here and below, rtnetlink.Whole repeats a
// list that a change in the kernel has interrupted, so that it is complete.
func names() (map[int]string, error) {
	links, err := rtnetlink.Whole(netlink.LinkList)
	byIndex := map[int]string{}
	for _, l := range links {
		byIndex[l.Attrs().Index] = l.Attrs().Name
	}
	return byIndex, err
}

// Routes returns the main tables of both families, as `ip route show` and `ip -6 route
// show` print them.
func Routes() (lines []string, err error) {
	devices, err := names()
	if err != nil {
		return nil, err
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := rtnetlink.Whole(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for _, r := range routes {
			lines = append(lines, route(r, devices))
		}
	}
	return lines, nil
}

var (
	routeTypes = map[int]string{unix.RTN_BLACKHOLE: "blackhole", unix.RTN_UNREACHABLE: "unreachable",
		unix.RTN_PROHIBIT: "prohibit", unix.RTN_THROW: "throw", unix.RTN_LOCAL: "local", unix.RTN_BROADCAST: "broadcast",
		unix.RTN_ANYCAST: "anycast", unix.RTN_MULTICAST: "multicast"}
	protocols = map[int]string{unix.RTPROT_KERNEL: "kernel", unix.RTPROT_STATIC: "static", unix.RTPROT_RA: "ra",
		unix.RTPROT_DHCP: "dhcp"}
	scopes = map[netlink.Scope]string{netlink.SCOPE_LINK: "link", netlink.SCOPE_HOST: "host", netlink.SCOPE_SITE: "site",
		netlink.SCOPE_NOWHERE: "nowhere"}
)

// route returns the line of a route. devices are the names by index.
func route(r netlink.Route, devices map[int]string) string {
	var b strings.Builder
	word := func(present bool, format string, args ...any) {
		if present {
			fmt.Fprintf(&b, format, args...)
		}
	}
	word(r.Type != unix.RTN_UNICAST, "%s ", routeTypes[r.Type])
	b.WriteString(destination(r.Dst))
	word(r.Encap != nil, " encap %v", r.Encap)
	word(r.Tos != 0, " tos %#02x", r.Tos)
	word(r.Gw != nil, " via %s", r.Gw)
	word(r.Via != nil, " via %v", r.Via)
	word(r.LinkIndex != 0, " dev %s", devices[r.LinkIndex])
	switch protocol, named := protocols[int(r.Protocol)]; {
	case named:
		word(true, " proto %s", protocol)
	default:
		word(r.Protocol != unix.RTPROT_BOOT, " proto %d", int(r.Protocol))
	}
	word(r.Scope != netlink.SCOPE_UNIVERSE && r.Type == unix.RTN_UNICAST, " scope %s", scopes[r.Scope])
	word(r.Src != nil, " src %s", r.Src)
	word(r.Priority != 0, " metric %d", r.Priority)
	word(r.Flags&unix.RTNH_F_DEAD != 0, " dead")
	word(r.Flags&unix.RTNH_F_ONLINK != 0, " onlink")
	word(r.MTU != 0, " mtu %d", r.MTU)
	word(r.AdvMSS != 0, " advmss %d", r.AdvMSS)
	for _, hop := range r.MultiPath {
		word(true, " nexthop via %s dev %s weight %d", hop.Gw, devices[hop.LinkIndex], hop.Hops+1)
	}
	return b.String()
}

// destination returns a prefix as ip prints it: an address without /32 or /128.
func destination(p *net.IPNet) string {
	if p == nil {
		return "default"
	}
	switch ones, bits := p.Mask.Size(); ones {
	case 0:
		return "default"
	case bits:
		return p.IP.String()
	default:
		return p.String()
	}
}

// Nexthops returns the nexthop objects with a protocol, as `ip nexthop show proto P`
// prints them, without their IDs; nothing on a kernel without such objects.
func Nexthops(protocol uint8) ([]string, error) {
	devices, err := names()
	if err != nil {
		return nil, err
	}
	request := nl.NewNetlinkRequest(unix.RTM_GETNEXTHOP, unix.NLM_F_DUMP)
	request.AddRawData(make([]byte, unix.SizeofNhmsg))
	answers, err := rtnetlink.Whole(func() ([][]byte, error) {
		return request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEXTHOP)
	})
	if err != nil {
		return nil, fmt.Errorf("list nexthop objects: %w", err)
	}
	var lines []string
	for _, m := range answers { // struct nhmsg: family, scope, protocol, reserved, flags; then attributes
		scope, proto, flags := m[1], m[2], binary.NativeEndian.Uint32(m[4:8])
		if proto != protocol {
			continue
		}
		lines = append(lines, nexthop(rtnetlink.Attrs(m[unix.SizeofNhmsg:]), devices, scope, proto, flags))
	}
	return lines, nil
}

// nexthop returns the line of a nexthop object.
func nexthop(attrs iter.Seq2[uint16, []byte], devices map[int]string, scope, protocol uint8, flags uint32) string {
	var words []string
	for kind, value := range attrs {
		switch kind {
		case unix.NHA_ID: // differs between two equal states
		case unix.NHA_GATEWAY:
			words = append(words, "via "+rtnetlink.Address(value).String())
		case unix.NHA_OIF:
			words = append(words, "dev "+devices[int(rtnetlink.Number(value))])
		default: // of an object that is not ours
			words = append(words, fmt.Sprintf("attribute %d %x", kind, value))
		}
	}
	slices.SortFunc(words, func(a, b string) int { return strings.Compare(b, a) }) // via, dev
	if name := scopes[netlink.Scope(scope)]; name != "" {
		words = append(words, "scope "+name)
	}
	words = append(words, fmt.Sprintf("proto %d", protocol))
	if flags&unix.RTNH_F_ONLINK != 0 {
		words = append(words, "onlink")
	}
	return strings.Join(words, " ")
}

// Neighbours returns the permanent neighbours of a device, as `ip neigh show dev DEVICE
// nud permanent` prints them.
func Neighbours(device string) ([]string, error) {
	return neighbours(device, netlink.FAMILY_ALL, func(n netlink.Neigh) string {
		if n.State&netlink.NUD_PERMANENT == 0 {
			return ""
		}
		line := n.IP.String() + lladdr(n)
		if n.Flags&netlink.NTF_PROXY != 0 {
			line += " proxy"
		}
		if n.Flags&netlink.NTF_EXT_LEARNED != 0 {
			line += " extern_learn"
		}
		return line + " PERMANENT"
	})
}

// lladdr returns the words about the MAC of a neighbour, if it has one.
func lladdr(n netlink.Neigh) string {
	if n.HardwareAddr == nil {
		return ""
	}
	return " lladdr " + n.HardwareAddr.String()
}

// FDB returns the forwarding entries of a device, as `bridge fdb show dev DEVICE` prints
// them.
func FDB(device string) ([]string, error) {
	return neighbours(device, unix.AF_BRIDGE, func(n netlink.Neigh) string {
		line := n.HardwareAddr.String()
		if n.IP != nil {
			line += " dst " + n.IP.String()
		}
		if n.VNI != 0 {
			line += fmt.Sprintf(" vni %d", n.VNI)
		}
		if n.Flags&netlink.NTF_SELF != 0 {
			line += " self"
		}
		if n.Flags&netlink.NTF_EXT_LEARNED != 0 {
			line += " extern_learn"
		}
		switch {
		case n.State&netlink.NUD_PERMANENT != 0:
			line += " permanent"
		case n.State&netlink.NUD_NOARP != 0:
			line += " static"
		case n.State&netlink.NUD_STALE != 0:
			line += " stale"
		}
		return line
	})
}

// neighbours returns the lines that show makes of the entries of a device; "" is none.
func neighbours(device string, family int, show func(netlink.Neigh) string) (lines []string, err error) {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return nil, err
	}
	all, err := rtnetlink.Whole(func() ([]netlink.Neigh, error) { return netlink.NeighList(link.Attrs().Index, family) })
	for _, n := range all {
		if line := show(n); line != "" {
			lines = append(lines, line)
		}
	}
	return lines, err
}

// Addresses returns the addresses of a device with global scope, as "inet 10.5.1.0/32".
func Addresses(device string) (lines []string, err error) {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return nil, err
	}
	addrs, err := rtnetlink.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
	for _, a := range addrs {
		family := "inet "
		if a.IP.To4() == nil {
			family = "inet6 "
		}
		if a.Scope == int(netlink.SCOPE_UNIVERSE) {
			lines = append(lines, family+a.IPNet.String())
		}
	}
	return lines, err
}

// Devices returns the names of all devices.
func Devices() ([]string, error) {
	links, err := rtnetlink.Whole(netlink.LinkList)
	var all []string
	for _, l := range links {
		all = append(all, l.Attrs().Name)
	}
	return all, err
}

// Device returns a line with the properties of a device. Those of its kind, which `ip -d
// link show` prints, have the names of the library.
func Device(name string) ([]string, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil, err
	}
	a := link.Attrs()
	var b strings.Builder
	fmt.Fprintf(&b, "%s: <%s> mtu %d master %d link/%s %s gso_max_segs %d %s", name, a.Flags&^net.FlagRunning, a.MTU,
		a.MasterIndex, a.EncapType, a.HardwareAddr, a.GSOMaxSegs, link.Type())
	kind := reflect.Indirect(reflect.ValueOf(link)) // such as netlink.Vxlan, with a field for each property
	for i := range kind.NumField() {
		if f := kind.Type().Field(i); f.Name != "LinkAttrs" && f.IsExported() && !kind.Field(i).IsZero() {
			fmt.Fprintf(&b, " %s %v", f.Name, kind.Field(i))
		}
	}
	return []string{b.String()}, nil
}

// Within returns the routes to destinations inside of one of the networks, as `ip route
// show root NETWORK` selects them.
func Within(routes []string, networks ...netip.Prefix) (inside []string) {
	for _, line := range routes {
		to := prefix(line)
		for _, n := range networks {
			if to.IsValid() && n.Bits() <= to.Bits() && n.Contains(to.Addr()) {
				inside = append(inside, line)
			}
		}
	}
	return inside
}

// prefix returns the destination in the line of a route, which has two words at least; the
// zero value for a default route.
func prefix(line string) netip.Prefix {
	for _, word := range strings.Fields(line)[:2] { // the type may precede it
		if p, err := netip.ParsePrefix(word); err == nil {
			return p
		}
		if a, err := netip.ParseAddr(word); err == nil {
			return netip.PrefixFrom(a, a.BitLen())
		}
	}
	return netip.Prefix{}
}
