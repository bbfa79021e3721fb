package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"flannel/pkg/windows/hns"
)

// ensureBridge reserves the addresses of the host's endpoint on an L2Bridge, the
// second one of each subnet. Without the reservation, host-local gives the address
// to the first pod. HNS refuses that pod, or (Windows Server 2019) lets both have
// the address. ensureBridge also removes the source VIP of an earlier overlay. Its
// error is errVIPNotNeeded if all is in place, and errHostAddress if only an address of
// the host's endpoint is not.
func (k VIPKeeper) ensureBridge(ctx context.Context, n hns.Network, v, old VIP) (VIP, error) {
	ids, err := k.endpoints(ctx)
	errs := []error{err}
	for _, id := range ids {
		if err := k.Client.DeleteEndpoint(ctx, id); err != nil && !errors.Is(err, hns.ErrNotFound) {
			errs = append(errs, err)
		}
	}
	taken, err := k.reserveHost(ctx, n, hostLocal(v.Store))
	if err := errors.Join(append(errs, err)...); err != nil {
		return VIP{}, err
	}
	if err := k.publish(ctx, v, old); err != nil {
		return VIP{}, err
	}
	if taken != nil {
		return v, taken
	}
	return v, errVIPNotNeeded
}

// reserveHost makes the addresses of the host's endpoint our only reservations. taken is
// errHostAddress for those that pods have, which it leaves out.
func (k VIPKeeper) reserveHost(ctx context.Context, n hns.Network, s hostLocal) (taken, err error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	ours, others, err := s.list()
	if err != nil {
		return nil, err
	}
	var want []netip.Addr
	var errs, conflicts []error
	for _, subnet := range n.Subnets {
		a := subnet.Prefix.Masked().Addr().Next().Next()
		want = append(want, a)
		if others[a] {
			conflicts = append(conflicts, fmt.Errorf("%w: %s in %s: delete the pod, or the file if the pod is gone", errHostAddress, a, string(s)))
			continue
		}
		errs = append(errs, s.reserve(a, hostOwner))
	}
	return errors.Join(conflicts...), errors.Join(append(errs, k.releaseOthers(s, ours, want))...)
}
