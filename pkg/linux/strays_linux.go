package linux

import (
	"errors"
	"slices"

	"flannel/pkg/dataplane"
)

// pruneStrays deletes devices of ours that Ensure was not given, such as those of
// another backend, VNI or address family. Apply calls it where it may delete. After an error, the
// next Apply tries again.
func (d *devices) pruneStrays() error {
	if !d.strays.Swap(false) {
		return nil
	}
	all, err := d.listLinks()
	if err != nil {
		d.strays.Store(true)
		return err
	}
	var errs []error
	for _, l := range all {
		name := l.Attrs().Name
		if slices.ContainsFunc(d.desired, func(dev dataplane.Device) bool { return dev.Name == name }) {
			continue
		}
		ours, err := d.ownsDevice(d.scope.Load(), l)
		if !ours { // err is nil for a device of others
			errs = append(errs, err)
			continue
		}
		if err := d.deleteLink(l); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(d.made, name)
		d.log.Info("deleted a device that is no longer configured", "device", name)
	}
	err = errors.Join(errs...)
	d.strays.CompareAndSwap(false, err != nil)
	return err
}
