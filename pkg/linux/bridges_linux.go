package linux

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flannel/pkg/dataplane"
	"flannel/pkg/linux/rtnetlink"
	"flannel/pkg/reconcile"
)

// formerBridges are bridges with the gateway address of a subnet that this node had
// before. The CNI plugin bridge makes the bridge of pods with the first pod, and refuses
// new pods as long as the bridge has an IPv4 address of another subnet, or an IPv6 one of a
// subnet that overlaps the new one, as after a change of the mask; this is not reported. It
// adds another IPv6 address to the others. It never deletes a bridge, so that this lasts until a boot.
//
//	bridge                     action
//	without ports              its addresses are deleted; the next pod gives it the new ones
//	with ports (pods), IPv4    a dataplane.FormerSubnetError, until the last port leaves
//	with ports (pods), IPv6    the address is deleted once a path leads to its subnet (yield)
//
// A bridge's address has a route to its subnet, which would hide that of a peer that has the
// subnet now. The peer's IPv4 route replaces it (routeStore.Set). The IPv6 one has another
// metric, stays, and is used first. The pods of the former subnet are cut off from other nodes anyway.
// A bridge that is the underlay keeps it: somebody else may need it.
//
// The subnet file says which subnets were this node's. Only the CNI plugin gives a bridge an
// address of one, so that flanneld may delete it. The exception is Docker's default bridge, to which
// an operator can give the node's subnet. Docker sets its address at its start only, so that this
// bridge keeps it. The loop calls leaveSubnets and yield, the watcher the observe methods, both relist.
type formerBridges struct {
	devices  *devices                       // for its netlink socket
	gateways atomic.Pointer[[]netip.Prefix] // of the former subnets; nil before the first leaveSubnets
	dirty    atomic.Bool                    // a bridge may have one of the gateways: the next leaveSubnets looks
	err      error                          // of the last look, which each call returns; of the loop alone
	used     atomic.Bool                    // a bridge with ports has one of the gateways, so that it matters when a port leaves
	used6    []bridgeAddr                   // the IPv6 gateways of bridges with ports, as of the last look; of the loop alone
}

// bridgeAddr is an address of a bridge.
type bridgeAddr struct {
	bridge netlink.Link
	addr   netlink.Addr
}

// LeaveSubnets implements dataplane.Dataplane. Each pass that could read everything calls it. former
// are the subnets that this node had before, by the subnet file; node is this node's name, for the error.
func (d *Driver) LeaveSubnets(former []netip.Prefix, node string) error {
	return d.bridges.leaveSubnets(former, node)
}

// leaveSubnets looks at the bridges again if the former subnets or, by dirty, the bridges have
// changed. It returns the error of the last look.
func (b *formerBridges) leaveSubnets(former []netip.Prefix, node string) error {
	var gateways []netip.Prefix
	for _, p := range former {
		gateways = append(gateways, dataplane.GatewayOf(p))
	}
	if old := b.gateways.Load(); old == nil || !slices.Equal(*old, gateways) {
		b.gateways.Store(&gateways)
		b.dirty.Store(true)
	}
	if b.dirty.Swap(false) {
		b.used.Store(true) // before the ports are read, so that a port that leaves meanwhile sets dirty
		used, err := b.freeBridges(gateways, node)
		b.used.Store(len(used) > 0)
		b.err = err
		for _, e := range used {
			if len(e.Addresses) > 0 { // IPv4; those of IPv6 hinder no pod, unless the new subnet overlaps
				b.err = errors.Join(b.err, e)
			}
		}
		b.dirty.CompareAndSwap(false, err != nil) // after an error, the next pass looks again
		if reconcile.IsUnknown(err) {
			b.devices.reopen()
		}
	}
	return b.err
}

// freeBridges deletes the gateways from bridges without ports, and returns the bridges with
// ports (used) that have one, with their IPv4 addresses, of which there may be none. It sets
// used6. err is about what could not be read or deleted.
func (b *formerBridges) freeBridges(gateways []netip.Prefix, node string) (used []*dataplane.FormerSubnetError, err error) {
	b.used6 = nil
	if len(gateways) == 0 {
		return nil, nil
	}
	addrs, err := readWhole(func() ([]netlink.Addr, error) { return b.devices.handle.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	addrs = slices.DeleteFunc(addrs, func(a netlink.Addr) bool { return !slices.Contains(gateways, rtnetlink.PrefixOf(a.IPNet)) })
	if len(addrs) == 0 {
		return nil, nil
	}
	links, err := b.devices.listLinks()
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, l := range links {
		own := slices.DeleteFunc(slices.Clone(addrs), func(a netlink.Addr) bool { return a.LinkIndex != l.Attrs().Index })
		if l.Type() != "bridge" || l.Attrs().Name == dockerBridge || len(own) == 0 {
			continue
		}
		if !hasPorts(l, links) {
			errs = append(errs, b.freeBridge(l, own))
			continue
		}
		e := &dataplane.FormerSubnetError{Bridge: l.Attrs().Name, Node: node}
		for _, a := range own {
			if p := rtnetlink.PrefixOf(a.IPNet); p.Addr().Is4() {
				e.Addresses = append(e.Addresses, p)
			} else {
				b.used6 = append(b.used6, bridgeAddr{l, a})
			}
		}
		used = append(used, e)
	}
	return used, errors.Join(errs...)
}

// freeBridge deletes the addresses from a bridge without ports.
func (b *formerBridges) freeBridge(bridge netlink.Link, addrs []netlink.Addr) error {
	for _, a := range addrs {
		if err := b.deleteAddr(bridgeAddr{bridge, a}); err != nil {
			return err
		}
		b.devices.log.Info("deleted the gateway of a former subnet from a bridge without pods", "cause", causeBridgeFreed,
			"bridge", bridge.Attrs().Name, "address", rtnetlink.PrefixOf(a.IPNet))
	}
	return nil
}

// yield deletes those IPv6 gateways from bridges with ports whose routes hide that of a path of
// s. Apply calls it when the paths have their routes, except the refused ones.
func (b *formerBridges) yield(s dataplane.State, refused []dataplane.Refused) error {
	var errs []error
	b.used6 = slices.DeleteFunc(b.used6, func(g bridgeAddr) bool {
		gateway := rtnetlink.PrefixOf(g.addr.IPNet)
		if !slices.ContainsFunc(s.Paths, func(p *dataplane.Path) bool {
			return p.Dst.Contains(gateway.Addr()) && p.Dst.Bits() <= gateway.Bits() &&
				!slices.ContainsFunc(refused, func(r dataplane.Refused) bool { return r.Dst == p.Dst })
		}) {
			return false
		}
		underlay, err := b.isUnderlay(g.bridge, s.Underlay)
		if err == nil && !underlay {
			err = b.deleteAddr(g)
		}
		if err != nil {
			errs = append(errs, err)
			b.dirty.Store(true) // the next pass looks again
		}
		if err != nil || underlay {
			return false
		}
		b.devices.log.Warn("another node has a former subnet of this node: deleted its gateway from the bridge; pods with an address of it must be recreated",
			"cause", causeBridgeYielded, "bridge", g.bridge.Attrs().Name, "address", gateway)
		return true
	})
	return errors.Join(errs...)
}

// isUnderlay reports whether a bridge has one of this node's own addresses in underlay.
func (b *formerBridges) isUnderlay(bridge netlink.Link, underlay []netip.Prefix) (bool, error) {
	addrs, err := readWhole(func() ([]netlink.Addr, error) { return b.devices.handle.AddrList(bridge, netlink.FAMILY_ALL) })
	if err != nil {
		return false, fmt.Errorf("list the addresses of %s: %w", bridge.Attrs().Name, err)
	}
	return slices.ContainsFunc(addrs, func(a netlink.Addr) bool {
		own := rtnetlink.PrefixOf(a.IPNet).Addr()
		return slices.Contains(underlay, netip.PrefixFrom(own, own.BitLen()))
	}), nil
}

// deleteAddr deletes an address, which may be gone already.
func (b *formerBridges) deleteAddr(a bridgeAddr) error {
	err := b.devices.handle.AddrDel(a.bridge, &a.addr)
	if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete %s from the bridge %s: %w", rtnetlink.PrefixOf(a.addr.IPNet), a.bridge.Attrs().Name, err)
	}
	return nil
}

// dockerBridge is the name of Docker's default bridge.
const dockerBridge = "docker0"

// These are causes in the log.
const (
	causeBridgeFreed   = "bridge-freed"
	causeBridgeYielded = "bridge-yielded"
)

// hasPorts reports whether a bridge has ports.
func hasPorts(bridge netlink.Link, all []netlink.Link) bool {
	return slices.ContainsFunc(all, func(l netlink.Link) bool { return l.Attrs().MasterIndex == bridge.Attrs().Index })
}

// relist makes the next pass look at the bridges again.
func (b *formerBridges) relist() { b.dirty.Store(true) }

// observeAddr makes the next pass look at the bridges again if the address is that of a
// former gateway: somebody may have added the address, or have deleted it from a bridge
// with ports. It reports whether a pass is due.
func (b *formerBridges) observeAddr(ip netip.Addr) bool {
	gateways := b.gateways.Load()
	if gateways == nil || !slices.ContainsFunc(*gateways, func(g netip.Prefix) bool { return g.Addr() == ip }) {
		return false
	}
	b.dirty.Store(true)
	return true
}

// observePortLeft makes the next pass look at the bridges again, after a port left one, if
// one with ports has a former gateway. It reports whether a pass is due.
func (b *formerBridges) observePortLeft() bool {
	if !b.used.Load() {
		return false
	}
	b.dirty.Store(true)
	return true
}
