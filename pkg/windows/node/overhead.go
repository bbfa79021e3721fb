package node

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"flannel/pkg/cni/conflist"
	"flannel/pkg/encap"
	"flannel/pkg/underlay"
	"flannel/pkg/windows/hns"
)

// usualMTU is the MTU, in bytes, from which HNS subtracts the overhead, whatever the
// MTU of the adapter (microsoft/SDN#517).
const usualMTU = 1500

// causeOverhead is a cause in the log.
const causeOverhead = "pod-mtu"

// encapOverhead returns the overhead with which pods get the adapter's MTU less 50,
// 0 if they get no more than that anyway. If HNS does not accept the policy, or does
// not say so, it is 0, with a warning: pods with a wrong MTU are better than none.
func (n CNISources) encapOverhead(ctx context.Context, snapshot underlay.Snapshot, s *conflist.Spec) int {
	i := slices.IndexFunc(snapshot.Interfaces, func(in underlay.Interface) bool {
		return slices.ContainsFunc(in.Addrs, func(a underlay.Addr) bool { return a.IP == s.ManagementIP })
	})
	if i < 0 {
		return 0
	}
	mtu := snapshot.Interfaces[i].MTU
	if mtu <= 0 || mtu >= usualMTU {
		return 0
	}
	overhead := usualMTU + encap.VXLAN(false) - mtu
	err := errors.New("version 1 of the HNS API has no policy for it")
	if s.API != 1 {
		err = n.tryOverhead(ctx, s, overhead)
	}
	if err == nil {
		return overhead
	}
	n.Log.Warn("pods get a greater MTU than the node's adapter can carry, and large packets to other nodes may be lost; set --encap-overhead, or the MTU of the adapter to 1500",
		"cause", causeOverhead, "adapter", snapshot.Interfaces[i].Name, "mtu", mtu, "overhead", overhead, "reason", err)
	return 0
}

// tryOverhead tries the policy: no version of HNS is known from which on it has it.
func (n CNISources) tryOverhead(ctx context.Context, s *conflist.Spec, overhead int) error {
	network, err := n.trialNetwork(ctx, s)
	if err != nil {
		return err
	}
	if err := n.try(ctx, hns.Endpoint{Network: network.ID, EncapOverhead: overhead}); err != nil {
		return fmt.Errorf("try the policy EncapOverhead: %w", err)
	}
	return nil
}
