package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"flannel/pkg/mac"
	"flannel/subnet"
)

// join brings the node into the network: it waits for a configuration that can work and for the underlay, and claims
// a subnet. Waiting is said in the log at once and then once a minute, and in /readyz.
func (d *Daemon) join(ctx context.Context, in *inbox) (*node, error) {
	n := &node{}
	d.adoption.rollout.Withdraw() // the latest configuration is read as at a start
	for {
		err := d.prepare(ctx, n, in)
		if err == nil {
			err = d.acquire(ctx, in, n)
		}
		if err == nil {
			return n, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err := d.waitToJoin(ctx, n, in, err); err != nil {
			return nil, err
		}
	}
}

// acquire claims a subnet that fits the configuration.
func (d *Daemon) acquire(ctx context.Context, in *inbox, n *node) error {
	d.waiting(errNoLease)
	want := subnet.Lease{}
	env, err := subnet.ReadEnv(d.Settings.SubnetFile)
	switch {
	case errors.Is(err, subnet.ErrMalformed):
		d.Log.Warn("the subnet file does not say which subnet this node had; another may be taken", "error", err)
	case err != nil:
		return fmt.Errorf("find out which subnet this node had: %w", err) // which waiting may mend
	}
	if n.config.V4.On() {
		want.V4 = subnet.Endpoint{Subnet: env.V4Subnet, PublicIP: n.link.PublicV4}
	}
	if n.config.V6.On() {
		want.V6 = subnet.Endpoint{Subnet: env.V6Subnet, PublicIP: n.link.PublicV6}
	}
	lease, err := d.Manager.Acquire(ctx, n.config, want)
	if err != nil {
		return fmt.Errorf("acquire a subnet: %w", err)
	}
	for _, was := range []netip.Prefix{env.V4Network, env.V6Network} {
		if was.IsValid() && !slices.Contains(n.networks(), was) {
			n.former = append(n.former, was)
		}
	}
	in.published = &lease
	n.lease = lease
	if err := d.build(n); err != nil {
		return err
	}
	n.readdressed = map[string]bool{}
	if env.V4Subnet.IsValid() && env.V4Subnet != lease.V4.Subnet || env.V6Subnet.IsValid() && env.V6Subnet != lease.V6.Subnet {
		// Whoever gets the former subnet derives from it the MAC address that our device may still have.
		for _, dev := range n.backend.Devices(n.lease) {
			n.readdressed[dev.Name] = dev.MAC != mac.Addr{}
		}
	}
	d.Log.Info("this node's subnet", "lease", &n.lease, "underlay", n.link.Name)
	return nil
}

// prepare needs a configuration and an underlay that go together.
func (d *Daemon) prepare(ctx context.Context, n *node, in *inbox) error {
	if raw, fresh := in.newConfig(); fresh {
		n.refused = d.readConfig(n, raw)
	}
	switch {
	case n.refused != nil:
		return caused{fmt.Errorf("the network configuration cannot work: %w", n.refused), causeConfigRefused}
	case n.maker == nil:
		return errNoConfig
	}
	link, addrs, err := d.chooseUnderlay(ctx, n)
	if err != nil {
		return err
	}
	n.link, n.addrs = link, addrs
	return d.build(n)
}

var (
	errNoConfig = error(caused{errors.New("the network configuration is not known yet"), causeNoConfig})
	errNoLease  = errors.New("waiting for a subnet lease")
)

// waiting tells what the daemon waits for before it can join.
func (d *Daemon) waiting(why error) {
	d.Status.Waiting(why.Error())
	if r, ok := d.Manager.(subnet.Reporter); ok {
		r.Report(why, nil, "")
	}
}

const (
	// tellAgain is how often a daemon that cannot start says why.
	tellAgain = time.Minute
	// joinAgain is when to try again though nothing is known to have changed: another node's lease may have ended.
	joinAgain = 5 * time.Second
)

// waitToJoin waits for a change that may help, and says what it waits for. A change that did not help is no reason
// to say it again.
func (d *Daemon) waitToJoin(ctx context.Context, n *node, in *inbox, why error) error {
	d.waiting(why)
	said, quiet := &n.report, time.Duration(0)
	if why.Error() == said.problem {
		quiet = tellAgain - time.Since(said.at)
	}
	if errors.Is(why, errNoConfig) {
		quiet = max(quiet, time.Second) // it is on its way from the store, which says itself when it cannot be reached
	}
	speak, again := time.NewTimer(quiet), time.NewTimer(joinAgain)
	defer speak.Stop()
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-in.changed:
			return nil
		case <-d.Underlay.Changes():
			return nil
		case <-again.C:
			return nil
		case <-speak.C:
			d.Log.Warn("cannot start yet; waiting", "cause", causeOf(why, causeCannotStart), "reason", why)
			said.problem, said.at = why.Error(), time.Now()
			speak.Reset(tellAgain)
		}
	}
}
