package linux

import (
	"errors"
	"fmt"
	"regexp"
	"slices"

	"github.com/vishvananda/netlink"

	"flannel/pkg/dataplane"
)

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
func (d *Driver) pruneDevices() error {
	if !d.strayDevices.Swap(false) {
		return nil
	}
	all, err := d.listLinks()
	if err != nil {
		d.strayDevices.Store(true)
		return err
	}
	var errs []error
	for _, l := range all {
		name := l.Attrs().Name
		if slices.ContainsFunc(d.devices, func(dev dataplane.Device) bool { return dev.Name == name }) {
			continue
		}
		ours, err := d.ownsDevice(d.scope.Load(), l)
		if err != nil {
			errs = append(errs, fmt.Errorf("list the addresses of %s: %w", name, err))
			d.strayDevices.Store(true)
		}
		if !ours {
			continue
		}
		if err := d.handle.LinkDel(l); err != nil {
			errs = append(errs, fmt.Errorf("delete the device %s: %w", name, err))
			d.strayDevices.Store(true)
			continue
		}
		delete(d.made, name)
		d.opts.Log.Info("deleted a device that the configuration no longer has", "device", name)
	}
	return errors.Join(errs...)
}
