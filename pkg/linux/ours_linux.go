package linux

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flannel/pkg/dataplane"
	"flannel/pkg/linux/rtnetlink"
)

// lastMetric makes routes for what no other route takes lose against the route of the
// pods' bridge for the same prefix (metric 0; 256 for IPv6), and against those of
// operators.
const lastMetric = 1 << 16

// kernelRoute is a route of the kernel's main table, as read or to be written.
type kernelRoute struct {
	key      routeKey
	hop      hop
	protocol uint8
	nexthop  uint32 // ID of its nexthop object, 0 if it has none
}

// Protocol numbers of rtnetlink identify who made a route.
const (
	protocolBoot = 3
	protocolOurs = rtnetlink.ProtocolOurs
)

// scope defines which routes and devices are ours. It changes with the devices (setScope)
// and the networks (setNetworks), and is replaced as a whole, because the watcher reads it on its
// goroutine. Of several flannelds on a host each has its own networks.
type scope struct {
	tunnels  map[int]bool   // indexes of our own devices
	links    map[int]bool   // the same and the underlay's
	networks []netip.Prefix // the pod networks, one for each address family in use
	former   []netip.Prefix // pod networks that this node was in before
	subnets  []netip.Prefix // of this node's pods
	lengths  lengths        // of the subnets of the networks: those that nodes have or had
	unrouted bool           // State.Unrouted: routes into the networks without our protocol number are not ours
	keep     bool           // State.KeepDevices: of devices with our names, only those that this run made are ours
	// everything is for a cleanup that does not know the networks: what any flanneld
	// of this host made is ours.
	everything bool
}

// owns reports whether a route is ours, so that it may be changed and deleted:
//
//	protocol   metric   destination           way
//	70         any      in a network of ours  any
//	70         any      any                   through our tunnel device
//	and exactly what flannel makes:
//	"boot"     default  any                   our tunnel device, its own base address as onlink gateway
//	"boot"     default  the whole network     our tunnel device, without a gateway
//	"boot"     default  a part of a network   our tunnel device and a gateway; not if unrouted
//	"boot"     default  the same, with the    a gateway or a blackhole; not if unrouted
//	                    length of a subnet
//	                    (scope.lengths)
//
// "boot" is the protocol of routes whose maker gives none. A network that contains the hosts' own addresses can have
// such routes of administrators, DHCP clients and VPNs, too. They seldom have the length of a node's subnet. flannel's
// routes have no nexthop object. With scope.everything, all of protocol 70 are ours.
func (s *scope) owns(r kernelRoute) bool {
	if r.protocol == protocolOurs {
		return s.everything || s.tunnels[r.hop.Index] || s.has(r.key.Dst)
	}
	if r.protocol != protocolBoot || r.nexthop != 0 || r.key.Metric != defaultMetric(r.key.Dst.Addr()) || r.hop.Unmanaged {
		return false
	}
	if s.tunnels[r.hop.Index] && r.hop.Onlink && r.hop.Via == r.key.Dst.Addr() {
		return true
	}
	noGateway := hop{Index: r.hop.Index}
	if s.tunnels[r.hop.Index] && r.hop == noGateway && slices.Contains(s.networks, r.key.Dst) {
		return true
	}
	return !s.unrouted && (r.hop.Via.IsValid() || r.hop.Blackhole) && dataplane.Inside(r.key.Dst, s.networks) &&
		(s.tunnels[r.hop.Index] || s.lengths.has(r.key.Dst))
}

// lengths is a set of lengths of prefixes: a bit for each, of IPv4 and of IPv6.
type lengths [2][3]uint64

// addSubnets adds the lengths of the subnets that this node has, or had in its networks, and of those of its peers.
func (l *lengths) addSubnets(s dataplane.State) {
	for _, p := range s.Subnets {
		l.add(p)
	}
	for _, p := range s.FormerSubnets {
		if dataplane.Inside(p, s.Networks) {
			l.add(p)
		}
	}
	for _, p := range s.Paths {
		l.add(p.Dst)
	}
}

func (l *lengths) add(p netip.Prefix) {
	word, bit := l.find(p)
	*word |= bit
}

func (l *lengths) has(p netip.Prefix) bool {
	word, bit := l.find(p)
	return *word&bit != 0
}

// find returns where the bit of the length of p is.
func (l *lengths) find(p netip.Prefix) (word *uint64, bit uint64) {
	return &l[p.Addr().BitLen()/128][p.Bits()/64], 1 << (p.Bits() % 64)
}

// has reports whether p is a network that this node is, or was, in, or a part of one.
func (s *scope) has(p netip.Prefix) bool {
	contains := func(n netip.Prefix) bool { return n.Contains(p.Addr()) && p.Bits() >= n.Bits() }
	return slices.ContainsFunc(s.networks, contains) || slices.ContainsFunc(s.former, contains)
}

// ownsDevice reports whether a device is ours, so that it may be deleted: it has a name and
// type that flannel gives, and an address in our network. A device without addresses is ours
// only if this run made it: another flanneld may have made it just now, and not assigned one
// yet. After an error, it is not known.
func (d *devices) ownsDevice(s *scope, l netlink.Link) (bool, error) {
	switch {
	case !isOurType(l):
		return false, nil
	case s.everything:
		return true, nil
	case s.keep:
		return d.made[l.Attrs().Name], nil
	}
	addrs, err := d.addresses(l)
	if err != nil {
		return false, err
	}
	for _, ip := range addrs {
		if s.has(netip.PrefixFrom(ip, ip.BitLen())) {
			return true, nil
		}
	}
	return len(addrs) == 0 && d.made[l.Attrs().Name], nil
}

// addresses returns the addresses of a device, apart from link-local ones.
func (d *devices) addresses(l netlink.Link) (addrs []netip.Addr, err error) {
	all, err := readWhole(func() ([]netlink.Addr, error) { return d.handle.AddrList(l, unix.AF_UNSPEC) })
	if err != nil {
		return nil, fmt.Errorf("list the addresses of %s: %w", l.Attrs().Name, err)
	}
	for _, a := range all {
		if ip := rtnetlink.AddrOf(a.IP); ip.IsValid() && !ip.IsLinkLocalUnicast() {
			addrs = append(addrs, ip)
		}
	}
	return addrs, nil
}

// checkNetwork returns an otherNetworkError if an existing device, which has not been
// ours in this run, only has addresses outside of the node's networks. It is for
// devices whose names do not tell networks apart, unlike that of a VXLAN device with its VNI.
// The ensure of their kinds calls it, and after an error does not touch the device.
func (d *devices) checkNetwork(dev dataplane.Device, found netlink.Link) error {
	if dev.Networks == nil || d.ensured[dev.Name].Index == found.Attrs().Index {
		return nil
	}
	addrs, err := d.addresses(found)
	if err != nil || len(addrs) == 0 {
		return err
	}
	for _, ip := range addrs {
		if slices.ContainsFunc(dev.Networks, func(n netip.Prefix) bool { return n.Contains(ip) }) {
			return nil
		}
	}
	return &otherNetworkError{Device: dev.Name, Addr: addrs[0], Networks: dev.Networks}
}

// otherNetworkError is the error of a device that belongs to another flanneld of the
// host. The two would undo each other's changes.
type otherNetworkError struct {
	Device   string
	Addr     netip.Addr     // of the device
	Networks []netip.Prefix // of this flanneld
}

func (e *otherNetworkError) Error() string {
	return fmt.Sprintf("it belongs to another network: its address %s is not in %v, and of several networks on one host, only one can have this device; "+
		"use another backend here (with udp, another Backend.Port is enough), or if no other flanneld uses the device: ip link del %s", e.Addr, e.Networks, e.Device)
}

// Cause is the value of the attribute cause in the log.
func (*otherNetworkError) Cause() string { return "device-of-another-network" }

// checkNetwork returns an otherPolicyError if the kernel has policies of flannel's form
// outside of the node's networks. They belong to another flanneld of the host, with
// which this one would share the security associations to each node. ours says that
// there are policies within the networks, too, which have been ours before: both results can be
// set. Policies that charon itself makes, for other tunnels, have a priority, and do not count.
func (s *xfrmStore) checkNetwork(networks []netip.Prefix) (ours bool, err error) {
	if networks == nil {
		return false, nil
	}
	all, err := s.read()
	if err != nil {
		return false, err
	}
	for _, p := range all {
		key, value, ok := parsePolicy(p)
		inside := func(p netip.Prefix) bool { return dataplane.Inside(p, networks) }
		switch {
		case !ok || p.Priority != value.Priority: // not of our form, or of another tunnel of charon's
		case inside(key.Src) && inside(key.Dst):
			ours = true
		case !inside(key.Src) && !inside(key.Dst):
			err = &otherPolicyError{Policy: key.String(), Subnet: key.Src, Networks: networks}
			if key.Dir != netlink.XFRM_DIR_OUT {
				err = &otherPolicyError{Policy: key.String(), Subnet: key.Dst, Networks: networks} // this node's end of packets that come in
			}
		}
	}
	return ours, err
}

// otherPolicyError is the error of policies that belong to another flanneld of the host.
type otherPolicyError struct {
	Policy   string         // one of them
	Subnet   netip.Prefix   // of this node, in the other network
	Networks []netip.Prefix // of this flanneld
}

func (e *otherPolicyError) Error() string {
	return fmt.Sprintf("IPsec of this host belongs to another network: the policy %q is not in %v, and of several networks on one host, only one can use ipsec; "+
		"use another backend here, or if no other flanneld uses it: ip xfrm policy deleteall src %[3]s; ip xfrm policy deleteall dst %[3]s", e.Policy, e.Networks, e.Subnet)
}

// Cause is the value of the attribute cause in the log.
func (*otherPolicyError) Cause() string { return "ipsec-of-another-network" }
