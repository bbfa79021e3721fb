package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"flannel/pkg/reconcile"
	"flannel/pkg/status"
	"flannel/subnet"
)

// join is the first step of a membership (the time with one subnet), before the loop and on
// the goroutine of member, so that it may use the node: it waits for a valid configuration
// and for the underlay, and acquires a subnet. It retries until it succeeds or ctx ends; then
// it returns nil. While it waits, /readyz and the log give the reason: the log at once, and
// then once a minute. Only a missing configuration is logged after joinGrace.
func (d *Daemon) join(ctx context.Context, in *inbox) *node {
	n := &node{}
	var former node // a copy of n with a configuration before the latest that was possible here (see errNewConfig); zero: none
	// As at a start, prepare adopts the latest configuration at once, which inbox.reset has
	// left unread: no rollout is in progress, no configuration is refused, and, as at a
	// start, it has no mark, also if it proved the one that it adopts.
	d.adoption = adoption{}
	if !in.hasConfig() {
		d.reportWaiting(d.whyNoConfig(errNoConfig))
		reconcile.Wait(ctx, time.Now().Add(joinGrace), in.changed) // whatever ends it, Work looks for a configuration
	}
	acquiring := false // the last try got as far as acquire: a retry leaves its reason in /readyz
	try := func(ctx context.Context) error {
		err := d.prepare(ctx, n, in)
		if err == nil && !acquiring { // acquire may wait for the store
			d.reportWaiting(errNoLease)
		}
		if acquiring = err == nil; acquiring {
			err = d.acquire(ctx, in, n)
		}
		return err
	}
	tries := reconcile.Runner{
		News:  []<-chan struct{}{in.changed, d.Underlay.Changes()},
		Retry: reconcile.Backoff{First: firstJoinRetry, Last: lastJoinRetry, Jitter: true},
		Once:  reconcile.Once{Repeat: repeatLog},
		Work: func(ctx context.Context) (time.Duration, error) {
			err := try(ctx)
			for errors.Is(err, errNewConfig) {
				former = *n
				err = try(ctx)
			}
			if _, temporary := errors.AsType[temporaryError](err); err != nil && !temporary && former.maker != nil {
				err = d.joinWithFormer(ctx, in, n, &former, err)
			}
			if err != nil && ctx.Err() == nil {
				err = d.whyNoConfig(err)
				d.reportWaiting(err)
			}
			return 0, err // 0: no resync, since the first success is the end
		},
		Tell: func(reason error) {
			if reason != nil { // nil: joined after a failure, which acquire has logged
				d.Log.Warn("cannot start yet, will retry", "cause", causeOf(reason, causeCannotStart), "reason", d.withOutage(reason))
			}
		},
	}
	if tries.Until(ctx) != nil { // only when ctx has ended
		return nil
	}
	return n
}

// joinWithFormer joins with a configuration before the latest, because n could not join with
// the latest for a reason that is not temporary. The loop then reads the latest as a change, and
// refuses or adopts it.
func (d *Daemon) joinWithFormer(ctx context.Context, in *inbox, n, former *node, reason error) error {
	err := d.chooseAndBuild(ctx, former)
	if err == nil {
		err = d.acquire(ctx, in, former)
	}
	if err != nil {
		return reason
	}
	*n = *former
	in.rereadConfig()
	return nil
}

// acquire acquires a lease with a subnet of the configuration's networks, the
// same subnet as before if possible. It changes the node only if it succeeds: the next
// try must not see a lease that did not fit.
func (d *Daemon) acquire(ctx context.Context, in *inbox, n *node) error {
	want := subnet.Lease{}
	env, err := subnet.ReadEnv(d.Settings.SubnetFile) // the zero Env: there is no file, or it is malformed
	switch {
	case errors.Is(err, subnet.ErrMalformed):
		d.Log.Warn("the subnet file is malformed, so this node may get another subnet than before", "error", err)
	case err != nil:
		return temporaryError{fmt.Errorf("read the former subnet: %w", err)}
	}
	remembered4, remembered6 := env.Remembered(n.config) // the last subnet of each family; Acquire ignores one outside the network. Zero: none
	if n.config.V4.On() {
		want.V4 = subnet.Endpoint{Subnet: remembered4, PublicIP: n.host.link.PublicV4}
	}
	if n.config.V6.On() {
		want.V6 = subnet.Endpoint{Subnet: remembered6, PublicIP: n.host.link.PublicV6}
	}
	cfg := n.config // a copy, since only Acquire needs the subnets of the file: it deletes former leases of this node
	for _, s := range []netip.Prefix{env.V4Subnet, env.V6Subnet} {
		if s.IsValid() {
			cfg.Filed = append(cfg.Filed, s)
		}
	}
	d.updateRules(n) // Acquire takes no subnet of a lease that is valid by these rules
	lease, err := d.Manager.Acquire(ctx, cfg, want)
	switch {
	case in.hasUnreadConfig(): // Acquire may have waited for the store; after an error, the newer one may have a subnet
		return errNewConfig
	case err != nil:
		return fmt.Errorf("acquire a subnet: %w", err)
	}
	next := *n
	next.lease, next.former = lease, formerOf(env, n.networks(), lease)
	if err := d.build(&next); err != nil { // again: the plan that prepare built has no lease
		return err
	}
	d.updateRules(&next) // before Watch, which starts after join, hands over the first set
	next.readdressed = map[string]bool{}
	before := next.lease
	if before.V4.On() && env.V4Subnet.IsValid() {
		before.V4.Subnet = env.V4Subnet
	}
	if before.V6.On() && env.V6Subnet.IsValid() {
		before.V6.Subnet = env.V6Subnet
	}
	// A device may still have the MAC address that is derived from the former subnet of its family. The next owner of
	// that subnet derives the same address, so the device must get another one.
	of := next.backend.Devices(before)
	for i, dev := range next.backend.Devices(next.lease) {
		next.readdressed[dev.Name] = dev.MAC != of[i].MAC
	}
	*n = next
	// As the store has it; without the mutex: no publisher runs before the node has joined. If an
	// operator overwrites an address, the store may still have the address from before the overwrite.
	if operator := n.host.operator; !operator.Overwritten4 && !operator.Overwritten6 {
		in.published = &lease
	}
	d.Log.Info("acquired a subnet", "lease", &n.lease, "underlay", n.host.link.Name)
	return nil
}

// formerOf returns what an earlier run has left, by the subnet file: networks are those
// of the configuration, lease is this node's.
func formerOf(env subnet.Env, networks []netip.Prefix, lease subnet.Lease) (f former) {
	for _, network := range []netip.Prefix{env.V4Network, env.V6Network} {
		if network.IsValid() && !slices.Contains(networks, network) {
			f.networks = append(f.networks, network)
		}
	}
	f.v4, f.v6 = env.Former(lease)
	return f
}

// prepare reads the configuration, chooses the underlay and builds the backend.
// It fails if one of them is not available, or if they do not fit together, and with
// errNewConfig.
func (d *Daemon) prepare(ctx context.Context, n *node, in *inbox) error {
	raw, unread := in.takeConfig()
	if unread {
		n.configErr = d.readConfig(n, raw)
	}
	switch {
	case n.configErr != nil:
		return caused{fmt.Errorf("invalid network configuration: %w", n.configErr), causeConfigRefused}
	case n.maker == nil:
		return errNoConfig
	}
	if unread { // what was reported is not the reason any more, and chooseUnderlay may wait for the store
		d.reportWaiting(errNoLease)
	}
	err := d.chooseAndBuild(ctx, n)
	if err == nil && in.hasUnreadConfig() { // chooseUnderlay may have waited for this node's podCIDR
		return errNewConfig
	}
	return err
}

// chooseAndBuild chooses the underlay for the configuration of n, and builds the backend. It builds
// before there is a lease, because the rules by which Acquire judges leases are the plan's.
func (d *Daemon) chooseAndBuild(ctx context.Context, n *node) error {
	if err := d.chooseUnderlay(ctx, n); err != nil {
		return temporaryError{err}
	}
	return d.build(n)
}

// temporaryError is an error of the host or the store, and not of the configuration, so that it may
// end by itself: join retries with the latest configuration, even if it has a former one.
type temporaryError struct{ error }

func (t temporaryError) Unwrap() error { return t.error }

var (
	// errNewConfig means that a newer configuration arrived during this try, and that the underlay and the
	// backend of the one before were possible on this node; whether it has a subnet is not known. join tries
	// again at once with the newer one, because the loop might have to refuse it.
	errNewConfig = errors.New("the network configuration has changed meanwhile")
	errNoConfig  = error(caused{errors.New("no network configuration received yet"), causeNoConfig})
	errNoLease   = errors.New("waiting for a subnet lease")
)

// reportWaiting reports, to readiness and to the store, why the daemon has not
// joined yet. The store is also told which pods have lost their network, as after each
// pass: a replaced report would take the names back.
func (d *Daemon) reportWaiting(reason error) {
	d.Board.Waiting(reason.Error())
	d.Manager.Report(subnet.Report{Problem: reason, LostPods: d.Dataplane.PodsWithoutEndpoint()})
}

const (
	// repeatLog is the interval at which a lasting problem is logged again.
	repeatLog = time.Minute
	// joinGrace is how long joining waits for the configuration before it logs that none
	// has arrived. Normally one arrives soon. If the store is unreachable, the lease
	// manager logs that.
	joinGrace = time.Second
	// The pauses after an attempt to join: another node's lease may have expired. All nodes may start at the same time.
	firstJoinRetry = time.Second
	lastJoinRetry  = 5 * time.Second
)

// whyNoConfig replaces errNoConfig by the lease manager's reason, if it knows one:
// what is missing in the store, and how to provide it.
func (d *Daemon) whyNoConfig(reason error) error {
	if errors.Is(reason, errNoConfig) {
		if missing := d.Manager.ConfigMissing(); missing != nil {
			return caused{missing, causeNoConfig}
		}
	}
	return reason
}

// withOutage adds to a reason for the log that the store does not answer. The Board
// adds this itself.
func (d *Daemon) withOutage(reason error) error {
	if outage := d.Board.Now(status.OfStore).Outage; outage != "" {
		return fmt.Errorf("%w: %s", reason, outage)
	}
	return reason
}
