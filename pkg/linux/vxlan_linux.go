package linux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flannel/pkg/dataplane"
	"flannel/pkg/linux/rtnetlink"
	"flannel/pkg/reconcile"
)

// vxlan drives VXLAN tunnels. A path is one entry in each of three tables. The
// gateway of the route is the base address of the peer's subnet. For the peer
// 10.244.2.0/24 on the host 192.168.0.3 with the VTEP 02:00:00:00:00:03:
//
//	route       10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink
//	neighbour   10.244.2.0 dev flannel.1 lladdr 02:00:00:00:00:03
//	FDB         02:00:00:00:00:03 dev flannel.1 dst 192.168.0.3
//
// The neighbour (ARP) entry gives the inner packet its destination MAC address,
// and the FDB entry gives the outer packet its destination IP address. An IPv6
// path has the same three entries on flannel-v6.1.
//
// vxlan is a kind: kind_linux.go says when the driver calls its methods. none has the methods that
// do nothing, and host has the tables and devices. Driver.Ensure adds the device's name to the errors.
type vxlan struct {
	none
	host
}

// newVXLAN returns the kind of VXLAN devices.
func newVXLAN(h host) kind { return &vxlan{host: h} }

func (k *vxlan) fill(f *dataplane.Filling, p *dataplane.Path, link dataplane.Link) {
	end := p.Encap.(dataplane.VTEP).MAC
	gateway := p.Dst.Addr()
	// The route is first, because its error is the most useful one (kind.fill). The order of
	// writing is that of the tables.
	k.putRoute(f, p.Dst, hop{Via: gateway, Index: link.Index, Onlink: true})
	dataplane.Put(f, k.fdb, fdbKey{link.Index, end}, p.Via)
	dataplane.Put(f, k.neighs, neighKey{link.Index, gateway}, end)
}

func (k *vxlan) found(dev dataplane.Device, routes []routeEntry, _ dataplane.State) []*dataplane.Path {
	return pathsOf(routes, func(dst netip.Prefix, h hop) *dataplane.Path {
		end, resolved := k.neighs.Actual(neighKey{h.Index, h.Via})
		via, forwarded := k.fdb.Actual(fdbKey{h.Index, end})
		if !h.Onlink || h.Via != dst.Addr() || !resolved || !forwarded {
			return nil
		}
		return &dataplane.Path{Dst: dst, Via: via, Device: dev.Name, Encap: dataplane.VTEP{MAC: end}}
	})
}

// vxlanPort returns the port, Linux' default in place of 0.
func vxlanPort(want dataplane.VXLAN) int { return int(dataplane.TraitsOf(want).Port) }

func (k *vxlan) ensure(dev dataplane.Device, found netlink.Link) (dataplane.Link, error) {
	want := dev.Kind.(dataplane.VXLAN)
	v, ok := found.(*netlink.Vxlan)
	if found != nil && !ok {
		return dataplane.Link{}, fmt.Errorf("there is a device of this name and of type %s, which is not flannel's: delete it, or set Backend.VNI to another", found.Type())
	}
	// Read everything before deleting anything. A Link that is returned with an error is that
	// of a device that exists but could not be repaired: paths through it stay. The zero Link
	// takes its paths away. linkOf(nil) is the zero Link.
	parent, err := k.underlayOf(want.Tunnel)
	if err != nil {
		return linkOf(found), err
	}
	if v, err = k.deleteMismatch(dev, want, v); err != nil {
		return linkOf(found), err
	}
	if v == nil { // there was none, or it was deleted
		if err := k.create(dev, want, parent); err != nil {
			return dataplane.Link{}, err
		}
		if found, err = k.find(dev.Name); err != nil {
			return dataplane.Link{}, fmt.Errorf("find it after creating it: %w", err)
		}
		if v, ok = found.(*netlink.Vxlan); !ok {
			return dataplane.Link{}, errors.New("somebody deleted or replaced it just after its creation")
		}
	}
	return k.linkAfterRepair(v, errors.Join(k.moveUnderlay(dev, want, v, parent), k.repairTunnel(dev, want.Tunnel, v)))
}

// deleteMismatch deletes a device with wrong properties that cannot be changed.
// The result is the device, or nil if there is none or it was deleted.
func (k *vxlan) deleteMismatch(dev dataplane.Device, want dataplane.VXLAN, found *netlink.Vxlan) (*netlink.Vxlan, error) {
	if found == nil {
		return nil, nil
	}
	if found.Port == 0 { // every VXLAN device has a port; Unknown, so that nothing is deleted
		return found, reconcile.Unknown(errors.New("the kernel did not describe it completely"))
	}
	why := mismatch(found, want)
	if why == "" {
		return found, nil
	}
	k.log.Warn("recreating the device, its properties cannot be changed", "device", dev.Name, "why", why)
	if _, known := k.macs[dev.Name]; !known { // the peers know that of an earlier run: create gives it to the new device
		k.macs[dev.Name] = linkOf(found).MAC
	}
	if err := k.handle.LinkDel(found); err != nil {
		return found, fmt.Errorf("delete it to create it again (%s): %w", why, err)
	}
	return nil, nil
}

// mismatch returns a property of an existing device that is wrong and cannot be
// changed; "": none.
func mismatch(v *netlink.Vxlan, want dataplane.VXLAN) string {
	port := vxlanPort(want)
	switch {
	case v.VxlanId != int(want.VNI):
		return fmt.Sprintf("VNI %d instead of %d", v.VxlanId, want.VNI)
	case v.Port != port:
		return fmt.Sprintf("port %d instead of %d", v.Port, port)
	case v.GBP != want.GBP:
		return fmt.Sprintf("GBP %t instead of %t", v.GBP, want.GBP)
	case v.Learning != want.Learning:
		return fmt.Sprintf("learning %t instead of %t", v.Learning, want.Learning)
	case v.SrcAddr != nil && v.SrcAddr.To4() == nil != want.Local.Is6(): // another family; otherwise, moveUnderlay changes it
		return fmt.Sprintf("source %s instead of %s", v.SrcAddr, want.Local)
	}
	return ""
}

// create creates the device, down and without addresses; repairTunnel adds the rest.
func (k *vxlan) create(dev dataplane.Device, want dataplane.VXLAN, parent netlink.Link) error {
	// A device that was deleted gets the MAC address back that the peers know, unless
	// Readdress asks for the one of dev.
	mac := dev.MAC
	if known, ok := k.macs[dev.Name]; ok && !dev.Readdress {
		mac = known
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = dev.Name, want.MTU, mac[:]
	port := vxlanPort(want)
	err := k.addDevice(&netlink.Vxlan{
		LinkAttrs: attrs, VxlanId: int(want.VNI), Port: port, VtepDevIndex: parent.Attrs().Index,
		SrcAddr: want.Local.AsSlice(), Learning: want.Learning, GBP: want.GBP,
	})
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("create it with VNI %d and port %d: another device has these; delete it or configure others: %w", want.VNI, port, err)
	}
	if err != nil {
		return fmt.Errorf("create it: %w", err)
	}
	k.logDevice("created the device", "device", dev.Name, "mac", mac, "mtu", want.MTU, "underlay", want.Parent)
	return nil
}

// moveUnderlay changes an existing tunnel to another underlay interface or address.
// The device keeps its FDB.
func (k *vxlan) moveUnderlay(dev dataplane.Device, want dataplane.VXLAN, v *netlink.Vxlan, parent netlink.Link) error {
	local := rtnetlink.AddrOf(v.SrcAddr)
	if v.VtepDevIndex == parent.Attrs().Index && local == want.Local {
		return nil
	}
	if err := changeVXLAN(v.Index, parent.Attrs().Index, want); err != nil {
		return fmt.Errorf("move it to %s of %s: %w", want.Local, want.Parent, err)
	}
	k.logDevice("moved the tunnel to another underlay", "device", dev.Name, "from", local, "to", want.Local, "underlay", want.Parent)
	return nil
}

// changeVXLAN changes the parent and the source of a VXLAN device. The netlink
// library would include the port, which the kernel does not allow in a change.
func changeVXLAN(index, parent int, want dataplane.VXLAN) error {
	local := uint16(unix.IFLA_VXLAN_LOCAL)
	if want.Local.Is6() {
		local = unix.IFLA_VXLAN_LOCAL6
	}
	return changeTunnel(index, "vxlan", rtnetlink.Message(nil).Uint32(unix.IFLA_VXLAN_ID, want.VNI).
		Uint32(unix.IFLA_VXLAN_LINK, uint32(parent)).Attr(local, want.Local.AsSlice()))
}

// changeTunnel sets the properties of a tunnel; data are the attributes of IFLA_INFO_DATA. It uses a
// connection of its own, because the watcher does not see what the driver's own connection changes.
// The watcher must see this change: with the old state in watcher.last, a change back to it by
// somebody else would look like none.
func changeTunnel(index int, kind string, data rtnetlink.Message) (err error) {
	c, err := rtnetlink.Dial(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	body := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(body[4:], uint32(index))
	info := rtnetlink.Message(nil).Attr(unix.IFLA_INFO_KIND, []byte(kind)).Attr(unix.IFLA_INFO_DATA|unix.NLA_F_NESTED, data)
	return errors.Join(c.Batch(1, func(m rtnetlink.Message, _ int) rtnetlink.Message {
		return m.Begin(unix.RTM_NEWLINK, 0, body).Attr(unix.IFLA_LINKINFO|unix.NLA_F_NESTED, info)
	})...)
}
