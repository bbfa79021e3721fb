package path

import (
	"cmp"
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
// nm-cloud-setup's do, or of pods. want is the route without a source. An error makes the
// whole test of the path a Problem.
func astray(t Target, want route, dst netip.Addr) (found []doctor.Astray, err error) {
	addrs, err := addresses()
	if err != nil {
		return nil, err
	}
	for _, a := range addrs {
		src := rtnetlink.AddrOf(a.IP)
		if src.Is6() != dst.Is6() || !t.Own.Contains(src) && !slices.Contains(t.Addrs, src) {
			continue
		}
		fromHere, err := astrayFrom(a, t.Own, want, dst)
		if err != nil {
			return nil, err
		}
		found = append(found, fromHere...)
	}
	return found, nil
}

// addresses lists the addresses of this node.
func addresses() ([]netlink.Addr, error) {
	// Whole repeats a list that a change in the kernel has interrupted.
	addrs, err := rtnetlink.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list this node's addresses: %w", err)
	}
	return addrs, nil
}

// astrayFrom is astray for packets from the address a and, if a is on a bridge, from a pod
// of the subnet own. It finds nothing if a is no longer there, perhaps because its device
// was deleted: then the kernel finds no route, and nobody sends such packets.
func astrayFrom(a netlink.Addr, own netip.Prefix, want route, dst netip.Addr) (found []doctor.Astray, err error) {
	packets, err := packetsFrom(a, own)
	for _, o := range packets {
		other, differs, failed := differing(want, dst, o)
		if differs {
			found = append(found, other)
		}
		err = cmp.Or(err, failed)
	}
	if err == nil && len(found) == 0 {
		return nil, nil
	}
	addrs, unlisted := addresses()
	if unlisted != nil {
		return nil, unlisted
	}
	if !slices.ContainsFunc(addrs, func(b netlink.Addr) bool { return b.LinkIndex == a.LinkIndex && b.Equal(a) }) {
		return nil, nil
	}
	return found, err
}

// packetsFrom returns the options to look up the routes that astrayFrom compares.
func packetsFrom(a netlink.Addr, own netip.Prefix) ([]*netlink.RouteGetOptions, error) {
	src := rtnetlink.AddrOf(a.IP)
	link, err := netlink.LinkByIndex(a.LinkIndex)
	if err != nil {
		return nil, fmt.Errorf("device of %s: %w", src, err)
	}
	packets := []*netlink.RouteGetOptions{{SrcAddr: src.AsSlice()}}
	if pod := src.Next(); link.Type() == "bridge" && own.Contains(pod) { // an address as pods have
		packets = append(packets, &netlink.RouteGetOptions{SrcAddr: pod.AsSlice(), Iif: link.Attrs().Name})
	}
	return packets, nil
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
	case o.Iif != "" && dst.Is4() && errors.Is(err, unix.EINVAL):
		// Since Linux 6.13, this is also the error of the reverse path filter.
		filtered, unknown := filtersSource(a.Source, o.Iif)
		a.Error = err.Error()
		return a, !filtered, unknown
	case rtnetlink.NoRoute(err):
		a.Error = err.Error()
		return a, true, nil
	}
	return a, false, fmt.Errorf("route from %s to %s: %w", a.Source, dst, err)
}

// filtersSource reports whether the reverse path filter of a device drops packets from an
// IPv4 address: with rp_filter 1 unless the route to the address leads to the device, with
// 2 if there is none.
func filtersSource(src netip.Addr, device string) (bool, error) {
	mode, err := reverseFilter(device)
	if err != nil || mode == 0 {
		return false, err
	}
	back, err := routeTo(src)
	if err != nil && !rtnetlink.NoRoute(err) {
		return false, err
	}
	return err != nil || mode == 1 && back.link.Attrs().Name != device, nil
}
