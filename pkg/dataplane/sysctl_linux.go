package dataplane

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"
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
		// A host that forwards IPv6 drops the default route that it learned from router advertisements, unless told
		// to accept them all the same.
		if readSysctl("net/ipv6/conf/all/forwarding") != "1" {
			for _, name := range d.existing() {
				if path := "net/ipv6/conf/" + name + "/accept_ra"; readSysctl(path) == "1" {
					errs = append(errs, d.sysctl(path, "2"))
				}
			}
		}
		errs = append(errs, d.sysctl("net/ipv6/conf/all/forwarding", "1"))
	}
	err := errors.Join(errs...)
	d.sysctlsDirty.CompareAndSwap(false, err != nil)
	return err
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

func readSysctl(path string) string {
	raw, err := os.ReadFile("/proc/sys/" + path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

// sysctl sets a kernel parameter if it has another value, and tells the user so. The path has slashes, since device
// names may have dots. A parameter that the kernel does not have (IPv6 switched off) is left alone.
func (d *Linux) sysctl(path, value string) error {
	raw, err := os.ReadFile("/proc/sys/" + path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read sysctl %s: %w", path, err)
	}
	old := strings.TrimSpace(string(raw))
	if old == value {
		return nil
	}
	if err := os.WriteFile("/proc/sys/"+path, []byte(value), 0); err != nil {
		return fmt.Errorf("set sysctl %s to %s (it is %s; set it on the host if this container may not): %w", path, value, old, err)
	}
	d.opts.Log.Info("changed a sysctl, which this network needs", "sysctl", path, "from", old, "to", value)
	return nil
}
