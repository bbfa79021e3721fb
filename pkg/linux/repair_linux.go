package linux

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flannel/pkg/dataplane"
	"flannel/pkg/linux/rtnetlink"
)

// repairTunnel is called by the ensure of each kind of tunnel, also for a device that was just
// created. It sets the properties that tunnel devices of all kinds have, as far as an existing
// device can change them. An error does not stop the rest. l is the device as it was read, so that
// what already is as wanted is not written again.
func (d *devices) repairTunnel(dev dataplane.Device, t dataplane.Tunnel, l netlink.Link) error {
	errs := []error{d.setMTU(dev.Name, t.MTU, l), d.restoreMAC(dev, l), d.sysctls.setForTunnel(dev.Name, t.Addr)}
	if l.Attrs().Flags&net.FlagUp == 0 {
		if err := d.handle.LinkSetUp(l); err != nil {
			errs = append(errs, fmt.Errorf("bring it up: %w", err))
		} else {
			d.logPart("brought the device up", "device", dev.Name)
		}
	}
	return errors.Join(append(errs, d.setAddresses(dev.Name, t.Addr, l))...)
}

// setMTU sets the MTU of a device; 0 leaves it as it is.
func (d *devices) setMTU(name string, mtu int, l netlink.Link) error {
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
// may change, or sets Device.MAC if Device.Readdress requires that. The first call for a device
// remembers the one that it has. Devices without a MAC address have the zero one, which is neither
// remembered nor set.
func (d *devices) restoreMAC(dev dataplane.Device, l netlink.Link) error {
	have := linkOf(l).MAC
	known, remembered := d.macs[dev.Name]
	want := known
	switch {
	case dev.Readdress:
		want = dev.MAC
	case !remembered:
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
	if want != (dataplane.MAC{}) {
		d.macs[dev.Name] = want
	}
	return nil
}

// logDevice logs a change of a device. If it is a repair, logDevice counts it, and does not log it if
// there have been many lately.
func (d *devices) logDevice(text string, attrs ...any) {
	logs := true
	if d.repairing {
		logs = d.repairs.Count("devices", 1)
	}
	if logs {
		d.log.Info(text, attrs...)
	}
}

// logPart is logDevice for changes that are also a part of creating a device, or of another
// configuration. Then, repairing is false, and they are neither worth a line nor counted.
func (d *devices) logPart(text string, attrs ...any) {
	if d.repairing {
		d.logDevice(text, attrs...)
	}
}

// setAddresses gives the device exactly the wanted addresses, apart from the
// link-local ones, which the kernel manages. It adds before it deletes: a device
// that loses its last address loses its routes.
func (d *devices) setAddresses(name string, want []netip.Prefix, l netlink.Link) error {
	have, err := readWhole(func() ([]netlink.Addr, error) { return d.handle.AddrList(l, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list its addresses: %w", err)
	}
	missing, extra := slices.Clone(want), map[netip.Prefix]netlink.Addr{}
	for _, a := range have {
		prefix := rtnetlink.PrefixOf(a.IPNet)
		if i := slices.Index(missing, prefix); i >= 0 {
			missing = slices.Delete(missing, i, i+1)
		} else if !prefix.Addr().IsLinkLocalUnicast() {
			extra[prefix] = a
		}
	}
	for _, prefix := range missing {
		ipnet := &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
		a := &netlink.Addr{IPNet: ipnet}
		if prefix.Addr().Is6() {
			a.Flags = unix.IFA_F_NODAD // no duplicate is possible, so the kernel need not look for one first
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
