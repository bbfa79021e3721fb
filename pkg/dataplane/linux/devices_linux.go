package linux

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flannel/pkg/dataplane"
	"flannel/pkg/mac"
	"flannel/pkg/reconcile"
	"flannel/pkg/rtnetlink"
)

// linuxVXLANPort is the kernel's default, older than the port that IANA gave to VXLAN.
const linuxVXLANPort = 8472

// Ensure implements Dataplane. As long as nothing happened to the devices it costs nothing.
func (d *Driver) Ensure(_ context.Context, devices []dataplane.Device) (dataplane.Links, error) {
	same := reflect.DeepEqual(d.devices, devices)
	if same && !d.devicesDirty.Swap(false) {
		return d.ensured, nil
	}
	d.devicesDirty.Store(false)
	links, errs := dataplane.Links{}, []error(nil)
	for _, dev := range devices {
		if dev.Readdress {
			d.macs[dev.Name] = dev.MAC
		}
		d.made[dev.Name] = d.made[dev.Name] || dev.Kind != dataplane.Existing
		link, err := d.ensure(dev)
		if err != nil {
			errs = append(errs, fmt.Errorf("device %s: %w", dev.Name, err))
		}
		if link.Index == 0 && reconcile.IsUnknown(err) {
			link = d.ensured[dev.Name]
		}
		if link.Index != 0 {
			links[dev.Name] = link // not quite right perhaps, but there: what leads through it stays
		}
	}
	d.setScope(devices, links)
	d.devices, d.ensured = slices.Clone(devices), links
	err := errors.Join(errs...)
	d.devicesDirty.CompareAndSwap(false, err != nil)
	if reconcile.IsUnknown(err) {
		d.reopen()
	}
	return links, err
}

// setScope tells the watcher and the tables which devices are ours now; with another one, they must be read again.
func (d *Driver) setScope(devices []dataplane.Device, links dataplane.Links) {
	next := *d.scope.Load()
	next.tunnels, next.links = map[int]bool{}, map[int]bool{}
	for _, dev := range devices {
		if link, ok := links[dev.Name]; ok {
			next.links[link.Index] = true
			if dev.Kind != dataplane.Existing {
				next.tunnels[link.Index] = true
			}
		}
	}
	if old := d.scope.Load(); reflect.DeepEqual(old, &next) {
		return
	}
	d.scope.Store(&next)
	d.relist()
	d.strayDevices.Store(true)
}

// ensure returns the zero Link for a device that does not exist or, with an error that reconcile.IsUnknown, could not
// be looked at.
func (d *Driver) ensure(dev dataplane.Device) (dataplane.Link, error) {
	found, err := d.find(dev.Name)
	switch {
	case err != nil:
		return dataplane.Link{}, err
	case dev.Kind == dataplane.Existing && found == nil:
		return dataplane.Link{}, errors.New("is not there")
	case dev.Kind == dataplane.Existing:
		return linkOf(found), nil
	}
	// All that is needed is read before anything is deleted.
	parent, err := d.find(dev.Parent)
	if err == nil && parent == nil {
		err = errors.New("is not there")
	}
	if err != nil {
		return linkOf(found), fmt.Errorf("underlay %s: %w", dev.Parent, err)
	}
	if found, err = d.dropMisfit(dev, found); err != nil {
		return linkOf(found), err
	}
	if found == nil {
		if err := d.create(dev, parent); err != nil {
			return dataplane.Link{}, err
		}
		found, err = d.find(dev.Name)
		if err == nil && found == nil {
			err = errors.New("somebody deleted it")
		}
		if err != nil {
			return dataplane.Link{}, fmt.Errorf("find it after its creation: %w", err)
		}
	}
	v, ok := found.(*netlink.Vxlan)
	if !ok {
		return linkOf(found), fmt.Errorf("somebody made it anew, of type %s", found.Type())
	}
	err = d.repair(dev, v, parent)
	now, readErr := d.find(dev.Name)
	if readErr != nil {
		return linkOf(found), errors.Join(err, readErr)
	}
	if now == nil {
		err = errors.Join(err, errors.New("somebody deleted it"))
	}
	return linkOf(now), err
}

// dropMisfit deletes a device that cannot be made what it shall be. It returns nil where there is none (any more).
func (d *Driver) dropMisfit(dev dataplane.Device, found netlink.Link) (netlink.Link, error) {
	if found == nil {
		return nil, nil
	}
	if v, ok := found.(*netlink.Vxlan); ok && v.Port == 0 { // every VXLAN device has a port
		return found, reconcile.Unknown(errors.New("the kernel did not describe it completely"))
	}
	why := misfit(found, dev)
	if why == "" {
		return found, nil
	}
	d.opts.Log.Warn("making the device anew, since this cannot be changed while it lives", "device", dev.Name, "why", why)
	if err := d.handle.LinkDel(found); err != nil {
		return found, fmt.Errorf("delete it to make it anew (%s): %w", why, err)
	}
	return nil, nil
}

// linkOf is the zero Link for nil.
func linkOf(l netlink.Link) dataplane.Link {
	if l == nil {
		return dataplane.Link{}
	}
	a := l.Attrs()
	link := dataplane.Link{Index: a.Index, MTU: a.MTU}
	if len(a.HardwareAddr) == len(link.MAC) {
		link.MAC = mac.Addr(a.HardwareAddr)
	}
	return link
}

// misfit tells what about an existing device differs that only a new one can have.
func misfit(l netlink.Link, dev dataplane.Device) string {
	v, ok := l.(*netlink.Vxlan)
	port := int(dev.Port)
	if port == 0 {
		port = linuxVXLANPort
	}
	switch {
	case !ok:
		return "it is of type " + l.Type()
	case v.VxlanId != int(dev.VNI):
		return fmt.Sprintf("VNI %d instead of %d", v.VxlanId, dev.VNI)
	case v.Port != port:
		return fmt.Sprintf("port %d instead of %d", v.Port, port)
	case v.GBP != dev.GBP:
		return fmt.Sprintf("GBP %t instead of %t", v.GBP, dev.GBP)
	case v.Learning != dev.Learning:
		return fmt.Sprintf("learning %t instead of %t", v.Learning, dev.Learning)
	case v.SrcAddr != nil && v.SrcAddr.To4() == nil != dev.Local.Is6():
		return fmt.Sprintf("source %s instead of %s", v.SrcAddr, dev.Local)
	}
	return ""
}

func (d *Driver) create(dev dataplane.Device, parent netlink.Link) error {
	mac := dev.MAC
	if known, ok := d.macs[dev.Name]; ok {
		mac = known
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = dev.Name, dev.MTU, mac[:]
	port := int(dev.Port)
	if port == 0 {
		port = linuxVXLANPort
	}
	err := d.handle.LinkAdd(&netlink.Vxlan{
		LinkAttrs: attrs, VxlanId: int(dev.VNI), Port: port, VtepDevIndex: parent.Attrs().Index,
		SrcAddr: dev.Local.AsSlice(), Learning: dev.Learning, GBP: dev.GBP,
	})
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("create it with VNI %d and port %d: another device has these; delete it or configure others: %w", dev.VNI, port, err)
	}
	if err != nil {
		return fmt.Errorf("create it: %w", err)
	}
	d.opts.Log.Info("created the device", "device", dev.Name, "mac", mac, "mtu", dev.MTU, "underlay", dev.Parent)
	return nil
}

// repair sets everything that can be changed while the device lives, each whatever became of the others.
func (d *Driver) repair(dev dataplane.Device, v *netlink.Vxlan, parent netlink.Link) error {
	errs := []error{d.moveUnderlay(dev, v, parent), d.setMTU(dev, v), d.restoreMAC(dev, v)}
	if err := d.sysctl("net/ipv6/conf/"+dev.Name+"/accept_ra", "0"); reconcile.IsUnknown(err) {
		errs = append(errs, err)
	} else if err != nil {
		d.opts.Log.Debug("left accept_ra as it is", "device", dev.Name, "error", err)
	}
	if v.Flags&net.FlagUp == 0 {
		if err := d.handle.LinkSetUp(v); err != nil {
			errs = append(errs, fmt.Errorf("set it up: %w", err))
		}
	}
	return errors.Join(append(errs, d.addresses(dev, v))...)
}

func (d *Driver) setMTU(dev dataplane.Device, v *netlink.Vxlan) error {
	if dev.MTU == 0 || v.MTU == dev.MTU {
		return nil
	}
	if err := d.handle.LinkSetMTU(v, dev.MTU); err != nil {
		return fmt.Errorf("set its MTU to %d: %w", dev.MTU, err)
	}
	d.opts.Log.Info("set the device's MTU", "device", dev.Name, "from", v.MTU, "to", dev.MTU)
	return nil
}

// restoreMAC: udev and others change addresses of devices; ours must stay the one that the peers know.
func (d *Driver) restoreMAC(dev dataplane.Device, v *netlink.Vxlan) error {
	have := linkOf(v).MAC
	known, ok := d.macs[dev.Name]
	switch {
	case !ok && have != mac.Addr{}:
		d.macs[dev.Name] = have
		return nil
	case !ok || known == have:
		return nil
	}
	if err := d.handle.LinkSetHardwareAddr(v, known[:]); err != nil {
		return fmt.Errorf("set its MAC address to %s: %w", known, err)
	}
	d.opts.Log.Warn("set the device's MAC address", "device", dev.Name, "from", have, "to", known)
	return nil
}

// moveUnderlay makes a living tunnel follow the underlay to another interface or address; its FDB stays.
func (d *Driver) moveUnderlay(dev dataplane.Device, v *netlink.Vxlan, parent netlink.Link) error {
	local, _ := netip.AddrFromSlice(v.SrcAddr)
	if v.VtepDevIndex == parent.Attrs().Index && local.Unmap() == dev.Local {
		return nil
	}
	if err := changeVXLAN(d.conn, v.Index, parent.Attrs().Index, dev); err != nil {
		return fmt.Errorf("move it to %s of %s: %w", dev.Local, dev.Parent, err)
	}
	d.opts.Log.Info("the tunnel follows the underlay", "device", dev.Name, "from", local.Unmap(), "to", dev.Local, "underlay", dev.Parent)
	return nil
}

// addresses makes the device have exactly the addresses wanted; link-local ones are the kernel's.
func (d *Driver) addresses(dev dataplane.Device, l netlink.Link) error {
	have, err := whole(func() ([]netlink.Addr, error) { return d.handle.AddrList(l, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list its addresses: %w", err)
	}
	missing, extra := slices.Clone(dev.Addr), map[netip.Prefix]netlink.Addr{}
	for _, a := range have {
		ip, _ := netip.AddrFromSlice(a.IP)
		bits, _ := a.Mask.Size()
		prefix := netip.PrefixFrom(ip.Unmap(), bits)
		if i := slices.Index(missing, prefix); i >= 0 {
			missing = slices.Delete(missing, i, i+1)
		} else if !ip.IsLinkLocalUnicast() {
			extra[prefix] = a
		}
	}
	for _, prefix := range missing {
		ipnet := &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
		a := &netlink.Addr{IPNet: ipnet}
		if prefix.Addr().Is6() {
			a.Flags = unix.IFA_F_NODAD // nobody else can have it
		}
		if err := d.handle.AddrAdd(l, a); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add its address %s: %w", prefix, err)
		}
	}
	// With its last address a device would lose its routes.
	for prefix, a := range extra {
		if err := d.handle.AddrDel(l, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("delete its address %s: %w", prefix, err)
		}
		d.opts.Log.Info("deleted an address that is not the device's", "device", dev.Name, "address", prefix)
	}
	return nil
}

// changeVXLAN changes parent and source of a VXLAN device. The netlink library would send the port along, which the
// kernel refuses to see in a change.
func changeVXLAN(c *rtnetlink.Conn, index, parent int, dev dataplane.Device) error {
	body := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(body[4:], uint32(index))
	local := uint16(unix.IFLA_VXLAN_LOCAL)
	if dev.Local.Is6() {
		local = unix.IFLA_VXLAN_LOCAL6
	}
	data := rtnetlink.Message(nil).Uint32(unix.IFLA_VXLAN_ID, dev.VNI).Uint32(unix.IFLA_VXLAN_LINK, uint32(parent)).Attr(local, dev.Local.AsSlice())
	info := rtnetlink.Message(nil).Attr(unix.IFLA_INFO_KIND, []byte("vxlan")).Attr(unix.IFLA_INFO_DATA|unix.NLA_F_NESTED, data)
	return first(c.Batch(1, func(m rtnetlink.Message, _ int) rtnetlink.Message {
		return m.Begin(unix.RTM_NEWLINK, 0, body).Attr(unix.IFLA_LINKINFO|unix.NLA_F_NESTED, info)
	}))
}
