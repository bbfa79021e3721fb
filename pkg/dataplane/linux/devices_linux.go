package linux

import (
	"context"
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
)

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
		d.made[dev.Name] = d.made[dev.Name] || isMade(dev)
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
			if isMade(dev) {
				next.tunnels[link.Index] = true
			}
		}
	}
	if old := d.scope.Load(); reflect.DeepEqual(old, &next) {
		return
	}
	d.scope.Store(&next)
	d.tables.Relist()
	d.strayDevices.Store(true)
}

// ensure is kind.ensure.
func (d *Driver) ensure(dev dataplane.Device) (dataplane.Link, error) {
	k, err := driving(dev)
	if err != nil {
		return dataplane.Link{}, err
	}
	found, err := d.find(dev.Name)
	if err != nil {
		return dataplane.Link{}, err
	}
	return k.ensure(d, dev, found)
}

// underlayOf finds the device that a tunnel sends through.
func (d *Driver) underlayOf(t dataplane.Tunnel) (netlink.Link, error) {
	parent, err := d.find(t.Parent)
	if err == nil && parent == nil {
		err = errors.New("is not there")
	}
	if err != nil {
		return nil, fmt.Errorf("underlay %s: %w", t.Parent, err)
	}
	return parent, nil
}

// created finds a device that we have just made.
func (d *Driver) created(name string) (netlink.Link, error) {
	found, err := d.find(name)
	if err == nil && found == nil {
		err = errors.New("somebody deleted it")
	}
	if err != nil {
		return nil, fmt.Errorf("find it after its creation: %w", err)
	}
	return found, nil
}

// repaired is what repairing a device came to: the link as it is now, and why it is not as it shall be.
func (d *Driver) repaired(was netlink.Link, err error) (dataplane.Link, error) {
	now, readErr := d.find(was.Attrs().Name)
	if readErr != nil {
		return linkOf(was), errors.Join(err, readErr)
	}
	if now == nil {
		err = errors.Join(err, errors.New("somebody deleted it"))
	}
	return linkOf(now), err
}

// repairTunnel sets what tunnel devices of all kinds have and what can be changed while they live, each whatever became of
// the others.
func (d *Driver) repairTunnel(dev dataplane.Device, t dataplane.Tunnel, l netlink.Link) error {
	errs := []error{d.setMTU(dev.Name, t.MTU, l), d.restoreMAC(dev.Name, l)}
	if err := d.sysctl("net/ipv6/conf/"+dev.Name+"/accept_ra", "0"); reconcile.IsUnknown(err) {
		errs = append(errs, err)
	} else if err != nil {
		d.opts.Log.Debug("left accept_ra as it is", "device", dev.Name, "error", err)
	}
	if l.Attrs().Flags&net.FlagUp == 0 {
		if err := d.handle.LinkSetUp(l); err != nil {
			errs = append(errs, fmt.Errorf("set it up: %w", err))
		}
	}
	return errors.Join(append(errs, d.addresses(dev.Name, t.Addr, l))...)
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

func (d *Driver) setMTU(name string, mtu int, l netlink.Link) error {
	if mtu == 0 || l.Attrs().MTU == mtu {
		return nil
	}
	if err := d.handle.LinkSetMTU(l, mtu); err != nil {
		return fmt.Errorf("set its MTU to %d: %w", mtu, err)
	}
	d.opts.Log.Info("set the device's MTU", "device", name, "from", l.Attrs().MTU, "to", mtu)
	return nil
}

// restoreMAC: udev and others change addresses of devices; ours must stay the one that the peers know.
func (d *Driver) restoreMAC(name string, l netlink.Link) error {
	have := linkOf(l).MAC
	known, ok := d.macs[name]
	switch {
	case !ok && have != mac.Addr{}:
		d.macs[name] = have
		return nil
	case !ok || known == have:
		return nil
	}
	if err := d.handle.LinkSetHardwareAddr(l, known[:]); err != nil {
		return fmt.Errorf("set its MAC address to %s: %w", known, err)
	}
	d.opts.Log.Warn("set the device's MAC address", "device", name, "from", have, "to", known)
	return nil
}

// addresses makes the device have exactly the addresses wanted; link-local ones are the kernel's.
func (d *Driver) addresses(name string, want []netip.Prefix, l netlink.Link) error {
	have, err := whole(func() ([]netlink.Addr, error) { return d.handle.AddrList(l, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list its addresses: %w", err)
	}
	missing, extra := slices.Clone(want), map[netip.Prefix]netlink.Addr{}
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
		d.opts.Log.Info("deleted an address that is not the device's", "device", name, "address", prefix)
	}
	return nil
}
