package dataplane

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"

	"flannel/pkg/reconcile"
)

// forward makes the kernel forward packets of the families in use.
func (d *Linux) forward(networks []netip.Prefix) error {
	if !d.sysctlsDirty.Swap(false) {
		return nil
	}
	var errs []error
	for _, n := range networks {
		if n.Addr().Is4() {
			errs = append(errs, d.sysctl("net/ipv4/ip_forward", "1"))
			continue
		}
		err := d.keepDefaultRoutes()
		if err == nil {
			err = d.sysctl("net/ipv6/conf/all/forwarding", "1")
		}
		errs = append(errs, err)
	}
	err := errors.Join(errs...)
	d.sysctlsDirty.CompareAndSwap(false, err != nil)
	return err
}

// keepDefaultRoutes is to be called before IPv6 forwarding is switched on: a host that forwards drops the default route
// that it learned from router advertisements, unless told to accept them all the same.
func (d *Linux) keepDefaultRoutes() error {
	if forwards, err := readSysctl("net/ipv6/conf/all/forwarding"); err != nil || forwards == "1" {
		return err
	}
	for _, name := range d.existing() {
		path := "net/ipv6/conf/" + name + "/accept_ra"
		accepts, err := readSysctl(path)
		if err == nil && accepts == "1" {
			err = d.sysctl(path, "2")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *Linux) existing() []string {
	var names []string
	for _, dev := range d.devices {
		if dev.Kind == Existing {
			names = append(names, dev.Name)
		}
	}
	return names
}

// readSysctl returns "" for a parameter that the kernel does not have (IPv6 switched off). Its errors are of the kind
// that reconcile.IsUnknown.
func readSysctl(path string) (string, error) {
	raw, err := os.ReadFile("/proc/sys/" + path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", reconcile.Unknown(fmt.Errorf("read sysctl %s: %w", path, err))
	}
	return strings.TrimSpace(string(raw)), nil
}

// sysctl sets a kernel parameter if it has another value, and tells the user so. The path has slashes, since device
// names may have dots. A parameter that the kernel does not have (IPv6 switched off) is left alone.
func (d *Linux) sysctl(path, value string) error {
	old, err := readSysctl(path)
	if err != nil || old == "" || old == value {
		return err
	}
	if err := os.WriteFile("/proc/sys/"+path, []byte(value), 0); err != nil {
		return fmt.Errorf("set sysctl %s to %s (it is %s; set it on the host if this container may not): %w", path, value, old, err)
	}
	d.opts.Log.Info("changed a sysctl, which this network needs", "sysctl", path, "from", old, "to", value)
	return nil
}
