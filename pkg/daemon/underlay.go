package daemon

import (
	"context"

	"flannel/pkg/underlay"
)

// underlayPart follows the interface to the other nodes, and this node's addresses.
func (d *Daemon) underlayPart() part {
	u := &underlayState{d: d}
	return part{name: partConfig, reconcile: u.follow, woken: func() bool { u.stale = true; return true },
		wakes: []<-chan struct{}{d.Underlay.Changes(), d.Manager.PublicIPsChanged()}}
}

// underlayState is the part of a pass that chooses the underlay.
type underlayState struct {
	d     *Daemon
	stale bool   // the underlay must be chosen again, which reads all interfaces
	kept  string // see logKept
}

// follow chooses the underlay again if it may have changed.
func (u *underlayState) follow(ctx context.Context, p *pass) error {
	if u.stale = u.stale || p.again; !u.stale {
		return nil
	}
	n, next := p.node, *p.node
	if err := u.d.chooseUnderlay(ctx, &next); err != nil {
		return err
	}
	link := next.host.link
	u.logKept(link)
	n.host.addrs = next.host.addrs // also if the rest does not change or cannot: the plan rejects peers with one of them
	if link.Equal(n.host.link) && next.host.operator == n.host.operator {
		n.host.link.AtStart, u.stale = link.AtStart, false // Equal does not compare AtStart
		return nil
	}
	if err := u.d.build(&next); err != nil {
		return err // such as a backend that does not support the interface. stale stays: each pass tries again
	}
	u.stale = false
	u.d.Log.Info("underlay changed", "cause", causeUnderlayChanged, "to", link, "what", link.Since(n.host.link)) // the fields that differ
	// Do not wait until the client notices that connections from the former address
	// get no answers.
	if link.Index != n.host.link.Index || link.V4 != n.host.link.V4 || link.V6 != n.host.link.V6 {
		u.d.Manager.Redial()
	}
	if next.host.operator != n.host.operator {
		p.in.republish()
	}
	*n = next
	return nil
}

// logKept logs that the underlay is not the interface that a start would choose (AtStart, ""
// if they are the same), once for each such interface: a VPN may come and go.
func (u *underlayState) logKept(link underlay.Link) {
	if link.AtStart == "" || link.AtStart == u.kept {
		return
	}
	u.kept = link.AtStart
	u.d.Log.Warn("a start would choose another interface, keeping the one in use; --iface makes the choice permanent",
		"cause", causeUnderlayKept, "interface", link.Name, "at_start", link.AtStart)
}

// chooseUnderlay chooses the interface to the other nodes, with the public IPs
// that the operator has set in the store, and sets them in n. It fails while the host
// does not have its own addresses: on Windows, after a boot and when a switch changes.
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
