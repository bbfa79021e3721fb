package linux

import (
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flannel/pkg/dataplane/driver"
)

// blackholeMetric makes a blackhole lose against the connected route that the pods' bridge has for the same prefix (0, and
// 256 for IPv6), and against any that an operator adds.
const blackholeMetric = 1 << 16

// kernelRoute is a route of the main table as a message describes it.
type kernelRoute struct {
	key      routeKey
	hop      hop
	protocol uint8
	nexthop  uint32 // ID of its nexthop object, 0 if it has none
}

// Protocol numbers of rtnetlink: who made a route. 70 is ours, and free in iproute2's list.
const (
	protocolBoot = 3
	protocolOurs = 70
)

// scope is what tells ours from theirs; it changes with the devices and the network, and is replaced as a whole. On a host
// with several flannelds each has networks of its own: what belongs to another's is not ours.
type scope struct {
	tunnels  map[int]bool // indexes of our own devices
	links    map[int]bool // the same and the underlay's
	networks []netip.Prefix
	former   []netip.Prefix // networks that this node was in before
	unrouted bool           // see State
	// everything is for a cleanup that does not know the networks: all that any flanneld of this host made is ours.
	everything bool
}

// owns reports whether a route may be changed and deleted: it carries our protocol number and leads into our network, or
// has exactly the shape of flannel's: the protocol "boot" that a route gets when nobody says otherwise, the usual metric,
// a destination inside the pod network and a gateway (through a tunnel of ours: the destination's own base address,
// onlink).
func (s *scope) owns(r kernelRoute) bool {
	if r.protocol == protocolOurs {
		return s.everything || s.tunnels[r.hop.Index] || s.has(r.key.Dst)
	}
	if r.protocol != protocolBoot || r.key.Metric != defaultMetric(r.key.Dst.Addr()) || r.hop.Odd {
		return false
	}
	if s.tunnels[r.hop.Index] && r.hop.Onlink && r.hop.Via == r.key.Dst.Addr() {
		return true
	}
	return !s.unrouted && (r.hop.Via.IsValid() || r.hop.Blackhole) && driver.Inside(r.key.Dst, s.networks)
}

// has reports whether p lies in a network that this node is in, or was in before.
func (s *scope) has(p netip.Prefix) bool {
	holds := func(n netip.Prefix) bool { return n.Contains(p.Addr()) && p.Bits() >= n.Bits() }
	return slices.ContainsFunc(s.networks, holds) || slices.ContainsFunc(s.former, holds)
}

// ownsDevice reports whether a device is one that a flannel of any backend makes and, by its addresses, one of our
// network. A device without any may be another flanneld's that is about to get one: it is ours if we made it.
func (d *Driver) ownsDevice(s *scope, l netlink.Link) (bool, error) {
	switch {
	case !isOurs(l):
		return false, nil
	case s.everything:
		return true, nil
	}
	addrs, err := whole(func() ([]netlink.Addr, error) { return d.handle.AddrList(l, unix.AF_UNSPEC) })
	if err != nil {
		return false, err
	}
	found := false
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP)
		if ip = ip.Unmap(); !ok || ip.IsLinkLocalUnicast() {
			continue
		}
		if s.has(netip.PrefixFrom(ip, ip.BitLen())) {
			return true, nil
		}
		found = true
	}
	return !found && d.made[l.Attrs().Name], nil
}
