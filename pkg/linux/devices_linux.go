package linux

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flannel/pkg/dataplane"
	"flannel/pkg/linux/rtnetlink"
	"flannel/pkg/reconcile"
)

// devices are the devices of the last Ensure. The kinds of devices make and repair theirs
// by its methods. The loop has all fields to itself, except the atomic ones and scope. The
// watcher uses these, too, and goroutines of kinds set dirty: those that poll WireGuard's
// devices or wait for the end of a forwarder, and that of ipsecWatch.
type devices struct {
	log     *slog.Logger
	repairs *dataplane.Repairs
	handle  *netlink.Handle // stays open, since the process may run out of file descriptors
	scope   scopePointer    // which devices and routes are ours (ours_linux.go)
	sysctls *sysctls        // kernel parameters of the host and of devices

	desired []dataplane.Device       // of the last Ensure, which sets them at its end; likewise ensured
	ensured dataplane.Links          // result of the last Ensure
	macs    map[string]dataplane.MAC // by name; when first found or last set: the peers know these
	made    map[string]bool          // names of the tunnel devices of all Ensures: this run may have made them

	settled bool // the last Ensure had no error, so that devices were as desired
	// repairing: the present Ensure has the devices of the last one, which was settled. What differs was
	// changed by somebody else, and is counted as a repair.
	repairing bool

	dirty  atomic.Bool // devices may differ from the desired ones: the next Ensure reads them
	strays atomic.Bool // there may be devices of ours that Ensure was not given: see pruneStrays
}

// newDevices opens a connection to the kernel, which close closes.
func newDevices(opts dataplane.Options) (*devices, error) {
	handle, err := openHandle()
	if err != nil {
		return nil, err
	}
	d := &devices{log: opts.Log, repairs: opts.Repairs, handle: handle, sysctls: newSysctls(opts), macs: map[string]dataplane.MAC{}, made: map[string]bool{}}
	d.scope.Store(&scope{})
	d.markDirty()
	return d, nil
}

// device returns the desired device of this name; zero: there is none.
func (d *devices) device(name string) dataplane.Device {
	for _, dev := range d.desired {
		if dev.Name == name {
			return dev
		}
	}
	return dataplane.Device{}
}

// markDirty makes the next pass read devices and sysctls again.
func (d *devices) markDirty() {
	d.dirty.Store(true)
	d.strays.Store(true)
	d.sysctls.dirty.Store(true)
}

// Ensure implements Dataplane. Each pass calls it. It does nothing if no device has changed, on the
// host or in the configuration. After an error, the next pass tries again.
func (d *Driver) Ensure(_ context.Context, devices []dataplane.Device) (dataplane.Links, error) {
	if dirty := d.dirty.Swap(false); !dirty && reflect.DeepEqual(d.desired, devices) {
		return d.ensured, nil
	}
	d.repairing = d.settled && reflect.DeepEqual(d.desired, devices)
	links, errs := dataplane.Links{}, []error(nil)
	for _, dev := range devices {
		d.made[dev.Name] = d.made[dev.Name] || isTunnel(dev)
		link, err := d.ensure(dev)
		if err != nil {
			errs = append(errs, fmt.Errorf("device %s: %w", dev.Name, err))
		}
		if link.Index == 0 && reconcile.IsUnknown(err) {
			link = d.ensured[dev.Name] // zero if it was not there, either
		}
		if link.Index != 0 {
			links[dev.Name] = link // even after an error: paths through it stay
		}
	}
	d.setScope(devices, links)
	d.desired, d.ensured = slices.Clone(devices), links
	err := errors.Join(errs...)
	d.settled = err == nil
	d.dirty.CompareAndSwap(false, err != nil) // true stays: the watcher has seen another change
	if reconcile.IsUnknown(err) {
		d.reopen()
	}
	return links, err
}

// setScope sets which devices are ours, for the watcher and the tables. If that
// changes, the tables are listed again. setNetworks sets the rest of the scope.
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
	// First, so that the watcher sees each change after the list that Relist queues.
	d.watcher.setDevices(slices.Sorted(maps.Keys(next.tunnels)))
	d.scope.Store(&next)
	d.tables.Relist()
	d.strays.Store(true)
	d.sysctls.dirty.Store(true)
}

// ensure finds the device and calls kind.ensure, which says what its results mean.
func (d *Driver) ensure(dev dataplane.Device) (dataplane.Link, error) {
	k, err := d.kindOf(dev)
	if err != nil {
		return dataplane.Link{}, err
	}
	found, err := d.find(dev.Name)
	if err != nil {
		return dataplane.Link{}, err
	}
	return k.ensure(dev, found)
}

// underlayOf returns the device through which a tunnel sends. A missing one is an error.
func (d *devices) underlayOf(t dataplane.Tunnel) (netlink.Link, error) {
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
// noModuleError.
func (d *devices) addDevice(l netlink.Link) error {
	err := d.handle.LinkAdd(l)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return &noModuleError{Module: l.Type(), err: err}
	}
	return err
}

// noModuleError is the error of creating a device for which the kernel has no
// module. The kernel loads modules itself if they are installed.
type noModuleError struct {
	Module string // "ipip"
	text   string // if the usual text does not fit
	err    error  // of the kernel; nil: text says all
}

func (e *noModuleError) Error() string {
	if e.text != "" {
		return e.text
	}
	return fmt.Sprintf("the kernel lacks the module %[1]s: run modprobe %[1]s on the host, install the package with the kernel's modules "+
		"if it does not find it, or use another backend (%[2]v)", e.Module, e.err)
}

func (e *noModuleError) Unwrap() error { return e.err }

// Cause is the value of the attribute cause in the log.
func (e *noModuleError) Cause() string { return "no-kernel-module" }

// linkAfterRepair reads the device again after its repair, and returns it together with err, the
// error of the repair. It is the end of the ensure of each tunnel. If the device cannot be read, the
// result is the device as it was before; if there is none any more, the zero Link.
func (d *devices) linkAfterRepair(before netlink.Link, err error) (dataplane.Link, error) {
	after, readErr := d.find(before.Attrs().Name)
	if readErr != nil {
		return linkOf(before), errors.Join(err, readErr)
	}
	if after == nil {
		err = errors.Join(err, errors.New("somebody deleted it"))
	}
	return linkOf(after), err
}

// linkOf returns what a device has of a Link: not the key of WireGuard. For nil it is the zero Link.
func linkOf(l netlink.Link) dataplane.Link {
	if l == nil {
		return dataplane.Link{}
	}
	a := l.Attrs()
	link := dataplane.Link{Index: a.Index, MTU: a.MTU}
	if len(a.HardwareAddr) == len(link.MAC) {
		link.MAC = dataplane.MAC(a.HardwareAddr)
	}
	return link
}

// podInterfaces returns the names of the interfaces with an address in this node's
// subnets: the bridge of pods, or the host's ends of their veth pairs, and tunnel devices, which
// callers leave out.
func (d *devices) podInterfaces(subnets []netip.Prefix) ([]string, error) {
	addrs, err := readWhole(func() ([]netlink.Addr, error) { return d.handle.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, err
	}
	var names []string
	for _, a := range addrs {
		if !slices.ContainsFunc(subnets, func(s netip.Prefix) bool { return s.Contains(rtnetlink.AddrOf(a.IP)) }) {
			continue
		}
		link, err := d.handle.LinkByIndex(a.LinkIndex)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			continue // deleted meanwhile
		}
		if err != nil {
			return nil, err
		}
		if name := link.Attrs().Name; name != "lo" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, nil
}
