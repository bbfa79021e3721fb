package linux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"flannel/pkg/dataplane"
	"flannel/pkg/linux/rtnetlink"
	"flannel/pkg/reconcile"
)

// sysctls sets kernel parameters. The loop has all fields to itself, except the atomic
// ones, which the watcher uses, too. The paths of parameters are those below /proc/sys.
type sysctls struct {
	log     *slog.Logger
	repairs *dataplane.Repairs // counts what somebody else had changed
	right   map[string]bool    // that had the right value since the start, by path: another value is somebody else's change
	direct  map[string]int     // number of wanted IPv4 paths through devices of others, such as the underlay, by device
	dirty   atomic.Bool        // parameters of the host or of devices of others may differ from what is needed: see Driver.Apply
	blocked atomic.Bool        // the last enableForwarding had an error, which a change of a parameter may end
}

// newSysctls returns sysctls of which none was read yet.
func newSysctls(opts dataplane.Options) *sysctls {
	s := &sysctls{log: opts.Log, repairs: opts.Repairs, right: map[string]bool{}, direct: map[string]int{}}
	s.dirty.Store(true)
	return s
}

// enableForwarding makes the kernel forward packets of the families in use, and checks
// the devices of others. Apply calls it if sysctls.dirty was set, and returns its error; after an
// error, dirty is set again. pods returns the names of the interfaces of pods.
func (d *Driver) enableForwarding(s dataplane.State, pods func() ([]string, error)) error {
	var errs []error
	for _, n := range s.Networks {
		if n.Addr().Is4() {
			errs = append(errs, d.sysctls.set("net/ipv4/ip_forward", "1"))
			continue
		}
		err := d.keepDefaultRoutes()
		if err == nil {
			err = d.sysctls.set("net/ipv6/conf/all/forwarding", "1")
		}
		errs = append(errs, err)
	}
	if !slices.ContainsFunc(s.Networks, func(n netip.Prefix) bool { return n.Addr().Is4() }) {
		pods = func() ([]string, error) { return nil, nil } // their devices need not forward IPv4
	}
	err := errors.Join(append(errs, d.checkForeignDevices(pods))...)
	d.sysctls.blocked.Store(err != nil)
	d.sysctls.dirty.CompareAndSwap(false, err != nil) // true stays: the watcher has seen another change
	return err
}

// keepDefaultRoutes is called before IPv6 forwarding is enabled. Once it is enabled, interfaces
// with accept_ra 1 ignore router advertisements, and the kernel deletes default routes that it
// learned from them; with accept_ra 2, which keepDefaultRoutes sets, it keeps them. If forwarding
// is on already, only an underlay that had the value 2 gets it back: a device that is made anew has
// the host's default, and as long as it ignores advertisements, it may have no address. The host's
// default stays 1: with 2, each new interface would accept advertisements, such as those of pods.
// If accept_ra of a new underlay cannot be set, as in a container that may not, this is only logged. After an error,
// forwarding is not enabled.
func (d *Driver) keepDefaultRoutes() error {
	forwards, err := readSysctl("net/ipv6/conf/all/forwarding")
	var names []string
	switch {
	case err != nil:
	case forwards == "1":
		for _, dev := range d.desired {
			if !isTunnel(dev) {
				names = append(names, dev.Name)
			}
		}
	default:
		names, err = d.advertised()
	}
	if err != nil {
		return err
	}
	for _, name := range names {
		path := "net/ipv6/conf/" + name + "/accept_ra"
		accepts, err := readSysctl(path)
		if accepts == "2" || accepts == "1" && (forwards != "1" || d.sysctls.right[path]) {
			err = d.sysctls.set(path, "2")
		}
		if forwards == "1" && err != nil && !reconcile.IsUnknown(err) {
			delete(d.sysctls.right, path) // so that this is not tried and logged in each pass
			d.opts.Log.Warn("the new underlay ignores router advertisements, because accept_ra is 1 and cannot be set", "device", name, "error", err)
			err = nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// advertised returns the names of the interfaces that depend on router
// advertisements: those with a route from one, in any table, and the underlay,
// whose address may be from one.
func (d *Driver) advertised() ([]string, error) {
	through := map[int]bool{}
	body := make([]byte, unix.SizeofRtMsg)
	body[0], body[5] = unix.AF_INET6, unix.RTPROT_RA
	err := d.conn.Dump(unix.RTM_GETROUTE, body, func() { clear(through) }, func(body []byte) error {
		if len(body) >= unix.SizeofRtMsg && body[5] == unix.RTPROT_RA { // kernels before 4.20 return all routes
			addDevices(through, body[unix.SizeofRtMsg:])
		}
		return nil
	})
	if err != nil {
		return nil, reconcile.Unknown(fmt.Errorf("list routes by router advertisements: %w", err))
	}
	all, err := d.listLinks()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, l := range all {
		underlay := slices.ContainsFunc(d.desired, func(dev dataplane.Device) bool {
			return !isTunnel(dev) && dev.Name == l.Attrs().Name
		})
		if underlay || through[l.Attrs().Index] {
			names = append(names, l.Attrs().Name)
		}
	}
	return names, nil
}

// addDevices adds the indexes of the devices in the attributes of a route. The netlink library
// is not used: it returns an error for some routes of others, such as those with segment routing.
func addDevices(through map[int]bool, attrs []byte) {
	for kind, value := range rtnetlink.Attrs(attrs) {
		switch kind {
		case unix.RTA_OIF:
			through[int(rtnetlink.Number(value))] = true
		case unix.RTA_MULTIPATH: // a list of struct rtnexthop, each with its length and the index
			for len(value) >= unix.SizeofRtNexthop {
				through[int(rtnetlink.Number(value[4:8]))] = true
				size := int(binary.NativeEndian.Uint16(value))
				value = value[min(len(value), max((size+3)&^3, unix.SizeofRtNexthop)):] // aligned to 4; never 0, so that it ends
			}
		}
	}
}

// readSysctl returns "" for a parameter that the kernel does not have (IPv6 is
// disabled). Its errors are reconcile.Unknown.
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

// set sets a kernel parameter that has another value, and logs that, unless there have been many such
// repairs lately. The path has slashes instead of dots, since device names may contain dots. set ignores
// parameters that the kernel does not have (IPv6 is disabled). Its error is reconcile.Unknown only if the
// value could not be read.
func (s *sysctls) set(path, value string) error {
	old, err := readSysctl(path)
	if err != nil || old == "" {
		return err
	}
	if old == value {
		s.right[path] = true
		return nil
	}
	if err := os.WriteFile("/proc/sys/"+path, []byte(value), 0); err != nil {
		return fmt.Errorf("set sysctl %s to %s (it is %s; set it on the host if this container may not): %w", path, value, old, err)
	}
	logs := true
	if s.right[path] { // else the network is being set up
		logs = s.repairs.Count("sysctls", 1)
	}
	s.right[path] = true
	if logs {
		s.log.Info("changed a sysctl that the network needs", "sysctl", path, "from", old, "to", value)
	}
	return nil
}

// try is set for a parameter without which the network works: in a container that may not set
// it, try only logs that. Its error is that of reading.
func (s *sysctls) try(path, value string) error {
	err := s.set(path, value)
	if err != nil && !reconcile.IsUnknown(err) {
		s.log.Debug("cannot set a sysctl that is not essential", "sysctl", path, "error", err)
		return nil
	}
	return err
}
