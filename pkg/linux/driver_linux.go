package linux

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"flannel/pkg/dataplane"
	"flannel/pkg/linux/rtnetlink"
	"flannel/pkg/reconcile"
)

// Driver is the Dataplane of the Linux kernel, in the network namespace of the
// thread that called New. These goroutines use it:
//
//	the daemon's loop   calls the exported methods; Guarded, Forwarded and Traffic are for any goroutine
//	the watcher         passes notifications of the kernel to the tables, and sets the dirty flags: the
//	                    next pass of the loop reads again what a flag is for
//	one in Apply        while the kernel has no guard: adds the entries of the tables, and so has their
//	                    stores (the kernel's side of the tables); the loop writes the guard, and waits
//
// What a kind of device needs is in its own type: kind_linux.go says when the driver calls which
// method.
type Driver struct {
	*devices // finding, making and repairing them
	*rows    // the tables of rtnetlink: routes, neighbours, FDB, nexthop objects

	opts    dataplane.Options
	changes chan struct{} // with room for one value; see Changes
	watcher *watcher
	kinds   []kind           // by index of kindRows
	guard   *guarding        // drops packets that no node of the network would send
	bridges *formerBridges   // of pods, with the gateway of a former subnet of this node
	tables  dataplane.Tables // those of rows and of all kinds: see allTables

	// The state that the tables want, as of the last Apply.
	paths []*dataplane.Path
	links dataplane.Links
}

// New opens the kernel's tables and starts to watch them. The caller closes the
// Driver.
func New(opts dataplane.Options) (*Driver, error) {
	c, err := rtnetlink.Dial(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	devices, err := newDevices(opts)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	d := &Driver{opts: opts, devices: devices, rows: newRows(c, &devices.scope, opts.Instance), changes: make(chan struct{}, 1)}
	notify := func() { reconcile.Notify(d.changes) }
	d.kinds = newKinds(host{opts: opts, devices: d.devices, rows: d.rows, notify: notify})
	d.guard, d.bridges, d.tables = newGuarding(opts, notify), &formerBridges{devices: devices}, d.allTables()
	if d.watcher, err = watch(d); err != nil { // before anything is listed, so that no change is missed
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

// allTables returns all tables in the order in which entries are added. A packet that takes
// a new route finds the neighbour and the FDB entry, or what its kind has in their place, too.
func (d *Driver) allTables() dataplane.Tables {
	before, after := dataplane.Tables{d.nexthops, d.fdb, d.neighs}, dataplane.Tables{d.routes}
	for _, k := range d.kinds {
		first, last := k.tables()
		before, after = append(before, first...), append(after, last...)
	}
	return append(before, after...)
}

// Changes implements Dataplane.
func (d *Driver) Changes() <-chan struct{} { return d.changes }

// Close implements Dataplane.
func (d *Driver) Close() error { return errors.Join(d.watcher.close(), d.close()) }

// close ends everything but the watcher.
func (d *Driver) close() error {
	d.handle.Close()
	return errors.Join(d.each(kind.close), d.guard.close(), d.conn.Close())
}

// each calls do for each kind. An error does not stop the rest.
func (d *Driver) each(do func(kind) error) error {
	var errs []error
	for _, k := range d.kinds {
		errs = append(errs, do(k))
	}
	return errors.Join(errs...)
}

// AwaitHostAddrs implements dataplane.Dataplane: this driver does not move the host's addresses.
func (*Driver) AwaitHostAddrs(context.Context) error { return nil }

// PodsWithoutEndpoint implements dataplane.Dataplane: Linux takes no pod its network away.
func (*Driver) PodsWithoutEndpoint() []string { return nil }

// Traffic implements dataplane.Dataplane.
func (d *Driver) Traffic() map[netip.Prefix]dataplane.TunnelReport {
	for _, k := range d.kinds {
		if t := k.traffic(); len(t) > 0 {
			return t // a node has one backend
		}
	}
	return nil
}

// Forwarded implements dataplane.Dataplane.
func (d *Driver) Forwarded() *dataplane.Forwarded {
	for _, k := range d.kinds {
		if f := k.forwarded(); f != nil {
			return f
		}
	}
	return nil
}

// QueueResync implements Dataplane.
func (d *Driver) QueueResync() {
	d.markDirty()
	d.tables.Relist()
	d.guard.relist()
	d.bridges.relist()
}

// Apply implements Dataplane, which says what an error does not stop.
func (d *Driver) Apply(ctx context.Context, links dataplane.Links, s dataplane.State) ([]dataplane.Refused, error) {
	d.begin(links, s)
	d.addNetworkRoutes(ctx, s)
	err := d.want(s)
	// Before the interfaces are read, so that no change is missed. After an error, enableForwarding sets dirty again.
	check := d.sysctls.dirty.Swap(false)
	pods := sync.OnceValues(func() ([]string, error) { return d.podInterfaces(s.Subnets) })
	var added error
	var adding sync.WaitGroup
	add := func() { added = ignoreNoCarrier(d.tables.Add(ctx, d.opts)) }
	config := d.guardConfig(links, s)
	beside := config != nil && !d.guard.judges() // judges: rules in the kernel may drop packets already
	if beside {                                  // as at a start, when both have much to write
		adding.Go(add)
	}
	unguarded := d.guard.apply(ctx, config, pods)
	var held []*dataplane.Path
	if !beside { // the guard's sets must have a peer before there are entries for the peer
		held = d.holdBack(unguarded)
		add()
	}
	adding.Wait()
	err = errors.Join(err, added)
	if check {
		err = errors.Join(err, d.enableForwarding(s, pods))
	}
	d.fillAll(dataplane.Want, held) // so that Prune does not delete those of their entries that exist
	if !reconcile.IsUnknown(err) {  // otherwise something could not be read, and not all entries may be set yet
		for _, k := range d.kinds {
			k.start() // of tun: forwarding, which needs the peers; of others: nothing
		}
	}
	if dataplane.MayDelete(s, err) {
		err = errors.Join(err, d.tables.Prune(ctx, d.opts), d.each(func(k kind) error { return k.prune(ctx) }), d.pruneStrays(), d.guard.prune(ctx))
	}
	// What the kernel refuses because of a peer's address becomes the error of that peer's path.
	refused, err := dataplane.AttributeRefusals(errors.Join(err, unguarded), s.Paths, isPathsFault, d.keys)
	if err == nil && !s.Keep { // without an error, also of the guard, all paths have their routes, except the refused ones
		err = d.bridges.yield(s, refused)
	}
	for _, k := range d.kinds {
		refused = append(refused, k.diverted(s)...) // paths whose packets a route of others leads elsewhere
	}
	return refused, err
}

// holdBack makes the tables not want the entries of those paths whose peers the guard
// would drop, because its sets could not be written, so that Add does not set them. It returns
// these paths, which the caller makes wanted again before Prune. unguarded is the guard's error.
func (d *Driver) holdBack(unguarded error) (held []*dataplane.Path) {
	if unguarded == nil {
		return nil
	}
	for _, p := range d.paths {
		if d.guard.drops(p) {
			held = append(held, p)
		}
	}
	d.fillAll(dataplane.Drop, held)
	return held
}

// fillAll wants or drops the entries of paths. A path that cannot be translated has none.
func (d *Driver) fillAll(verb dataplane.Verb, paths []*dataplane.Path) {
	f := &dataplane.Filling{Verb: verb}
	for _, p := range paths {
		_ = d.fill(f, p)
	}
}

// isPathsFault reports whether the kernel refused an entry because of its gateway
// or address, which a peer's lease has, and not because the node lacks memory, permissions,
// space in a table or a device.
func isPathsFault(err error) bool {
	return slices.ContainsFunc([]unix.Errno{unix.EINVAL, unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EADDRNOTAVAIL},
		func(errno unix.Errno) bool { return errors.Is(err, errno) })
}

// keys returns the keys of a path's entries.
func (d *Driver) keys(p *dataplane.Path) []any {
	f := dataplane.Filling{Verb: dataplane.CollectKeys}
	_ = d.fill(&f, p) // a path that cannot be translated has no keys
	return f.Keys
}

// fill translates a path to entries of the tables, and does with them what the verb of f says:
// want, drop, or collect their keys. begin resets the tables when the index of a device changes,
// so that a path is dropped by the keys by which it was wanted.
func (d *Driver) fill(f *dataplane.Filling, p *dataplane.Path) error {
	link, ok := d.links[p.Device]
	if !ok {
		return fmt.Errorf("path to %s: device %s does not exist", p.Dst, p.Device)
	}
	k, err := d.kindOfPath(p)
	if err != nil {
		return err
	}
	k.fill(f, p, link)
	d.guard.put(f.Verb, p)
	return nil
}

// begin prepares the tables for s. They want nothing if the devices are not those of the last
// Apply: all entries have the index of a device.
func (d *Driver) begin(links dataplane.Links, s dataplane.State) {
	d.setNetworks(s)
	reset := !maps.EqualFunc(d.links, links, func(a, b dataplane.Link) bool { return a.Index == b.Index })
	for _, k := range d.kinds {
		changed := k.begin()
		reset = reset || changed
	}
	if reset {
		d.resetTables()
		d.links = links
	}
}

// want makes the tables want the paths of s.
func (d *Driver) want(s dataplane.State) error {
	err := dataplane.FillChanges(d.paths, s, d.fill)
	d.paths = s.Paths
	for _, k := range d.kinds {
		k.want(d.links, s)
	}
	return err
}

// setNetworks sets which routes are ours. If that changes, the tables that list by networks or
// subnets are listed again, and no others: those of devices and peers do not depend on it.
func (d *Driver) setNetworks(s dataplane.State) {
	scope := d.scope.Load()
	same := slices.Equal(scope.networks, s.Networks)
	var lengths lengths
	if same { // lengths of former peers stay: a route of flannel that was adopted for one has kept its form
		lengths = scope.lengths
	}
	lengths.addSubnets(s)
	if same && lengths == scope.lengths && slices.Equal(scope.former, s.Former) && slices.Equal(scope.subnets, s.Subnets) &&
		scope.unrouted == s.Unrouted && scope.keep == s.KeepDevices {
		return
	}
	next := *scope
	next.networks, next.former, next.subnets = slices.Clone(s.Networks), slices.Clone(s.Former), slices.Clone(s.Subnets)
	next.lengths, next.unrouted, next.keep = lengths, s.Unrouted, s.KeepDevices
	d.scope.Store(&next)
	d.routes.Relist()
	for _, k := range d.kinds {
		k.relistNetworks()
	}
	d.sysctls.dirty.Store(true)
}

// resetTables makes the tables want nothing. The next want then fills all paths.
func (d *Driver) resetTables() {
	d.tables.Reset()
	d.guard.reset()
	d.rows.reset()
	clear(d.sysctls.direct) // how many paths lead through each device of others: fill counts
	d.paths = nil
}
