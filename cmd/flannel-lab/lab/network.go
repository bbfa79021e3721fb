package lab

import (
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flannel/cmd/flannel-lab/machine"
)

// Uplink is the name that Linux gives a node's device on the underlay. (See
// Adapter for its name in Windows.)
const Uplink = "eth0"

// address returns a host's address on an underlay network (0 or 1), with the
// length of the network's prefix. host is the last number of the address: 1 for
// the router, 11 for node1, 12 for node2 and so on. On network 0 the router has
// 192.168.100.1/24 and fd00:100::1/64, node1 192.168.100.11/24 and
// fd00:100::11/64.
func address(v6 bool, network, host int) netip.Prefix {
	if v6 {
		return netip.MustParsePrefix(fmt.Sprintf("fd00:%d::%d/64", 100+network, host))
	}
	return netip.MustParsePrefix(fmt.Sprintf("192.168.%d.%d/24", 100+network, host))
}

// families returns the values for the parameter v6 of address that the lab
// uses.
func (f Family) families() (v6 []bool) {
	if f.Has4() {
		v6 = append(v6, false)
	}
	if f.Has6() {
		v6 = append(v6, true)
	}
	return v6
}

// Underlay is the network that connects machines: a bridge for each subnet, on a machine that
// routes between them. This machine is Lab.Infra, or Infra of a cluster (package cluster, whose
// nodes run all of Kubernetes). Create and Plug must run in the machine that routes, Configure
// in a plugged machine: callers use Machine.Do.
type Underlay struct {
	Family  Family
	Subnets int // 1 or 2
	MTU     int // in bytes
}

// Address returns a host's address: see address.
func (u Underlay) Address(v6 bool, network, host int) netip.Prefix { return address(v6, network, host) }

// Create creates a bridge for each subnet with the router's address on it. It also
// adds Outside4 and Outside6 to lo: in the lab these addresses stand for a server
// outside of the cluster, which nodes reach by their default route.
func (u Underlay) Create() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	for _, v6 := range u.Family.families() {
		outside, forward := netip.PrefixFrom(Outside4, 32), "/proc/sys/net/ipv4/ip_forward"
		if v6 {
			outside, forward = netip.PrefixFrom(Outside6, 128), "/proc/sys/net/ipv6/conf/all/forwarding"
		}
		if err := addAddr(lo, outside); err != nil {
			return err
		}
		if err := os.WriteFile(forward, []byte("1"), 0o644); err != nil {
			return err
		}
	}
	// Without duplicate address detection, the router can use its link-local
	// addresses at once. (The file is absent on a kernel without IPv6.)
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0o644)
	for network := range u.Subnets {
		snooping := false // no querier runs here, without which snooping would drop neighbour discovery
		br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridgeName(network), MTU: u.MTU},
			MulticastSnooping: &snooping} // a pointer: nil would leave the kernel's default, on
		// By default a bridge takes the lowest MAC of its ports: the router's
		// MAC would change with every plug.
		br.HardwareAddr = net.HardwareAddr{2, 0, 0, 0, byte(network), 1}
		if err := netlink.LinkAdd(br); err != nil {
			return fmt.Errorf("add bridge: %w", err)
		}
		if err := netlink.LinkSetUp(br); err != nil {
			return fmt.Errorf("set bridge up: %w", err)
		}
		for _, v6 := range u.Family.families() {
			if err := addAddr(br, address(v6, network, 1)); err != nil {
				return err
			}
		}
	}
	return nil
}

func bridgeName(network int) string { return fmt.Sprintf("br%d", network) }

// Plug connects a machine to the bridge of a network by a veth pair: the end in m is
// Uplink, the end on the bridge has the name of m.
func (u Underlay) Plug(m *machine.Machine, network, host int) error {
	br, err := netlink.LinkByName(bridgeName(network))
	if err != nil {
		return err
	}
	netns := m.Files()[0] // a machine's first namespace file is that of the network
	veth := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: m.Name, MTU: u.MTU, MasterIndex: br.Attrs().Index},
		PeerName:  Uplink, PeerNamespace: netlink.NsFd(netns.Fd()), PeerMTU: uint32(u.MTU),
		// A fixed MAC: after Unplug and Plug the neighbour entries of others
		// are still valid.
		PeerHardwareAddr: net.HardwareAddr{2, 0, 0, 0, byte(network), byte(host)},
	}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("add veth %s: %w", m.Name, err)
	}
	return netlink.LinkSetUp(veth)
}

// unplug deletes the uplink, and with it the end on the bridge. It runs in the node.
func unplug() error {
	dev, err := netlink.LinkByName(Uplink)
	if err != nil {
		return err
	}
	return netlink.LinkDel(dev)
}

// Configure adds the addresses of Uplink, and a default route through the router. network
// and host are those given to Plug.
func (u Underlay) Configure(network, host int) error {
	dev, err := netlink.LinkByName(Uplink)
	if err != nil {
		return err
	}
	// No other host has these addresses, so duplicate address detection, which
	// takes a second, is turned off: here for the link-local address, in addAddr
	// for the others. (The file is absent on a kernel without IPv6.)
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+Uplink+"/accept_dad", []byte("0"), 0o644)
	if err := netlink.LinkSetUp(dev); err != nil {
		return err
	}
	for _, v6 := range u.Family.families() {
		if err := addAddr(dev, address(v6, network, host)); err != nil {
			return err
		}
		router := net.IP(address(v6, network, 1).Addr().AsSlice())
		// Without a Dst this is the default route.
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: dev.Attrs().Index, Gw: router}); err != nil {
			return fmt.Errorf("add default route: %w", err)
		}
	}
	return nil
}

// addAddr adds an address, with the length of its network's prefix, which is usable at once.
func addAddr(dev netlink.Link, p netip.Prefix) error {
	n := &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
	a := &netlink.Addr{IPNet: n}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD // no duplicate address detection
	}
	if err := netlink.AddrAdd(dev, a); err != nil {
		return fmt.Errorf("add address %s to %s: %w", p, dev.Attrs().Name, err)
	}
	return nil
}
