package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"flannel/pkg/plan"
)

// errNotPublished is why a pass is not complete while the publisher has not written the
// lease to the store: peers cannot reach this node yet.
var errNotPublished = errors.New("this node's lease is not published yet")

// leasePart completes this node's lease, and has it published.
func (d *Daemon) leasePart() part {
	return part{name: "publish", reconcile: func(_ context.Context, p *pass) error {
		err := d.updateLease(p)
		if p.failed.has(partDevices) { // then an error is a consequence
			return nil
		}
		return err
	}}
}

// updateLease completes this node's lease with the data of the devices, such as
// their MAC addresses, and requests that it is published. It fails as long as
// the store does not have it.
func (d *Daemon) updateLease(p *pass) error {
	described, err := p.backend.Describe(p.lease, p.links)
	if err != nil {
		return err
	}
	described = withMark(described, d.adoption.rollout.Mark())
	// A plan compares peers with our own lease, so it starts anew with a changed one.
	if !p.lease.Equal(&described) {
		p.lease, p.plan = described, plan.New(p.config, described, p.backend)
	}
	published, err := p.in.requestPublish(described)
	switch {
	case err != nil:
		return fmt.Errorf("publish the lease: %w", err)
	case !published:
		return errNotPublished
	}
	return nil
}

// bridgePart frees the pods' bridge of former subnets.
func (d *Daemon) bridgePart() part { return part{name: "bridge", reconcile: d.leaveFormerSubnets} }

// leaveFormerSubnets frees the pods' bridge of the gateways of this node's former
// subnets, of the families in use. While the subnet file has a former one, new pods bring its
// gateway back. movedPart has written the file, unless the network has changed, too, or a device
// is missing.
func (d *Daemon) leaveFormerSubnets(_ context.Context, p *pass) error {
	if p.failed.unknown() || p.failed.has(partSubnetFile) {
		return nil
	}
	var former []netip.Prefix
	if p.lease.V4.On() {
		former = append(former, p.former.v4...)
	}
	if p.lease.V6.On() {
		former = append(former, p.former.v6...)
	}
	return d.Dataplane.LeaveSubnets(former, d.Manager.NodeName())
}
