package daemon

import (
	"context"

	"flannel/pkg/underlay"
)

// followUnderlay chooses the underlay again if it may have changed.
func (d *Daemon) followUnderlay(ctx context.Context, n *node, in *inbox) error {
	if !n.host.stale {
		return nil
	}
	next := *n
	if err := d.chooseUnderlay(ctx, &next); err != nil {
		return err
	}
	link := next.host.link
	d.logKept(&n.logged, link)
	n.host.addrs, n.host.stale, next.host.stale, next.logged = next.host.addrs, false, false, n.logged
	if link.Equal(n.host.link) && next.host.operator == n.host.operator {
		n.host.link.AtStart = link.AtStart
		return nil
	}
	if err := d.build(&next); err != nil {
		return err
	}
	d.Log.Info("underlay changed", "cause", causeUnderlayChanged, "to", link, "what", link.Since(n.host.link))
	// Do not wait until the client notices that connections from the former address
	// get no answers.
	if link.Index != n.host.link.Index || link.V4 != n.host.link.V4 || link.V6 != n.host.link.V6 {
		d.Manager.Redial()
	}
	if next.host.operator != n.host.operator {
		in.republish()
	}
	*n = next
	return nil
}

// chooseUnderlay chooses the interface to the other nodes, with the public IPs
// that the operator has set in the store, and sets them in n. It fails while the host
// does not have its own addresses.
func (d *Daemon) chooseUnderlay(ctx context.Context, n *node) (err error) {
	if n.host.operator, err = d.Manager.PublicIPs(ctx); err != nil {
		return err
	}
	if err := d.Dataplane.AwaitHostAddrs(ctx); err != nil {
		return err
	}
	n.host.link, n.host.addrs, err = d.Underlay.Choose(n.config.V4.On(), n.config.V6.On(), n.host.operator)
	return err
}

// logKept logs that the underlay is not the interface that a start would choose, once
// for each such interface: a VPN may come and go.
func (d *Daemon) logKept(logged *logState, link underlay.Link) {
	if link.AtStart == "" || link.AtStart == logged.atStart {
		return
	}
	logged.atStart = link.AtStart
	d.Log.Warn("another interface has the better default route, keeping the one in use; --iface makes the choice permanent",
		"cause", causeUnderlayKept, "interface", link.Name, "at_start", link.AtStart)
}
