package windows

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flannel/internal/test/hnstest"
	"flannel/pkg/windows/hns"
)

// New returns a machine that acts on the network namespace of this process. The
// devices of the namespace, except for loopback, become physical adapters with their
// addresses and static routes. New sets sysctls of the namespace, so that Linux does what
// Windows would. The caller must close the machine.
func New() (*hnstest.Machine, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	m := hnstest.NewWith(&kernel{priorities: map[rowKey]int{}})
	for name, value := range map[string]string{ // promote: the deletion of an address keeps those of the same subnet
		"ipv4/conf/all/forwarding": "0", "ipv4/conf/default/forwarding": "0", "ipv4/conf/all/promote_secondaries": "1",
		"ipv4/conf/all/rp_filter": "0", "ipv4/conf/default/rp_filter": "0", "ipv6/conf/all/forwarding": "0",
		"ipv6/conf/default/accept_dad": "0", // addresses that move must be usable at once
	} {
		if err := sysctl(name, value); err != nil {
			return nil, err
		}
	}
	for _, l := range links {
		if l.Attrs().Flags&net.FlagLoopback != 0 {
			continue
		}
		a, routes, err := readAdapter(l)
		if err != nil {
			return nil, fmt.Errorf("adapter %s: %w", l.Attrs().Name, err)
		}
		m.Plug(a, routes...)
	}
	return m, errors.Join(m.Trouble()...) // errors of kernel, which acts for the machine
}

// readAdapter returns a device as an adapter, and its static routes. It deletes
// the routes, because Plug adds them again.
func readAdapter(l netlink.Link) (hns.Adapter, []hns.Route, error) {
	a := hns.Adapter{
		Name: l.Attrs().Name, Description: "Microsoft Hyper-V Network Adapter", Index: l.Attrs().Index,
		MTU: l.Attrs().MTU, Up: true,
	}
	if l.Attrs().Alias != "" { // the Windows name, which package lab has set
		a.Name = l.Attrs().Alias
	}
	copy(a.MAC[:], l.Attrs().HardwareAddr)
	addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		return a, nil, err
	}
	for _, addr := range addrs {
		p, ok := toPrefix(addr.IPNet)
		if ok && !p.Addr().IsLinkLocalUnicast() {
			a.Addrs = append(a.Addrs, hns.Address{Prefix: p, Manual: true, Preferred: true})
		}
	}
	rows, err := netlink.RouteList(l, netlink.FAMILY_ALL)
	if err != nil {
		return a, nil, err
	}
	var routes []hns.Route
	for _, row := range rows {
		hop, _ := netip.AddrFromSlice(row.Gw)
		dst, ok := toPrefix(row.Dst)
		if row.Protocol == unix.RTPROT_KERNEL || row.Protocol == unix.RTPROT_RA || !hop.IsValid() || !ok {
			continue
		}
		if err := netlink.RouteDel(&row); err != nil {
			return a, nil, err
		}
		// In hns, Ours means any program, not the IP stack itself: here an administrator.
		routes = append(routes, hns.Route{Dst: dst, NextHop: hop.Unmap(), Metric: 10, Ours: true})
		if dst.Bits() == 0 {
			a.DNS = append(a.DNS, hop.Unmap()) // most routers are DNS servers
		}
	}
	return a, routes, nil
}

// toPrefix converts an address with the length of its network's prefix. The destination of a
// default route is 0.0.0.0/0 or ::/0, never nil.
func toPrefix(n *net.IPNet) (netip.Prefix, bool) {
	ip, ok := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(ip.Unmap(), bits), ok
}

func toIPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// sysctl sets a kernel parameter below net in the network namespace of this thread.
func sysctl(name, value string) error {
	err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0)
	if errors.Is(err, fs.ErrNotExist) { // no IPv6 in this kernel
		return nil
	}
	return err
}
