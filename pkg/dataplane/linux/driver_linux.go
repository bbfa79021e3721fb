package linux

import (
	"context"
	"errors"
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
	d.relist()
}

func (d *Driver) suspectDevices() {
	d.devicesDirty.Store(true)
	d.strayDevices.Store(true)
	d.sysctlsDirty.Store(true)
}

func (d *Driver) relist() {
	d.nexthops.Relist()
	d.routes.Relist()
	d.neighs.Relist()
	d.fdb.Relist()
}

func (d *Driver) wake() {
	select {
	case d.changes <- struct{}{}:
	default:
	}
}

// Apply implements Dataplane.
func (d *Driver) Apply(ctx context.Context, links dataplane.Links, s dataplane.State) ([]dataplane.Refused, error) {
	// What a packet needs last is there first: whoever finds the route finds the neighbour and the tunnel end too.
	// Deleting goes the other way.
	err := driver.AddThenRemove(s.Keep, []func() error{
		func() error { return d.want(links, s) },
		func() error { return d.forward(s.Networks) },
		chain(
			driver.Step(ctx, d.opts, d.nexthops, (*reconcile.Table[nexthopKey, struct{}]).Add),
			driver.Step(ctx, d.opts, d.fdb, (*reconcile.Table[fdbKey, netip.Addr]).Add),
			driver.Step(ctx, d.opts, d.neighs, (*reconcile.Table[neighKey, mac.Addr]).Add),
			driver.Step(ctx, d.opts, d.routes, (*reconcile.Table[routeKey, hop]).Add),
		),
	}, []func() error{
		driver.Step(ctx, d.opts, d.routes, (*reconcile.Table[routeKey, hop]).Prune),
		driver.Step(ctx, d.opts, d.neighs, (*reconcile.Table[neighKey, mac.Addr]).Prune),
		driver.Step(ctx, d.opts, d.fdb, (*reconcile.Table[fdbKey, netip.Addr]).Prune),
		driver.Step(ctx, d.opts, d.nexthops, (*reconcile.Table[nexthopKey, struct{}]).Prune),
		d.pruneDevices,
	})
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
	e, err := lower(p, d.links)
	if err != nil {
		return nil
	}
	return []any{e.route, nexthopKey{hop: e.hop}, e.fdb, e.neigh}
}

// chain takes steps of which each builds on those before it: it ends with one after which it is not known what the
// system holds. A neighbour must not be sent to another tunnel end before that is there.
func chain(steps ...func() error) func() error {
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
	for _, p := range removed {
		if e, err := lower(p, d.links); err == nil {
			d.drop(e)
		}
	}
	for _, p := range added {
		e, err := lower(p, d.links)
		if err != nil {
			missing[p.Device] = err
			continue
		}
		d.add(e)
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
	d.nexthops.Reset()
	d.routes.Reset()
	d.neighs.Reset()
	d.fdb.Reset()
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

func (d *Driver) add(e lowered) {
	if d.uses[e.hop]++; d.uses[e.hop] == 1 {
		d.nexthops.Want(nexthopKey{hop: e.hop}, struct{}{})
	}
	d.routes.Want(e.route, e.hop)
	if e.mac != (mac.Addr{}) {
		d.neighs.Want(e.neigh, e.mac)
		d.fdb.Want(e.fdb, e.via)
	}
}

func (d *Driver) drop(e lowered) {
	if d.uses[e.hop]--; d.uses[e.hop] == 0 {
		delete(d.uses, e.hop)
		d.nexthops.Drop(nexthopKey{hop: e.hop})
	}
	d.routes.Drop(e.route)
	if e.mac != (mac.Addr{}) {
		d.neighs.Drop(e.neigh)
		d.fdb.Drop(e.fdb)
	}
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
