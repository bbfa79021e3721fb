// Package hns is the dataplane of Windows, over HNS and the IP stack in the types of pkg/hns. It is pure but for what it
// is made over, so all of it is tested on any system.
package hns

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"flannel/pkg/dataplane"
	"flannel/pkg/dataplane/driver"
	"flannel/pkg/hns"
	"flannel/pkg/reconcile"
)

// Driver is the Dataplane of Windows. One HNS network is tunnel, router and the pods' switch; peers are policies on it, or
// routes of the host.
type Driver struct {
	opts    Options
	pace    Pace
	client  *hns.Client
	stack   hns.Stack
	home    *home
	changes chan struct{}
	end     context.CancelFunc
	done    sync.WaitGroup

	// What may differ from what was seen last, since somebody changed something there.
	networksDirty, adaptersDirty atomic.Bool
	waits                        atomic.Bool             // a pass ended with waiting: look again soon
	seen                         atomic.Pointer[sighted] // our network as the last pass found it

	version  hns.Version
	features hns.Features
	asked    bool // for these two

	devices  []dataplane.Device // of the last Ensure
	ensured  dataplane.Links    // what it found
	problem  error              // what it waits for
	networks []hns.Network      // all, as listed last
	network  *hns.Network       // ours; nil: not there
	listed   bool               // network's policies are as HNS has them, and the table has not read them yet
	made     made               // the network that this run made
	endpoint string             // ID of the host's endpoint that this run made
	foreign  wrong              // our network has another management address than the host
	strays   bool               // there may be networks of ours that nobody wants

	policies *reconcile.Table[policyKey, policyValue]
	remotes  *reconcile.Table[netip.Prefix, remoteValue]
	routes   *reconcile.Table[hostRoute, struct{}]
	tables   driver.Tables // all of them
	scope    hostScope

	paths []*dataplane.Path // what the tables were last told to want
	on    place             // and where
	said  map[string]bool
}

// place is what entries belong to: with another one all are to be made anew.
type place struct {
	network string // ID
	index   int    // of the host's adapter
}

// New begins to watch HNS and the IP stack, and to put back what an earlier run left without an address. The caller
// closes it.
func New(opts Options, client *hns.Client, stack hns.Stack) *Driver {
	opts.Pace.complete()
	d := &Driver{opts: opts, pace: opts.Pace, client: client, stack: stack, changes: make(chan struct{}, 1), said: map[string]bool{},
		home: newHome(opts.journalPath(), opts.Pace, stack, opts.Log)}
	d.policies = reconcile.NewTable[policyKey, policyValue](&policyStore{d: d})
	d.remotes = reconcile.NewTable[netip.Prefix, remoteValue](remoteStore{d})
	d.routes = reconcile.NewTable[hostRoute, struct{}](routeTable{d})
	d.tables = driver.Tables{d.remotes, d.policies, d.routes}
	d.Distrust()
	ctx, end := context.WithCancel(context.Background())
	d.end = end
	d.done.Go(func() { d.watch(ctx) })
	return d
}

// Changes implements Dataplane.
func (d *Driver) Changes() <-chan struct{} { return d.changes }

// Close implements Dataplane. A call of HNS that hangs is left to itself.
func (d *Driver) Close() error {
	d.end()
	d.done.Wait()
	return nil
}

// Distrust implements Dataplane.
func (d *Driver) Distrust() {
	d.networksDirty.Store(true)
	d.adaptersDirty.Store(true)
	d.tables.Relist()
}

func (d *Driver) wake() {
	select {
	case d.changes <- struct{}{}:
	default:
	}
}

// Apply implements Dataplane. While the network is not there it only looks after routes: Ensure has said what it waits
// for. And only when there is nothing to wait for, what nobody wants any more goes.
func (d *Driver) Apply(ctx context.Context, links dataplane.Links, s dataplane.State) ([]dataplane.Refused, error) {
	if len(s.Blackholes) > 0 {
		d.warnOnce(causeNoBlackholes, "--ip-blackhole-route has no effect on Windows, which has no such routes")
	}
	if err := d.home.know(s.Networks); err != nil {
		return nil, err
	}
	dev := d.device()
	link, there := links[dev.name]
	remove := []func() error{func() error { return d.prune(ctx) }}
	if !there {
		return nil, driver.AddThenRemove(s.Keep, nil, remove)
	}
	d.setNetworks(link, s)
	fills, all := dev.tables(d), d.tables
	add := []func() error{func() error { return d.want(dev, link, s) }}
	if d.network == nil { // the tables of networks look at it
		fills, all, add = driver.Tables{d.routes}, driver.Tables{d.routes}, nil
	}
	err := driver.AddThenRemove(s.Keep, append(add, fills.Add(ctx, d.opts.Options)...), append(all.Prune(ctx, d.opts.Options), remove...))
	return driver.Attribute(err, s.Paths, answered, func(p *dataplane.Path) []any {
		f := driver.Filling{Verb: driver.Name}
		_ = d.fill(&f, dev, p) // a path that comes to nothing has no keys
		return f.Keys
	})
}

// answered reports whether Windows refused an entry, rather than gave no answer.
func answered(err error) bool {
	return !errors.Is(err, hns.ErrTimeout) && !errors.Is(err, hns.ErrUnavailable) && !errors.Is(err, hns.ErrUnsupported) &&
		!errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}

// want tells the tables what differs from what they were told before.
func (d *Driver) want(dev device, link dataplane.Link, s dataplane.State) error {
	d.setPlace(dev, link)
	added, removed := driver.Diff(d.paths, s)
	odd := map[string]error{} // one for each reason, not for each path
	f := &driver.Filling{Verb: driver.Drop}
	for _, p := range removed {
		_ = d.fill(f, dev, p) // what it says of a path that is wanted no more does not matter
	}
	f.Verb = driver.Want
	for _, p := range added {
		if err := d.fill(f, dev, p); err != nil {
			odd[err.Error()] = err
		}
	}
	d.paths = s.Paths
	return errors.Join(slices.Collect(maps.Values(odd))...)
}

// setNetworks tells which routes of the host are ours.
func (d *Driver) setNetworks(link dataplane.Link, s dataplane.State) {
	if next := (hostScope{link.Index, slices.Clone(s.Networks)}); !d.scope.same(next) {
		d.scope = next
		d.routes.Relist() // other routes are ours now
	}
}

// setPlace begins anew where the entries belong to another network or adapter than before.
func (d *Driver) setPlace(dev device, link dataplane.Link) {
	now := place{d.network.ID, link.Index}
	if d.on == now {
		return
	}
	d.forget()
	d.on = now
	if dev.network() != nil && dev.network().tunnels() && d.features.HostRoute {
		d.policies.Want(policyKey{Type: hns.HostRoutePolicy().Type}, policyValue{})
	}
}

// forget makes the tables want nothing, so that everything is told and read anew.
func (d *Driver) forget() {
	d.tables.Reset()
	d.tables.Relist()
	d.paths = nil
}

// device is what pods' traffic goes through: the HNS network that was asked for last, or without one the underlay.
func (d *Driver) device() device {
	first := device{kind: existing{}}
	for i, dev := range d.devices {
		driven, err := drive(dev)
		if err == nil && (i == 0 || driven.network() != nil) {
			first = driven
		}
		if err == nil && driven.network() != nil {
			break
		}
	}
	return first
}

// warnOnce says what does not change while the program runs.
func (d *Driver) warnOnce(cause, text string) {
	if !d.said[text] {
		d.said[text] = true
		d.opts.Log.Warn(text, "cause", cause)
	}
}
