package path

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flannel/pkg/doctor"
	"flannel/pkg/linux/rtnetlink"
)

// noRoute are the errors of a lookup that ended without a route, or at a rule or a route
// of type unreachable, prohibit, blackhole or throw. The kernel has others for packets
// that it would not forward, which is not the fault of a route.
var noRoute = []error{unix.ENETUNREACH, unix.EACCES, unix.EINVAL, unix.EAGAIN}

// astray looks up the route to an address in the peer's subnet from each address of this
// node that the target names, from those in the node's subnet, and from a pod. Rules (ip
// rule) can choose another table because of the source: of the node's own address, as
// nm-cloud-setup's do, or of pods. want is the route without a source.
func astray(t Target, want route, dst netip.Addr) (found []doctor.Astray, err error) {
	addrs, err := rtnetlink.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list this node's addresses: %w", err)
	}
	for _, a := range addrs {
		src := rtnetlink.AddrOf(a.IP)
		if src.Is6() != dst.Is6() || !t.Own.Contains(src) && !slices.Contains(t.Addrs, src) {
			continue
		}
		found = append(found, differing(want, dst, src, "")...)
		link, err := netlink.LinkByIndex(a.LinkIndex)
		if pod := src.Next(); err == nil && link.Type() == "bridge" && t.Own.Contains(pod) {
			found = append(found, differing(want, dst, pod, link.Attrs().Name)...)
		}
	}
	return found, nil
}

// differing returns the route from a source, if it is not the wanted one. iif is the
// interface on which the packet arrives; "": this node sends it.
func differing(want route, dst, src netip.Addr, iif string) []doctor.Astray {
	routes, err := netlink.RouteGetWithOptions(dst.AsSlice(), &netlink.RouteGetOptions{SrcAddr: src.AsSlice(), Iif: iif})
	a := doctor.Astray{Source: src}
	switch {
	case slices.ContainsFunc(noRoute, func(none error) bool { return errors.Is(err, none) }):
		a.Error = err.Error()
		return []doctor.Astray{a}
	case err != nil || len(routes) == 0:
		return nil
	}
	r := routes[0]
	via := gateway(r)
	if !via.IsValid() {
		via = dst
	}
	if link, err := netlink.LinkByIndex(r.LinkIndex); err == nil && (link.Attrs().Index != want.link.Attrs().Index || via != want.via) {
		a.Device, a.Table = link.Attrs().Name, r.Table
		return []doctor.Astray{a}
	}
	return nil
}
