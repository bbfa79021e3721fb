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

// Uplink is the name of a node's device on the underlay.
const Uplink = "eth0"

// address is a host's address on one of the underlay's networks, with the network's length.
func address(v6 bool, network, host int) netip.Prefix {
	if v6 {
		return netip.MustParsePrefix(fmt.Sprintf("fd00:%d::%d/64", 100+network, host))
	}
	return netip.MustParsePrefix(fmt.Sprintf("192.168.%d.%d/24", 100+network, host))
}

// families are the values of address's v6 that the lab uses.
func (f Family) families() (v6 []bool) {
	if f.Has4() {
		v6 = append(v6, false)
	}
	if f.Has6() {
		v6 = append(v6, true)
	}
	return v6
}

// connectInfra runs in Infra: a bridge for each network, the router's address (host 1) on it, and Outside.
func (l *Lab) connectInfra() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	for _, v6 := range l.opts.Family.families() {
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
	// The router is to know its neighbours from the first packet. (Absent on a kernel without IPv6.)
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0o644)
	for network := range l.opts.Subnets {
		snooping := false // there is no querier: neighbour discovery must not depend on one
		br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridgeName(network), MTU: l.opts.MTU}, MulticastSnooping: &snooping}
		// Left to itself, a bridge takes the lowest address of its ports: the router's would change with every cable.
		br.HardwareAddr = net.HardwareAddr{2, 0, 0, 0, byte(network), 1}
		if err := netlink.LinkAdd(br); err != nil {
			return fmt.Errorf("add bridge: %w", err)
		}
		if err := netlink.LinkSetUp(br); err != nil {
			return fmt.Errorf("set bridge up: %w", err)
		}
		for _, v6 := range l.opts.Family.families() {
			if err := addAddr(br, address(v6, network, 1)); err != nil {
				return err
			}
		}
	}
	return nil
}

func bridgeName(network int) string { return fmt.Sprintf("br%d", network) }

// plug runs in Infra: it makes the cable from the bridge of a network to a machine.
func (l *Lab) plug(m *machine.Machine, network, host int) error {
	br, err := netlink.LinkByName(bridgeName(network))
	if err != nil {
		return err
	}
	veth := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: m.Name, MTU: l.opts.MTU, MasterIndex: br.Attrs().Index},
		PeerName:  Uplink, PeerNamespace: netlink.NsFd(m.Files()[0].Fd()), PeerMTU: uint32(l.opts.MTU),
		// A cable that is pulled and plugged in again leaves nobody with a wrong neighbour entry.
		PeerHardwareAddr: net.HardwareAddr{2, 0, 0, 0, byte(network), byte(host)},
	}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("add veth %s: %w", m.Name, err)
	}
	return netlink.LinkSetUp(veth)
}

// unplug runs in a node.
func unplug() error {
	dev, err := netlink.LinkByName(Uplink)
	if err != nil {
		return err
	}
	return netlink.LinkDel(dev)
}

// addressUplink runs in a node: addresses on the underlay, and a default route through the router.
func (l *Lab) addressUplink(network, host int) error {
	dev, err := netlink.LinkByName(Uplink)
	if err != nil {
		return err
	}
	// Nobody else has the address: no second of waiting for a duplicate. (Absent on a kernel without IPv6.)
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+Uplink+"/accept_dad", []byte("0"), 0o644)
	if err := netlink.LinkSetUp(dev); err != nil {
		return err
	}
	for _, v6 := range l.opts.Family.families() {
		if err := addAddr(dev, address(v6, network, host)); err != nil {
			return err
		}
		router := net.IP(address(v6, network, 1).Addr().AsSlice())
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: dev.Attrs().Index, Gw: router}); err != nil {
			return fmt.Errorf("add default route: %w", err)
		}
	}
	return nil
}

func addAddr(dev netlink.Link, p netip.Prefix) error {
	n := &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
	a := &netlink.Addr{IPNet: n}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	if err := netlink.AddrAdd(dev, a); err != nil {
		return fmt.Errorf("add address %s to %s: %w", p, dev.Attrs().Name, err)
	}
	return nil
}
