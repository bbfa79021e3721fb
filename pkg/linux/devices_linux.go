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

// Ensure implements Dataplane. It does nothing if no device has changed.
func (d *Driver) Ensure(_ context.Context, devices []dataplane.Device) (dataplane.Links, error) {
	if dirty := d.devicesDirty.Swap(false); !dirty && reflect.DeepEqual(d.devices, devices) {
		return d.ensured, nil
	}
	d.repairing = d.devicesSettled && reflect.DeepEqual(d.devices, devices)
	d.deviceChanges = 0
	links, errs := dataplane.Links{}, []error(nil)
	for _, dev := range devices {
		d.made[dev.Name] = d.made[dev.Name] || isTunnel(dev)
		link, err := d.ensure(dev)
		if err != nil {
			errs = append(errs, fmt.Errorf("device %s: %w", dev.Name, err))
		}
		if link.Index == 0 && reconcile.IsUnknown(err) {
			link = d.ensured[dev.Name]
		}
		if link.Index != 0 {
			links[dev.Name] = link // even after an error: paths through it stay
		}
	}
	d.setScope(devices, links)
	d.devices, d.ensured = slices.Clone(devices), links
	err := errors.Join(errs...)
	if d.repairing {
		d.opts.Repairs.Count("devices", d.deviceChanges)
	}
	d.devicesSettled = err == nil
	d.devicesDirty.CompareAndSwap(false, err != nil)
	if reconcile.IsUnknown(err) {
		d.reopen()
	}
	return links, err
}

// setScope sets which devices are ours, for the watcher and the tables. If that
// changes, the tables are listed again.
func (d *Driver) setScope(devices []dataplane.Device, links dataplane.Links) {
	old := d.scope.Load()
	next := *old
	next.tunnels, next.links = map[int]bool{}, map[int]bool{}
	for _, dev := range devices {
		if link, ok := links[dev.Name]; ok {
			next.links[link.Index] = true
			if isTunnel(dev) {
				next.tunnels[link.Index] = true
			}
		}
	}
	if reflect.DeepEqual(old, &next) {
		return
	}
	d.scope.Store(&next)
	d.tables.Relist()
	d.strayDevices.Store(true)
}

// ensure finds the device and calls kind.ensure.
func (d *Driver) ensure(dev dataplane.Device) (dataplane.Link, error) {
	k, err := kindOf(dev)
	if err != nil {
		return dataplane.Link{}, err
	}
	found, err := d.find(dev.Name)
	if err != nil {
		return dataplane.Link{}, err
	}
	return k.ensure(d, dev, found)
}

// underlayOf returns the device through which a tunnel sends.
func (d *Driver) underlayOf(t dataplane.Tunnel) (netlink.Link, error) {
	parent, err := d.find(t.Parent)
	if err == nil && parent == nil {
		err = errors.New("does not exist")
	}
	if err != nil {
		return nil, fmt.Errorf("underlay %s: %w", t.Parent, err)
	}
	return parent, nil
}

// addDevice creates a device. If the kernel does not know its type, the error is a
// NoModuleError.
func (d *Driver) addDevice(l netlink.Link) error {
	err := d.handle.LinkAdd(l)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return &NoModuleError{Module: l.Type(), err: err}
	}
	return err
}

// NoModuleError is the error of creating a device for which the kernel has no
// module. The kernel loads modules itself if they are installed.
type NoModuleError struct {
	Module string // "ipip"
	text   string // if the usual text does not fit
	err    error  // of the kernel; nil: text says all
}

func (e *NoModuleError) Error() string {
	if e.text != "" {
		return e.text
	}
	return fmt.Sprintf("the kernel lacks the module %[1]s: run modprobe %[1]s on the host, install the package with the kernel's modules "+
		"if it does not find it, or use another backend (%[2]v)", e.Module, e.err)
}

func (e *NoModuleError) Unwrap() error { return e.err }

// Cause is the value of the attribute cause in the log.
func (e *NoModuleError) Cause() string { return "no-kernel-module" }

// linkAfterRepair reads the device again after its repair, and returns it
// together with the error of the repair.
func (d *Driver) linkAfterRepair(before netlink.Link, err error) (dataplane.Link, error) {
	after, readErr := d.find(before.Attrs().Name)
	if readErr != nil {
		return linkOf(before), errors.Join(err, readErr)
	}
	if after == nil {
		err = errors.Join(err, errors.New("somebody deleted it"))
	}
	return linkOf(after), err
}

// repairTunnel sets the properties that tunnel devices of all kinds have, as far
// as an existing device can change them. An error does not stop the rest.
func (d *Driver) repairTunnel(dev dataplane.Device, t dataplane.Tunnel, l netlink.Link) error {
	errs := []error{d.setMTU(dev.Name, t.MTU, l), d.restoreMAC(dev, l), d.setDeviceSysctls(dev.Name, t.Addr)}
	if l.Attrs().Flags&net.FlagUp == 0 {
		if err := d.handle.LinkSetUp(l); err != nil {
			errs = append(errs, fmt.Errorf("bring it up: %w", err))
		} else {
			d.logPart("brought the device up", "device", dev.Name)
		}
	}
	return errors.Join(append(errs, d.setAddresses(dev.Name, t.Addr, l))...)
}

// linkOf returns the zero Link for nil.
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
	d.logDevice("changed the device's MTU", "device", name, "from", l.Attrs().MTU, "to", mtu)
	return nil
}

// Causes in the log of a MAC address that was set.
const (
	causeMACRestored = "mac-restored" // somebody else had changed it
	causeMACChanged  = "mac-changed"  // the device gets a new one, which is published
)

// restoreMAC restores the MAC address that the peers know, which udev and others
// may change, or sets the one that Device.Readdress requires. The first call for a
// device remembers the one that it has.
func (d *Driver) restoreMAC(dev dataplane.Device, l netlink.Link) error {
	have := linkOf(l).MAC
	known, ok := d.macs[dev.Name]
	want := known
	switch {
	case dev.Readdress:
		want = dev.MAC
	case !ok:
		want = have
	}
	if want != have {
		if err := d.handle.LinkSetHardwareAddr(l, want[:]); err != nil {
			return fmt.Errorf("set its MAC address to %s: %w", want, err)
		}
		text, cause := "restored the device's MAC address", causeMACRestored
		if want != known {
			text, cause = "gave the device another MAC address", causeMACChanged
		}
		d.logDevice(text, "cause", cause, "device", dev.Name, "from", have, "to", want)
	}
	if want != (mac.Addr{}) {
		d.macs[dev.Name] = want
	}
	return nil
}

// logDevice logs a change of a device, and counts it.
func (d *Driver) logDevice(text string, attrs ...any) {
	d.deviceChanges++
	d.opts.Log.Info(text, attrs...)
}

// logPart is logDevice for changes that are also a part of creating a device, where they
// are not worth a line.
func (d *Driver) logPart(text string, attrs ...any) {
	if d.repairing {
		d.logDevice(text, attrs...)
	}
}

// setAddresses gives the device exactly the wanted addresses, apart from the
// link-local ones, which the kernel manages. It adds before it deletes: a device
// that loses its last address loses its routes.
func (d *Driver) setAddresses(name string, want []netip.Prefix, l netlink.Link) error {
	have, err := readWhole(func() ([]netlink.Addr, error) { return d.handle.AddrList(l, netlink.FAMILY_ALL) })
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
			a.Flags = unix.IFA_F_NODAD // no duplicate is possible
		}
		if err := d.handle.AddrAdd(l, a); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add its address %s: %w", prefix, err)
		}
		d.logPart("added an address to the device", "device", name, "address", prefix)
	}
	for prefix, a := range extra {
		if err := d.handle.AddrDel(l, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("delete its address %s: %w", prefix, err)
		}
		d.logDevice("deleted an unwanted address of the device", "device", name, "address", prefix)
	}
	return nil
}
