// This file reads what the kernel would do with a packet to a peer, its route and neighbour,
// for Test.

package path

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flannel/pkg/dataplane"
	"flannel/pkg/doctor"
	"flannel/pkg/linux/rtnetlink"
)

// route is the kernel's route to an address. via is the next hop: the address itself, if it
// is on the link.
type route struct {
	link     netlink.Link
	via, src netip.Addr // src is the source that the kernel chooses
	table    int        // of routes, in which the kernel found it
}

// routeTo asks the kernel how it would send a packet to an address. After an error, see
// rtnetlink.NoRoute.
func routeTo(a netip.Addr) (route, error) {
	r, err := lookUp(a, nil)
	if err != nil {
		return r, fmt.Errorf("route to %s: %w", a, err)
	}
	return r, nil
}

// lookUp is routeTo for packets with these options; nil: none.
func lookUp(a netip.Addr, o *netlink.RouteGetOptions) (route, error) {
	routes, err := netlink.RouteGetWithOptions(a.AsSlice(), o)
	if err != nil {
		return route{}, err
	}
	r := routes[0] // without an error there is one
	link, err := netlink.LinkByIndex(r.LinkIndex)
	if err != nil {
		return route{}, fmt.Errorf("its device: %w", err)
	}
	via := gateway(r)
	if !via.IsValid() {
		via = a
	}
	return route{link, via, rtnetlink.AddrOf(r.Src), r.Table}, nil
}

// gateway returns the gateway of a route, of either family; the zero Addr, if it has none.
func gateway(r netlink.Route) netip.Addr {
	if v, ok := r.Via.(*netlink.Via); ok {
		return rtnetlink.AddrOf(v.Addr)
	}
	return rtnetlink.AddrOf(r.Gw)
}

// describe sets what a path leads through: its device, and, if that is one of flanneld's, its
// Kind, port and overhead. r is the route to the subnet. The Kind stays "" for a path that
// flanneld has not made.
func describe(p *doctor.Path, t Target, r route) {
	name := r.link.Attrs().Name
	p.Device, p.MTU = name, r.link.Attrs().MTU
	if !slices.Contains(t.Devices, name) {
		return
	}
	tunnel, isTunnel := dataplane.TraitsOfLink(r.link.Type(), name) // which backend's tunnel it is
	switch {
	case isTunnel && name != t.Underlay:
		p.Kind, p.Overhead = tunnel.Backend, tunnel.Overhead(p.PublicIP.Is6())
		if v, ok := r.link.(*netlink.Vxlan); ok {
			p.Port = v.Port
		} else if tunnel.Protocol == unix.IPPROTO_UDP {
			p.Port = int(cmp.Or(tunnel.Port, t.Port)) // with WireGuard, tunnel.Port is 0: the peer's
		}
	case r.via == p.PublicIP:
		p.Kind = doctor.PathDirect
	}
}

// neighbourMAC returns the MAC address to which packets for a next hop are sent.
func neighbourMAC(r route) (dataplane.MAC, bool) {
	for _, n := range neighbours(r) {
		if len(n.HardwareAddr) == len(dataplane.MAC{}) {
			return dataplane.MAC(n.HardwareAddr), true
		}
	}
	return dataplane.MAC{}, false
}

// neighbourState returns what the kernel knows of a next hop; "": nothing.
func neighbourState(r route) string {
	for _, n := range neighbours(r) {
		switch {
		case n.State&(unix.NUD_FAILED|unix.NUD_INCOMPLETE) != 0: // no answer, or none yet
			return doctor.NeighbourDown
		case n.State&(unix.NUD_REACHABLE|unix.NUD_DELAY|unix.NUD_PROBE|unix.NUD_STALE) != 0:
			return doctor.NeighbourUp
		}
	}
	return ""
}

// neighbours returns the entries for a next hop.
func neighbours(r route) []netlink.Neigh {
	family := unix.AF_INET
	if r.via.Is6() {
		family = unix.AF_INET6
	}
	// Whole repeats a list that a change in the kernel has interrupted.
	list, err := rtnetlink.Whole(func() ([]netlink.Neigh, error) { return netlink.NeighList(r.link.Attrs().Index, family) })
	if err != nil {
		return nil // nothing is known then
	}
	return slices.DeleteFunc(list, func(n netlink.Neigh) bool { return rtnetlink.AddrOf(n.IP) != r.via })
}

// reversePathFiltered returns the kernel's counter of packets that the reverse path filter
// dropped.
func reversePathFiltered() (int, error) {
	const file, counter = "/proc/net/netstat", "IPReversePathFilter"
	raw, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	lines := bytes.Split(raw, []byte("\n"))
	for i := 0; i+1 < len(lines); i += 2 { // names, and below them values
		names, values := bytes.Fields(lines[i]), bytes.Fields(lines[i+1])
		for j := range min(len(names), len(values)) {
			if string(names[j]) == counter {
				return strconv.Atoi(string(values[j]))
			}
		}
	}
	return 0, fmt.Errorf("%s has no %s", file, counter)
}

// reverseFilter returns rp_filter as it is in force for a device: the kernel takes the larger
// one of all and of the device.
func reverseFilter(device string) (int, error) {
	read := func(name string) (int, error) {
		raw, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + name + "/rp_filter")
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimSpace(string(raw)))
	}
	all, err := read("all")
	own, failed := read(device)
	return max(all, own), cmp.Or(err, failed)
}
