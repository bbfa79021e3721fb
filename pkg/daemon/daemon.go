// Package daemon is the program in one page: acquire a subnet, ensure the devices, publish how to reach us, watch the
// others, apply; forever. Every pass compares all that shall be with what is there, so that a start, a restart, a new
// peer, drift and a changed address are the same case.
package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"flannel/backend"
	"flannel/pkg/dataplane"
	"flannel/pkg/firewall"
	"flannel/pkg/health"
	"flannel/pkg/metrics"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

// Daemon joins its parts. All fields but the last group must be set; Run may be called once.
type Daemon struct {
	Manager   subnet.Manager
	Dataplane dataplane.Dataplane
	Firewall  Firewall
	Underlay  Underlay
	Parse     func(raw []byte) (subnet.Config, backend.Maker, []string, error) // validates a network configuration

	Settings Settings
	Log      *slog.Logger
	Status   *health.Status
	View     *View
	Metrics  *metrics.Metrics

	Echo     func(ctx context.Context, addr netip.Addr) error // asks a peer's kernel for an answer; nil: none is needed
	Notify   func(state string)                               // tells the service manager ("READY=1"); never nil
	Watchdog time.Duration                                    // the service manager ends a process that is silent for so long; 0: never
	EnvFile  <-chan struct{}                                  // somebody else touched the subnet file

	adoption adoption
	orphans  orphans
}

// Settings are the options that the loop needs.
type Settings struct {
	OS           string // runtime.GOOS
	SubnetFile   string
	IPMasq       bool
	RandomFully  bool
	ForwardRules bool
	BlackholeOwn bool          // a blackhole route for the node's own subnet
	CompareAll   time.Duration // how often everything is compared although nothing was told to have changed

	RetainPeers   time.Duration // how long many peers stay that the store lacks at the start; 0: not at all
	KeepConfig    bool          // the configuration of the start stays in force
	ConfigStagger time.Duration // see package rollout; 0: every configuration is adopted at once
}

// Firewall is *firewall.Firewall.
type Firewall interface {
	Apply(ctx context.Context, c firewall.Config) (changed int, err error)
	Changes() <-chan struct{}
}

// Underlay chooses the interface to the other nodes, and notifies when the choice or the node's addresses may be others. An
// error of Choose that reconcile.IsUnknown means that it could not look, any other that no interface can be chosen.
type Underlay interface {
	// Choose returns the interface with an address of each enabled family, and all addresses of the node. What an operator
	// set counts for more than the options.
	Choose(v4, v6 bool, operator subnet.PublicIPs) (underlay.Link, []netip.Addr, error)
	Changes() <-chan struct{}
}

// Run works until ctx ends (nil), the lease is lost (subnet.ErrLost) or a part fails for good. It leaves the network
// as it is.
func (d *Daemon) Run(ctx context.Context) error {
	tasks, ctx := errgroup.WithContext(ctx)
	in := newInbox()
	tasks.Go(func() error { return d.feedWatchdog(ctx) })
	tasks.Go(func() error { return d.Manager.WatchConfig(ctx, in.setConfig) })
	tasks.Go(func() error {
		err := d.member(ctx, in)
		for errors.Is(err, subnet.ErrMoved) {
			d.Log.Warn("joining again with another subnet; until then the network stays as it is", "cause", causeRejoin, "reason", err)
			d.waiting(err)
			in.forget()
			err = d.member(ctx, in)
		}
		return err
	})
	return tasks.Wait()
}

// member joins the network and works in it for as long as it has one and the same lease.
func (d *Daemon) member(ctx context.Context, in *inbox) error {
	n, err := d.join(ctx, in)
	if err != nil {
		return err
	}
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.Go(func() error { return d.Manager.Watch(ctx, in.setPeers) })
	tasks.Go(func() error { return d.Manager.Hold(ctx) })
	tasks.Go(func() error { return d.publish(ctx, in) })
	tasks.Go(func() error { return d.loop(ctx, n, in) })
	return tasks.Wait()
}

// loop passes once, then whenever something may have changed.
func (d *Daemon) loop(ctx context.Context, n *node, in *inbox) error {
	alarm := newAlarm(d.Settings.CompareAll)
	defer alarm.stop()
	for {
		d.Status.Begin()
		began := time.Now()
		failed := d.pass(ctx, n, in)
		if ctx.Err() != nil {
			return nil
		}
		d.report(n, failed, time.Since(began))
		alarm.rest(ctx, time.Since(began))
		if d.wait(ctx, n, in, alarm.retry(len(failed)+len(n.behind) > 0)); ctx.Err() != nil {
			return nil
		}
	}
}

// wait returns when a pass is due. What it learns, it leaves in the node.
func (d *Daemon) wait(ctx context.Context, n *node, in *inbox, alarm *alarm) {
	select {
	case <-ctx.Done():
	case <-in.changed:
	case <-d.Dataplane.Changes():
	case <-d.Firewall.Changes():
	case <-d.EnvFile:
	case <-d.Underlay.Changes():
		n.underlayMoved = true
	case <-d.publicIPsChanged():
		n.underlayMoved = true
	case <-alarm.retryC():
		n.underlayMoved = true
	case <-alarm.compare.C:
		n.underlayMoved = true
		d.Dataplane.QueueResync()
	}
}

// pass brings everything in step, each part as far as it can go, and returns what failed.
func (d *Daemon) pass(ctx context.Context, n *node, in *inbox) failures {
	var f failures
	f.add("config", d.reconfigure(ctx, n, in))
	links, err := d.Dataplane.Ensure(ctx, n.devices())
	f.add("devices", err)
	n.links = links
	if published := d.describe(n, in, links); err == nil { // else what is wrong has been said
		f.add("publish", published)
	}
	if peers, complete := in.takePeers(); complete {
		n.plan.SetAddrs(n.addrs)
		planned := n.plan.Update(peers.Leases, peers.Changes)
		d.resolveDuplicates(n, in)
		n.peers, n.known = peers.Leases, true
		n.valid = len(peers.Leases) - len(planned.Rejects) - n.plan.Pending()
		n.rejects = slices.Concat(planned.Rejects, peers.Rejects)
		n.windows, n.retained, n.ownWithdrawn = peers.Windows, peers.Retained, peers.OwnWithdrawn
		state := n.state(planned.Paths, d.Settings, f.unknown())
		state.Since, state.Changes = planned.Since, planned.Changes
		f.add("dataplane", d.apply(ctx, n, in, state))
	} else {
		f.add("peers", errNoPeers)
	}
	_, err = d.Firewall.Apply(ctx, n.firewall(d.Settings))
	f.add("firewall", err)
	f.add("subnet-file", d.writeEnv(n))
	return f
}
