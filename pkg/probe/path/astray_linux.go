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
		link, err := netlink.LinkByIndex(a.LinkIndex)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			continue // it was deleted meanwhile, as that of a pod
		}
		if err != nil {
			return nil, fmt.Errorf("device of %s: %w", src, err)
		}
		packets := []*netlink.RouteGetOptions{{SrcAddr: src.AsSlice()}}
		if pod := src.Next(); link.Type() == "bridge" && t.Own.Contains(pod) {
			packets = append(packets, &netlink.RouteGetOptions{SrcAddr: pod.AsSlice(), Iif: link.Attrs().Name})
		}
		for _, o := range packets {
			other, differs, err := differing(want, dst, o)
			if err != nil {
				return nil, err
			}
			if differs {
				found = append(found, other)
			}
		}
	}
	return found, nil
}

// differing returns the route of packets with a source, and whether it is not the wanted one.
// Iif is the interface on which they arrive; "": this node sends them.
func differing(want route, dst netip.Addr, o *netlink.RouteGetOptions) (a doctor.Astray, differs bool, err error) {
	a.Source = rtnetlink.AddrOf(o.SrcAddr)
	r, err := lookUp(dst, o)
	switch {
	case err == nil:
		a.Device, a.Table = r.link.Attrs().Name, r.table
		return a, r.link.Attrs().Index != want.link.Attrs().Index || r.via != want.via, nil
	case o.Iif != "" && dst.Is4() && (errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EXDEV)):
		return a, false, nil // it does not forward, or filters by the reverse path: not the fault of a route
	case o.Iif != "" && dst.Is4() && errors.Is(err, unix.EINVAL) && filters([]string{o.Iif})[o.Iif] > 0:
		return a, false, nil // Linux 6.18 has this error, too, for the reverse path filter
	case rtnetlink.NoRoute(err):
		a.Error = err.Error()
		return a, true, nil
	}
	return a, false, fmt.Errorf("route from %s to %s: %w", a.Source, dst, err)
}
