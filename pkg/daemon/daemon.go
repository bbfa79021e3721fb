// Package daemon runs a node of the network. It joins: it waits for a network
// configuration and acquires a subnet. Then its loop makes passes. A pass
// reconciles all parts in the order of Daemon.parts (pass.go): configuration,
// devices, this node's lease, the paths to the peers, firewall and subnet file.
// Each pass compares the desired state with the actual state, so that a start, a
// restart, a new peer, drift and a changed address need no code of their own.
//
// The goroutines of a Daemon, with what starts them:
//
//	Run     Probes.Run           probes peers; only if there is a Prober
//	Run     feedWatchdog         feeds the service manager's watchdog
//	Run     Manager.WatchConfig  puts the configuration into the inbox
//	Run     member               joins, and waits for the following four
//	member  Manager.Watch        puts the peers into the inbox
//	member  Manager.Hold         keeps the lease
//	member  publish              writes this node's lease, which it takes from the inbox
//	member  loop.run             makes the passes
//	a pass  askRound             asks peers by the new way, while a configuration is on trial (askPeers)
//
// A node (the type, which holds what is in force on this machine) is used by join,
// on the goroutine of member, and then only by loop.run.
package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"

	"flannel/backend"
	"flannel/pkg/daemon/reach"
	"flannel/pkg/dataplane"
	"flannel/pkg/firewall"
	"flannel/pkg/reconcile"
	"flannel/pkg/status"
	"flannel/pkg/status/metrics"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

// Daemon is one node of the network. The exported fields are what it needs of others;
// all must be set unless they say otherwise. Run may be called once.
type Daemon struct {
	Manager   subnet.Manager
	Dataplane dataplane.Dataplane
	Firewall  Firewall
	Underlay  Underlay
	// Parse validates a network configuration. The strings are warnings; the Maker makes the backend.
	Parse func(raw []byte) (subnet.Config, backend.Maker, []string, error)

	Settings Settings
	Log      *slog.Logger
	Board    *status.Board
	Metrics  *metrics.Metrics
	Probes   *reach.Prober    // nil: peers are not probed, and its methods do nothing
	Tally    *reconcile.Tally // how many routes and other entries the dataplane has changed, for the log of a pass

	Echo     func(ctx context.Context, from, to netip.Addr) error // asks a peer's kernel for an answer; nil: not possible, so no new configuration can be proven to connect nodes
	Notify   func(state string)                                   // reports to the service manager ("READY=1"); feedWatchdog and the loop may call it at once
	Watchdog time.Duration                                        // the service manager kills a process that has not reported for so long; 0: never
	EnvFile  <-chan struct{}                                      // receives when another process changed the subnet file; may be nil

	// These last as long as Run, also when the daemon joins again.
	view    view    // what the last pass has reported, for the Board
	orphans orphans // paths of an earlier run to peers that have no lease now

	adoption adoption // how far a changed configuration is; join begins a new one
}

// Settings are the options that the loop needs.
type Settings struct {
	OS           string // runtime.GOOS
	SubnetFile   string
	IPMasq       bool
	RandomFully  bool
	ForwardRules bool
	Guard        subnet.Guard // what is done with packets that fake the pod network; "": see the network configuration
	// TunnelSources are addresses from which the other nodes get packets of this node's
	// tunnel, beside those that the daemon finds.
	TunnelSources []netip.Addr
	BlackholeOwn  bool          // a blackhole route for the node's own subnet
	CompareAll    time.Duration // the interval of resyncs, which read all actual state again

	RetainPeers   time.Duration // how long orphans stay, see orphans.go; 0: not at all
	KeepConfig    bool          // ignore changes of the configuration after the start
	ConfigStagger time.Duration // see package rollout; 0: adopt every configuration at once
	ConfigSkew    time.Duration // by how much one node may receive a configuration later than another
}

// Firewall is that of package linux/firewall; on Windows, one that does nothing. The loop
// calls its methods.
type Firewall interface {
	// Apply writes the rules, and returns how many chains it wrote or removed. After an
	// error, a call before the end of a pause returns the same error.
	Apply(ctx context.Context, c firewall.Config) (changed int, err error)
	// Changes receives when Check is due; nil: never.
	Changes() <-chan struct{}
	// Check returns whether a pass is due, as rules have changed or Apply is to try again.
	Check() (changed bool)
}

// Underlay chooses the interface to the other nodes, and notifies when the
// choice or the node's addresses may have changed. If Choose could not read the
// interfaces, reconcile.IsUnknown reports true for its error; with any other
// error the interfaces are known, and none of them is suitable.
type Underlay interface {
	// Choose returns the interface with an address of each enabled family, and all
	// addresses of the node. The addresses that the operator has set in the store
	// override the options.
	Choose(v4, v6 bool, operator subnet.PublicIPs) (underlay.Link, []netip.Addr, error)
	Changes() <-chan struct{}
}

// Run returns nil when ctx ends, subnet.ErrLost when the lease is lost, or the
// permanent error of one of its goroutines: after an error, the process ends. It leaves
// the network as it is. When the lease moves to another subnet (subnet.ErrMoved), Run
// joins again.
func (d *Daemon) Run(ctx context.Context) error {
	// WatchConfig runs all the time: the daemon joins again with the latest
	// configuration. What belongs to a lease ends with member. All of them return nil
	// when ctx ends.
	tasks, ctx := errgroup.WithContext(ctx)
	in := newInbox()
	d.addToBoard()
	tasks.Go(func() error { return d.Probes.Run(ctx, d.Manager.ReportUnreachable) })
	tasks.Go(func() error { return d.feedWatchdog(ctx) })
	tasks.Go(func() error { return d.Manager.WatchConfig(ctx, in.setConfig) })
	tasks.Go(func() error {
		err := d.member(ctx, in)
		for errors.Is(err, subnet.ErrMoved) {
			d.Log.Warn("joining again with another subnet, leaving the network unchanged until then", "cause", causeRejoin, "reason", err)
			d.reportWaiting(err)
			in.reset() // to the configuration, as unread
			err = d.member(ctx, in)
		}
		return err
	})
	return tasks.Wait()
}

// member joins the network and runs the loop until the lease is lost or moves. The
// first of its tasks that fails ends the others; usually it is Hold, with
// subnet.ErrLost or subnet.ErrMoved.
func (d *Daemon) member(ctx context.Context, in *inbox) error {
	n := d.join(ctx, in)
	if n == nil { // ctx has ended
		return nil
	}
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.Go(func() error { return d.Manager.Watch(ctx, in.setPeers) })
	tasks.Go(func() error { return d.Manager.Hold(ctx) })
	tasks.Go(func() error { return d.publish(ctx, in) })
	tasks.Go(func() error { return d.newLoop(n, in).run(ctx) })
	return tasks.Wait()
}

// feedWatchdog reports to the service manager that the process is alive, unless
// a pass hangs (Board.Alive: for two minutes). It runs in a goroutine of its own,
// because a node may wait for the store or a configuration for any time, and must not
// be killed for that. It reports twice in the time that the service manager allows,
// first after half of it (Later): that time has begun with the process.
func (d *Daemon) feedWatchdog(ctx context.Context) error {
	r := reconcile.Runner{Resync: d.Watchdog / 2, Later: true, Beats: true, Work: func(context.Context) (time.Duration, error) {
		if d.Board.Alive() == nil {
			d.Notify("WATCHDOG=1")
		}
		return 0, nil // 0: again at the next resync
	}}
	r.Run(ctx) // without a watchdog, it only waits
	return nil
}
