package linux

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flannel/pkg/dataplane"
	"flannel/pkg/dataplane/driver"
	"flannel/pkg/mac"
	"flannel/pkg/reconcile"
	"flannel/pkg/rtnetlink"
)

// Linux is the Dataplane of the Linux kernel, in the network namespace of the thread that called New.
type Driver struct {
	opts    driver.Options
	conn    *rtnetlink.Conn
	handle  *netlink.Handle // for devices; open all the time, since the process may run out of descriptors
	scope   scopePointer
	changes chan struct{}
	watcher *watcher

	nexthops *reconcile.Table[nexthopKey, struct{}]
	routes   *reconcile.Table[routeKey, hop]
	neighs   *reconcile.Table[neighKey, mac.Addr]
	fdb      *reconcile.Table[fdbKey, netip.Addr]
	store    *nexthopStore
	tables   driver.Tables // all of them

	// What the tables were last told to want.
	paths      []*dataplane.Path
	blackholes []netip.Prefix
	links      dataplane.Links
	uses       map[hop]int // how many wanted routes lead through a hop

	devices []dataplane.Device  // of the last Ensure
	ensured dataplane.Links     // what it found
	macs    map[string]mac.Addr // what our devices had when first seen; kept, since the peers know it
	made    map[string]bool     // the names of tunnel devices that Ensure was given

	// What may differ from what we want, since nothing was read since somebody changed something there.
	devicesDirty, strayDevices, sysctlsDirty atomic.Bool
}

// New opens the kernel's tables and begins to watch them. The caller closes it.
func New(opts driver.Options) (*Driver, error) {
	c, err := rtnetlink.Dial(answerWithin)
	if err != nil {
		return nil, err
	}
	handle, err := openHandle()
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	d := &Driver{opts: opts, conn: c, handle: handle, changes: make(chan struct{}, 1), uses: map[hop]int{}, macs: map[string]mac.Addr{}, made: map[string]bool{}}
	d.scope.Store(&scope{})
	d.suspectDevices()
	d.store = newNexthopStore(c, opts.Instance)
	d.nexthops = reconcile.NewTable[nexthopKey, struct{}](d.store)
	d.routes = reconcile.NewTable[routeKey, hop](newRouteStore(c, &d.scope, d.store))
	d.neighs = reconcile.NewTable[neighKey, mac.Addr](neighStore{c, &d.scope})
	d.fdb = reconcile.NewTable[fdbKey, netip.Addr](fdbStore{c, &d.scope})
	// What a packet needs last is there first: whoever finds the route finds the neighbour and the tunnel end too.
	d.tables = driver.Tables{d.nexthops, d.fdb, d.neighs, d.routes}
	if d.watcher, err = watch(d); err != nil {
		handle.Close()
		return nil, errors.Join(err, c.Close())
	}
	return d, nil
}

// Changes implements Dataplane.
func (d *Driver) Changes() <-chan struct{} { return d.changes }

// Close implements Dataplane.
func (d *Driver) Close() error {
	d.handle.Close()
	return errors.Join(d.watcher.close(), d.conn.Close())
}

// Distrust implements Dataplane.
func (d *Driver) Distrust() {
	d.suspectDevices()
	d.tables.Relist()
}

func (d *Driver) suspectDevices() {
	d.devicesDirty.Store(true)
	d.strayDevices.Store(true)
	d.sysctlsDirty.Store(true)
}

func (d *Driver) wake() {
	select {
	case d.changes <- struct{}{}:
	default:
	}
}

// Apply implements Dataplane.
func (d *Driver) Apply(ctx context.Context, links dataplane.Links, s dataplane.State) ([]dataplane.Refused, error) {
	err := driver.AddThenRemove(s.Keep, []func() error{
		func() error { return d.want(links, s) },
		func() error { return d.forward(s.Networks) },
		chain(d.tables.Add(ctx, d.opts)),
	}, append(d.tables.Prune(ctx, d.opts), d.pruneDevices))
	return driver.Attribute(err, s.Paths, misdirected, d.keys)
}

// misdirected reports whether the kernel refuses an entry for where it leads. What the node itself lacks (memory, rights,
// room in a table, a device) is no peer's fault.
func misdirected(err error) bool {
	for _, errno := range []unix.Errno{unix.EINVAL, unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EADDRNOTAVAIL} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// keys are those of a path's entries.
func (d *Driver) keys(p *dataplane.Path) []any {
	f := driver.Filling{Verb: driver.Name}
	if err := d.fill(&f, p); err != nil {
		return nil
	}
	return f.Keys
}

// fill puts a path's entries into the tables.
func (d *Driver) fill(f *driver.Filling, p *dataplane.Path) error {
	link, ok := d.links[p.Device]
	if !ok {
		return fmt.Errorf("path to %s: device %s is not there", p.Dst, p.Device)
	}
	k, err := carrying(p)
	if err != nil {
		return err
	}
	k.fill(d, f, p, link)
	return nil
}

// putRoute puts a route and the nexthop object of its hop, which routes may share.
func (d *Driver) putRoute(f *driver.Filling, dst netip.Prefix, h hop) {
	driver.Put(f, d.routes, routeKey{dst, defaultMetric(dst.Addr())}, h)
	first, last := false, false
	switch f.Verb {
	case driver.Want:
		d.uses[h]++
		first = d.uses[h] == 1
	case driver.Drop:
		d.uses[h]--
		if last = d.uses[h] == 0; last {
			delete(d.uses, h)
		}
	}
	if first || last || f.Verb == driver.Name {
		driver.Put(f, d.nexthops, nexthopKey{hop: h}, struct{}{})
	}
}

// chain takes steps of which each builds on those before it: it ends with one after which it is not known what the
// system holds. A neighbour must not be sent to another tunnel end before that is there.
func chain(steps []func() error) func() error {
	return func() error {
		var errs []error
		for _, step := range steps {
			err := step()
			if errs = append(errs, err); reconcile.IsUnknown(err) {
				break
			}
		}
		return errors.Join(errs...)
	}
}

// want tells the tables what differs from what they were told before.
func (d *Driver) want(links dataplane.Links, s dataplane.State) error {
	d.setNetworks(s)
	if !sameIndexes(d.links, links) {
		d.forget()
		d.links = links
	}
	added, removed := driver.Diff(d.paths, s)
	missing := map[string]error{} // one for each device, not one for each of ten thousand paths
	f := &driver.Filling{Verb: driver.Drop}
	for _, p := range removed {
		_ = d.fill(f, p) // what it says of a path that is wanted no more does not matter
	}
	f.Verb = driver.Want
	for _, p := range added {
		if err := d.fill(f, p); err != nil {
			missing[p.Device] = err
		}
	}
	d.paths = s.Paths
	d.wantBlackholes(s.Blackholes)
	return errors.Join(slices.Collect(maps.Values(missing))...)
}

// setNetworks tells the watcher and the table of routes which of them are ours.
func (d *Driver) setNetworks(s dataplane.State) {
	scope := d.scope.Load()
	if slices.Equal(scope.networks, s.Networks) && slices.Equal(scope.former, s.Former) && scope.unrouted == s.Unrouted {
		return
	}
	next := *scope
	next.networks, next.former, next.unrouted = slices.Clone(s.Networks), slices.Clone(s.Former), s.Unrouted
	d.scope.Store(&next)
	d.routes.Relist() // other routes are ours now
	d.sysctlsDirty.Store(true)
}

// forget makes the tables want nothing, so that everything is told anew.
func (d *Driver) forget() {
	d.tables.Reset()
	clear(d.uses)
	d.paths, d.blackholes = nil, nil
}

func sameIndexes(a, b dataplane.Links) bool {
	if len(a) != len(b) {
		return false
	}
	for name, link := range a {
		if b[name].Index != link.Index {
			return false
		}
	}
	return true
}

func (d *Driver) wantBlackholes(now []netip.Prefix) {
	if slices.Equal(d.blackholes, now) {
		return
	}
	for _, p := range d.blackholes {
		d.routes.Drop(routeKey{p, blackholeMetric})
	}
	for _, p := range now {
		d.routes.Want(routeKey{p, blackholeMetric}, hop{Blackhole: true})
	}
	d.blackholes = slices.Clone(now)
}
