package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"flannel/subnet"
)

// join brings the node into the network: it waits for a configuration that can work and for the underlay, and claims
// a subnet. Waiting is said in the log at once and then once a minute, and in /readyz.
func (d *Daemon) join(ctx context.Context, in *inbox) (*node, error) {
	n := &node{}
	for {
		err := d.prepare(n, in)
		if err == nil {
			break
		}
		if err := d.waitToJoin(ctx, n, in, err); err != nil {
			return nil, err
		}
	}
	want := subnet.Lease{}
	env, err := subnet.ReadEnv(d.Settings.SubnetFile)
	if err != nil {
		d.Log.Warn("cannot read the subnet that this node had before; another may be taken", "error", err)
	}
	if n.config.V4.On() {
		want.V4 = subnet.Endpoint{Subnet: env.V4Subnet, PublicIP: n.link.PublicV4}
	}
	if n.config.V6.On() {
		want.V6 = subnet.Endpoint{Subnet: env.V6Subnet, PublicIP: n.link.PublicV6}
	}
	lease, err := d.acquire(ctx, n.config, want)
	if err != nil {
		return nil, err
	}
	in.published = &lease
	n.lease = lease
	d.Log.Info("this node's subnet", "lease", &lease, "underlay", n.link.Name)
	return n, d.build(n)
}

// acquireAgain is how long to wait when no subnet is to be had: until another node's lease ends, that is.
const acquireAgain = 5 * time.Second

// acquire claims a subnet, however long that takes.
func (d *Daemon) acquire(ctx context.Context, c subnet.Config, want subnet.Lease) (subnet.Lease, error) {
	d.Status.Waiting("waiting for a subnet lease")
	said := time.Time{}
	for {
		lease, err := d.Manager.Acquire(ctx, c, want)
		if err == nil || ctx.Err() != nil {
			return lease, err
		}
		d.Status.Waiting("acquire a subnet: " + err.Error())
		if time.Since(said) > tellAgain {
			d.Log.Warn("cannot start yet; waiting for a subnet", "reason", err)
			said = time.Now()
		}
		select {
		case <-ctx.Done():
			return subnet.Lease{}, ctx.Err()
		case <-time.After(acquireAgain):
		}
	}
}

// prepare needs a configuration and an underlay that go together.
func (d *Daemon) prepare(n *node, in *inbox) error {
	if raw, fresh := in.newConfig(); fresh {
		n.refused = d.readConfig(n, raw)
	}
	switch {
	case n.refused != nil:
		return fmt.Errorf("the network configuration cannot work: %w", n.refused)
	case n.maker == nil:
		return errNoConfig
	}
	link, err := d.Underlay.Choose(n.config.V4.On(), n.config.V6.On())
	if err != nil {
		return err
	}
	n.link = link
	return d.build(n)
}

var errNoConfig = errors.New("the network configuration is not known yet")

// tellAgain is how often a daemon that cannot start says why.
const tellAgain = time.Minute

// waitToJoin waits for a change that may help, and says what it waits for. A change that did not help is no reason
// to say it again.
func (d *Daemon) waitToJoin(ctx context.Context, n *node, in *inbox, why error) error {
	d.Status.Waiting(why.Error())
	said, grace := &n.report, time.NewTimer(0)
	switch {
	case why.Error() == said.problem:
		grace.Reset(tellAgain - time.Since(said.at))
	case errors.Is(why, errNoConfig):
		grace.Reset(time.Second) // it is on its way from the store, which says itself when it cannot be reached
	}
	defer grace.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-in.changed:
			return nil
		case <-d.Underlay.Changes():
			return nil
		case <-grace.C:
			d.Log.Warn("cannot start yet; waiting", "reason", why)
			said.problem, said.at = why.Error(), time.Now()
			grace.Reset(tellAgain)
		}
	}
}
