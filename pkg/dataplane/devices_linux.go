package dataplane

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"regexp"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// linuxVXLANPort is the kernel's default, older than the port that IANA gave to VXLAN.
const linuxVXLANPort = 8472

// Ensure implements Dataplane. As long as nothing happened to the devices it costs nothing.
func (d *Linux) Ensure(_ context.Context, devices []Device) (Links, error) {
	same := reflect.DeepEqual(d.devices, devices)
	if same && !d.devicesDirty.Swap(false) {
		return d.ensured, nil
	}
	d.devicesDirty.Store(false)
	links, errs := Links{}, []error(nil)
	for _, dev := range devices {
		link, err := d.ensure(dev)
		if err != nil {
			errs = append(errs, fmt.Errorf("device %s: %w", dev.Name, err))
		}
		if link.Index != 0 {
			links[dev.Name] = link // not quite right perhaps, but there: what leads through it stays
		}
	}
	d.setScope(devices, links)
	d.devices, d.ensured = slices.Clone(devices), links
	if len(errs) > 0 {
		d.devicesDirty.Store(true)
	}
	return links, errors.Join(errs...)
}

// setScope tells the watcher and the tables which devices are ours now; with another one, they must be read again.
func (d *Linux) setScope(devices []Device, links Links) {
	next := &scope{tunnels: map[int]bool{}, links: map[int]bool{}, networks: d.scope.Load().networks}
	for _, dev := range devices {
		if link, ok := links[dev.Name]; ok {
			next.links[link.Index] = true
			if dev.Kind != Existing {
				next.tunnels[link.Index] = true
			}
		}
	}
	if old := d.scope.Load(); reflect.DeepEqual(old, next) {
		return
	}
	d.scope.Store(next)
	d.relist()
	d.strayDevices.Store(true)
}

func (d *Linux) ensure(dev Device) (Link, error) {
	found, err := netlink.LinkByName(dev.Name)
	missing := errors.As(err, &netlink.LinkNotFoundError{})
	switch {
	case err != nil && !missing:
		return Link{}, err
	case missing && dev.Kind == Existing:
		return Link{}, errors.New("is not there")
	case dev.Kind == Existing:
		return linkOf(found), nil
	}
	if !missing {
		if why := misfit(found, dev); why != "" {
			d.opts.Log.Warn("making the device anew, since this cannot be changed while it lives", "device", dev.Name, "why", why)
			if err := netlink.LinkDel(found); err != nil {
				return Link{}, fmt.Errorf("delete it to make it anew (%s): %w", why, err)
			}
			missing = true
		}
	}
	if missing {
		if err := d.create(dev); err != nil {
			return Link{}, err
		}
		if found, err = netlink.LinkByName(dev.Name); err != nil {
			return Link{}, fmt.Errorf("find it after its creation: %w", err)
		}
	}
	if err := d.repair(dev, found); err != nil {
		return linkOf(found), err
	}
	if found, err = netlink.LinkByName(dev.Name); err != nil {
		return Link{}, err
	}
	return linkOf(found), nil
}

func linkOf(l netlink.Link) Link {
	a := l.Attrs()
	link := Link{Index: a.Index, MTU: a.MTU}
	if len(a.HardwareAddr) == len(link.MAC) {
		link.MAC = MAC(a.HardwareAddr)
	}
	return link
}

// misfit tells what about an existing device differs that only a new one can have.
func misfit(l netlink.Link, dev Device) string {
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

func (d *Linux) create(dev Device) error {
	parent, err := netlink.LinkByName(dev.Parent)
	if err != nil {
		return fmt.Errorf("underlay %s: %w", dev.Parent, err)
	}
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
	err = netlink.LinkAdd(&netlink.Vxlan{
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

// repair sets everything that can be changed while the device lives.
func (d *Linux) repair(dev Device, l netlink.Link) error {
	if err := d.moveUnderlay(dev, l.(*netlink.Vxlan)); err != nil {
		return err
	}
	a := l.Attrs()
	if dev.MTU != 0 && a.MTU != dev.MTU {
		if err := netlink.LinkSetMTU(l, dev.MTU); err != nil {
			return fmt.Errorf("set its MTU to %d: %w", dev.MTU, err)
		}
		d.opts.Log.Info("set the device's MTU", "device", dev.Name, "from", a.MTU, "to", dev.MTU)
	}
	// udev and others change addresses of devices; ours must stay the one that the peers know.
	if known, ok := d.macs[dev.Name]; !ok {
		d.macs[dev.Name] = linkOf(l).MAC
	} else if known != linkOf(l).MAC {
		if err := netlink.LinkSetHardwareAddr(l, known[:]); err != nil {
			return fmt.Errorf("set its MAC address back to %s: %w", known, err)
		}
		d.opts.Log.Warn("set the device's MAC address back", "device", dev.Name, "from", linkOf(l).MAC, "to", known)
	}
	// Before it is up: no router may give it an address. It must be tried although the whole file may be read-only.
	if err := d.sysctl("net/ipv6/conf/"+dev.Name+"/accept_ra", "0"); err != nil {
		d.opts.Log.Debug("left accept_ra as it is", "device", dev.Name, "error", err)
	}
	if a.Flags&net.FlagUp == 0 {
		if err := netlink.LinkSetUp(l); err != nil {
			return fmt.Errorf("set it up: %w", err)
		}
	}
	return d.addresses(dev, l)
}

// moveUnderlay makes a living tunnel follow the underlay to another interface or address; its FDB stays.
func (d *Linux) moveUnderlay(dev Device, v *netlink.Vxlan) error {
	parent, err := netlink.LinkByName(dev.Parent)
	if err != nil {
		return fmt.Errorf("underlay %s: %w", dev.Parent, err)
	}
	local, _ := netip.AddrFromSlice(v.SrcAddr)
	if v.VtepDevIndex == parent.Attrs().Index && local.Unmap() == dev.Local {
		return nil
	}
	if err := changeVXLAN(v.Index, parent.Attrs().Index, dev); err != nil {
		return fmt.Errorf("move it to %s of %s: %w", dev.Local, dev.Parent, err)
	}
	d.opts.Log.Info("the tunnel follows the underlay", "device", dev.Name, "from", local.Unmap(), "to", dev.Local, "underlay", dev.Parent)
	return nil
}

// addresses makes the device have exactly the addresses wanted; link-local ones are the kernel's.
func (d *Linux) addresses(dev Device, l netlink.Link) error {
	var have []netlink.Addr
	err := retryInterrupted(func() (err error) {
		have, err = netlink.AddrList(l, netlink.FAMILY_ALL)
		return err
	})
	if err != nil {
		return fmt.Errorf("list its addresses: %w", err)
	}
	missing := slices.Clone(dev.Addr)
	for _, a := range have {
		ip, _ := netip.AddrFromSlice(a.IP)
		bits, _ := a.Mask.Size()
		prefix := netip.PrefixFrom(ip.Unmap(), bits)
		if i := slices.Index(missing, prefix); i >= 0 {
			missing = slices.Delete(missing, i, i+1)
		} else if !ip.IsLinkLocalUnicast() {
			if err := netlink.AddrDel(l, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
				return fmt.Errorf("delete its address %s: %w", prefix, err)
			}
			d.opts.Log.Info("deleted an address that is not the device's", "device", dev.Name, "address", prefix)
		}
	}
	for _, prefix := range missing {
		ipnet := &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
		a := &netlink.Addr{IPNet: ipnet}
		if prefix.Addr().Is6() {
			a.Flags = unix.IFA_F_NODAD // nobody else can have it
		}
		if err := netlink.AddrAdd(l, a); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add its address %s: %w", prefix, err)
		}
	}
	return nil
}

// retryInterrupted repeats a dump that another change tore.
func retryInterrupted(dump func() error) (err error) {
	for range dumpTries {
		if err = dump(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return err
		}
	}
	return err
}

// ourDevices are the names and types of all that a flannel of any backend makes.
var ourDevices = []struct {
	name *regexp.Regexp
	kind string
}{
	{regexp.MustCompile(`^flannel(-v6)?\.\d+$`), "vxlan"},
	{regexp.MustCompile(`^flannel\.ipip$`), "ipip"},
	{regexp.MustCompile(`^flannel-wg(-v6)?$`), "wireguard"},
	{regexp.MustCompile(`^flannel\d+$`), "tuntap"},
}

func isOurs(l netlink.Link) bool {
	for _, o := range ourDevices {
		if o.name.MatchString(l.Attrs().Name) && (l.Type() == o.kind || l.Type() == "tun") {
			return true
		}
	}
	return false
}

// pruneDevices deletes the devices of ours that Ensure was not given: another backend, VNI or family left them.
func (d *Linux) pruneDevices() error {
	if !d.strayDevices.Swap(false) {
		return nil
	}
	all, err := listLinks()
	if err != nil {
		d.strayDevices.Store(true)
		return err
	}
	var errs []error
	for _, l := range all {
		name := l.Attrs().Name
		if slices.ContainsFunc(d.devices, func(dev Device) bool { return dev.Name == name }) || !isOurs(l) {
			continue
		}
		if err := netlink.LinkDel(l); err != nil {
			errs = append(errs, fmt.Errorf("delete the device %s: %w", name, err))
			d.strayDevices.Store(true)
			continue
		}
		d.opts.Log.Info("deleted a device that the configuration no longer has", "device", name)
	}
	return errors.Join(errs...)
}

func listLinks() (all []netlink.Link, err error) {
	err = retryInterrupted(func() (err error) {
		all, err = netlink.LinkList()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	return all, nil
}

// changeVXLAN changes parent and source of a VXLAN device. The netlink library would send the port along, which the
// kernel refuses to see in a change.
func changeVXLAN(index, parent int, dev Device) error {
	body := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(body[4:], uint32(index))
	local := uint16(unix.IFLA_VXLAN_LOCAL)
	if dev.Local.Is6() {
		local = unix.IFLA_VXLAN_LOCAL6
	}
	data := message(nil).uint32(unix.IFLA_VXLAN_ID, dev.VNI).uint32(unix.IFLA_VXLAN_LINK, uint32(parent)).attr(local, dev.Local.AsSlice())
	info := message(nil).attr(unix.IFLA_INFO_KIND, []byte("vxlan")).attr(unix.IFLA_INFO_DATA|unix.NLA_F_NESTED, data)
	c, err := dial(false)
	if err != nil {
		return err
	}
	defer c.Close()
	return first(c.batch(1, func(m message, _ int) message {
		return m.begin(unix.RTM_NEWLINK, 0, body).attr(unix.IFLA_LINKINFO|unix.NLA_F_NESTED, info)
	}))
}
