// Package windows is the dataplane of Windows. It talks to HNS (the Host Networking
// Service) and to the IP stack through the interfaces of pkg/windows/hns, so that all of
// it is tested on any system against the simulated machine of hnstest.
//
// Words of this package:
//
//	physical, host      the adapter of the underlay, and the adapter that has the host's addresses:
//	                    the same one, or the virtual adapter "vEthernet (…)" once a switch is bound
//	bound               the virtual switch of an HNS network has taken over the physical adapter
//	management address  the host's address as HNS knows it, from which it tunnels (management.go)
//	ours, owned         networks that flanneld may delete: by their name, or since the journal has them
//	adopted             a network that existed, and is used since it is as wanted; the journal gets its name
//	journal             hns.json, of package hostconfig: what the host had, and what flanneld made
//	snapshot, pending   host settings that the journal has, and that are not all restored yet
//	silent              HNS does not answer: it is stopped, starting, or busy
//	ghost               a network that HNS has, but does not list (ghost.go)
//	refused, tries      a change that HNS refuses is tried again after a growing pause (tries.go)
//
// A WaitError (dataplane.Waiting) says what the driver waits for; the loop's next pass goes on from
// there. An error of reconcile.Unknown keeps the pass from deleting anything. While Ensure waits, or
// HNS refuses a change, the watching goroutine causes the passes (setWaiting).
package windows

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
	"flannel/pkg/windows/hns"
	"flannel/pkg/windows/hostconfig"
)

// options of New: what each driver gets, such as Log and StateDir, and Pace, which only tests
// set.
type options struct {
	dataplane.Options
	Pace pace
}

// journalPath is the file that package hostconfig keeps.
func (o options) journalPath() string { return filepath.Join(o.StateDir, "hns.json") }

// pace holds intervals and limits, which tests shorten. A zero field takes the default,
// which setDefaults sets and the comments name.
type pace struct {
	Poll time.Duration // between comparisons of the network with the last pass, since HNS does not notify of every change: 5 s
	Wait time.Duration // between passes while the driver waits for something: 500 ms
	// Wrong is how long a network's management address may differ from the host's before the network is made again: 1 min.
	Wrong time.Duration
	// Dead is how long a switch may look dead before its networks are deleted: 30 s.
	Dead time.Duration
	// Rollback is how long the host may lack its addresses before our network is deleted again: 2 min.
	Rollback time.Duration
	Retry    time.Duration // until the network is then made again: 10 min, and twice as long each time, up to an hour
	// Refused is the time until a change that HNS refused is tried again: 5 s, and twice as long each time, up to MaxRefused, 10 min.
	Refused, MaxRefused time.Duration
	Settle              time.Duration // between deleting a network and making one: 10 s
	// Sweep is the time between looks for endpoints of pods that are gone: 15 min. Two
	// looks in a row have to find one, so that no endpoint that is being created is deleted.
	Sweep time.Duration
	// Pods is the time between looks for running pods without endpoint: 1 min.
	Pods              time.Duration
	hostconfig.Limits // Address 30 s, since Windows takes 5 to 25; DHCP 1 min, Rest 5 s
}

// setDefaults sets what is zero.
func (p *pace) setDefaults() {
	p.Poll = cmp.Or(p.Poll, 5*time.Second)
	p.Wait = cmp.Or(p.Wait, 500*time.Millisecond)
	p.Wrong = cmp.Or(p.Wrong, time.Minute)
	p.Dead = cmp.Or(p.Dead, 30*time.Second)
	p.Rollback = cmp.Or(p.Rollback, 2*time.Minute)
	p.Retry = cmp.Or(p.Retry, 10*time.Minute)
	p.Refused = cmp.Or(p.Refused, 5*time.Second)
	p.MaxRefused = cmp.Or(p.MaxRefused, 10*time.Minute)
	p.Settle = cmp.Or(p.Settle, 10*time.Second)
	p.Sweep = cmp.Or(p.Sweep, 15*time.Minute)
	p.Pods = cmp.Or(p.Pods, time.Minute)
	p.Address = cmp.Or(p.Address, 30*time.Second)
	p.DHCP = cmp.Or(p.DHCP, time.Minute)
	p.Rest = cmp.Or(p.Rest, 5*time.Second)
}

// Driver is the Dataplane of Windows. One HNS network is the tunnel, the router
// and the pods' switch. Peers are policies or remote endpoints of an overlay
// network, or routes of the host.
//
// The daemon's loop calls the exported methods. A goroutine of the driver (watch)
// watches for changes, and restores host settings between the loop's passes; two others
// look for what pods have left or lost in HNS (sweeper, podWatcher). In the commands
// prepare and cleanup, their own goroutine is in the place of the loop's.
type Driver struct {
	opts       dataplane.Options
	pace       pace
	client     *hns.Client                 // of HNS, for several goroutines
	stack      hns.Stack                   // the IP stack, for several goroutines
	hostConfig *hostconfig.Keeper          // saves and restores the host's settings, for several goroutines; has the journal
	changes    chan struct{}               // see Changes; has room for one value
	stopWatch  context.CancelFunc          // ends the functions of background
	background func(func(context.Context)) // runs a function in a goroutine; Close ends its context, and waits for it
	done       sync.WaitGroup

	// Shared with the driver's goroutines. The fields after these are the loop's, and the
	// tables have locks.
	networksDirty, adaptersDirty atomic.Bool               // something changed there since it was read
	wakeAt                       atomic.Pointer[time.Time] // since when each tick wakes the loop, see setWaiting; nil: none
	observed                     atomic.Pointer[observed]  // our network in the last pass
	lostPods                     atomic.Pointer[[]string]  // names; nil: none

	version         hns.Version        // of HNS; zero: not read yet
	devices         []dataplane.Device // wanted by the last Ensure; at most one is an HNS network
	links           dataplane.Links    // result of the last Ensure
	ensureErr       error              // error of the last Ensure
	leftUntil       time.Time          // when the next change is due that the last Ensure left; zero: it left none
	networks        []hns.Network      // all of HNS, as listed last
	network         *hns.Network       // ours, which the devices of the last Ensure want; nil: it does not exist
	policiesFresh   bool               // network.Policies are as HNS has them, and policyStore has not taken them yet
	pending         *hns.Network       // HNS was asked for this network, and has not answered in time; nil: none
	endpoint        string             // ID of the host's endpoint, once this run found or made it; "": also while a former one remains
	endpointByV1    bool               // HNS refused to attach the host's endpoint of the newer API
	compared        string             // id of the last compareAddresses, which looks once for each
	noHostRoute     string             // ID of the network for which HNS refused the policy HostRoute
	misplaced       misplaced          // the network that HNS put on another adapter
	wrongIP         lasting[wrongManagementIP]
	moving          lasting[movingUnderlay]
	dead            lasting[int] // index of the physical adapter whose switch looks dead
	rolledBack      int          // how often rollBack has freed the adapter since the host had its addresses; at most 8
	notBefore       time.Time    // when createNetwork may try again after that
	deletedAt       time.Time    // when HNS was last asked to delete a network
	tries           tries        // of changes that HNS refused
	mayHaveUnwanted bool         // networks may hold some of ours that are not wanted; see deleteUnwanted

	policies *reconcile.Table[policyKey, policyValue]
	remotes  *reconcile.Table[netip.Prefix, remoteValue]
	routes   *reconcile.Table[hostRoute, struct{}]
	tables   dataplane.Tables // all three
	scope    hostScope        // which routes of the host are ours

	paths  []*dataplane.Path // that the tables want
	target target            // for which the tables want them
	warned map[string]bool   // by warnOnce
	left   map[string]string // by leave, of changes that fail: the error that was logged last
}

// target is what the entries of the tables belong to. With another target, all
// of them have to be made again.
type target struct {
	network string // ID
	index   int    // of the adapter with the host's address
}

// New starts to watch HNS and the IP stack, and to restore host settings that
// are missing since an earlier run. The caller closes the Driver.
func New(opts options, client *hns.Client, stack hns.Stack) *Driver {
	opts.Pace.setDefaults()
	d := &Driver{opts: opts.Options, pace: opts.Pace, client: client, stack: stack,
		hostConfig: hostconfig.New(opts.journalPath(), opts.Pace.Limits, stack, opts.Log),
		changes:    make(chan struct{}, 1), warned: map[string]bool{}, left: map[string]string{}}
	d.tries = tries{&d.pace, map[change]*reconcile.Backoff{}}
	d.policies = reconcile.NewTable[policyKey, policyValue](&policyStore{d: d})
	d.remotes = reconcile.NewTable[netip.Prefix, remoteValue](remoteStore{d})
	d.routes = reconcile.NewTable[hostRoute, struct{}](routeStore{d})
	d.tables = dataplane.Tables{d.remotes, d.policies, d.routes}
	d.QueueResync() // the first Ensure reads everything
	ctx, cancel := context.WithCancel(context.Background())
	d.stopWatch = cancel
	d.background = func(f func(context.Context)) { d.done.Go(func() { f(ctx) }) }
	d.background(d.watch)
	d.background((&sweeper{Driver: d}).run)
	if d.opts.PodResults != "" { // the directory by which podWatcher knows which pods run
		d.background((&podWatcher{Driver: d}).run)
	}
	return d
}

// Changes implements Dataplane.
func (d *Driver) Changes() <-chan struct{} { return d.changes }

// Close implements Dataplane. It does not wait for a call of HNS that hangs.
func (d *Driver) Close() error {
	d.stopWatch()
	d.done.Wait()
	return nil
}

// QueueResync implements Dataplane.
func (d *Driver) QueueResync() {
	d.networksDirty.Store(true)
	d.adaptersDirty.Store(true)
	d.tables.Relist()
}

// Apply implements Dataplane. As long as the device has no link, it gets no entries:
// Ensure has returned what it waits for. A backend without an HNS network has routes
// alone. Networks of ours that are not wanted are deleted only when Ensure waits for
// nothing.
func (d *Driver) Apply(ctx context.Context, links dataplane.Links, s dataplane.State) ([]dataplane.Refused, error) {
	if len(s.Blackholes) > 0 {
		d.warnOnce(causeNoBlackholes, "--ip-blackhole-route has no effect on Windows, which has no such routes")
	}
	d.hostConfig.SetPodNetworks(s.Networks)
	dev := d.device()
	link, exists := links[dev.name]
	switch {
	case !exists && s.Keep: // nothing may be deleted, and nothing can be added
		return nil, nil
	case !exists:
		return nil, d.deleteUnwanted(ctx)
	}
	d.setNetworks(link, s)
	var err error
	fills, all := dataplane.Tables{d.routes}, dataplane.Tables{d.routes} // without the network, the other tables have nothing
	if d.network != nil {
		fills, all = dev.tables(d), d.tables
		err = d.want(dev, link, s)
	}
	err = errors.Join(err, fills.Add(ctx, d.opts))
	// With a network, all tables are pruned: an earlier kind of network may have left entries in any.
	if dataplane.MayDelete(s, err) {
		err = errors.Join(err, all.Prune(ctx, d.opts), d.deleteUnwanted(ctx))
	}
	// The paths of refused entries are the first result; the error keeps what is left.
	return dataplane.AttributeRefusals(err, s.Paths, isPathsFault, func(p *dataplane.Path) []any {
		f := dataplane.Filling{Verb: dataplane.CollectKeys}
		_ = d.fill(&f, dev, p) // a path that cannot be translated has no keys
		return f.Keys
	})
}

// isPathsFault reports whether Windows refused an entry because of its content. ErrUnsupported
// is about this Windows, and not about one entry.
func isPathsFault(err error) bool { return isRefusal(err) && !errors.Is(err, hns.ErrUnsupported) }

// isRefusal reports whether HNS or the IP stack answered: false for a timeout, an unavailable
// service, and a context that ended; true for every other error, and for nil. A refused
// request has no effect later; one without an answer may have.
func isRefusal(err error) bool {
	return !errors.Is(err, hns.ErrTimeout) && !errors.Is(err, hns.ErrUnavailable) &&
		!errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}

// want makes the tables want the paths of s.
func (d *Driver) want(dev device, link dataplane.Link, s dataplane.State) error {
	d.setTarget(dev, link)
	err := dataplane.FillChanges(d.paths, s, func(f *dataplane.Filling, p *dataplane.Path) error { return d.fill(f, dev, p) })
	d.paths = s.Paths
	return err
}

// setNetworks sets which routes of the host are ours, which the table lists again if that
// has changed.
func (d *Driver) setNetworks(link dataplane.Link, s dataplane.State) {
	if next := (hostScope{link.Index, slices.Clone(s.Networks)}); !reflect.DeepEqual(d.scope, next) {
		d.scope = next
		d.routes.Relist()
	}
}

// setTarget empties the tables if their entries belong to another network or
// adapter than the current ones.
func (d *Driver) setTarget(dev device, link dataplane.Link) {
	next := target{d.network.ID, link.Index}
	if d.target == next {
		return
	}
	d.forgetTables()
	d.target = next
	if dev.network != nil && dev.network.tunnels() && d.version.Features().HostRoute {
		d.policies.Want(hostRouteKey(), policyValue{}) // no path has it, so fill does not want it
	}
}

// forgetTables makes the tables want nothing and read everything again, since
// their entries belong to another network or adapter.
func (d *Driver) forgetTables() {
	d.tables.Forget()
	d.paths = nil
}

// device returns the device that paths lead through: the HNS network of the last
// Ensure or, without one, the underlay. Before the first Ensure, the device has no name,
// and so no link.
func (d *Driver) device() device {
	underlay := device{kind: existing{}}
	for i, dev := range d.devices {
		driven, err := deviceOf(dev)
		switch {
		case err != nil: // Ensure returns it
		case driven.network != nil:
			return driven
		case i == 0: // where backends without an HNS network have it
			underlay = driven
		}
	}
	return underlay
}

// warnOnce logs a warning, each text once, about something that does not change while the
// program runs. attrs are further attributes of the message.
func (d *Driver) warnOnce(cause, text string, attrs ...any) {
	if !d.warned[text] {
		d.warned[text] = true
		d.opts.Log.Warn(text, append([]any{"cause", cause}, attrs...)...)
	}
}

// Causes in the log: of what the driver waits for (WaitError), and of events.
const (
	causeHNSSilent       = "hns-silent"
	causeAddressMoves    = "address-moves"
	causeUnderlayMoves   = "underlay-moves"
	causeNoEndpoint      = "endpoint-missing"
	causeNoManagement    = "management-ip-missing"
	causeNoMAC           = "mac-missing"
	causeNetworkRemade   = "network-remade"
	causeNetworkMade     = "network-made"
	causeJournal         = "journal-not-written"
	causeSwitchDead      = "switch-dead"
	causeRolledBack      = "network-rolled-back"
	causeSettling        = "hns-settles"
	causeGhost           = "network-ghost"
	causeUnwanted        = "network-unwanted"
	causeSharedAddress   = "address-shared" // by a pod and the host's endpoint
	causeDefaultRoute    = "bridge-default-route"
	causeBridgeMetric    = "bridge-metric"
	causeDNSRegistration = "bridge-dns-registration"
	causeNetworkDiffers  = "network-differs"
	causeNoHostRoute     = "no-host-route"
	causeAdapterKind     = "adapter-kind"
	causeNoDualStack     = "no-dual-stack"
	causeNoBlackholes    = "no-blackholes"
	causeOtherAddress    = "other-address" // that HNS sends from
	causeEndpointSwept   = "endpoint-swept"
	causeEndpointV1      = "endpoint-by-v1"
	causeEndpointStays   = "endpoint-not-deleted"
	causePodsLost        = "pods-without-endpoint"
)
