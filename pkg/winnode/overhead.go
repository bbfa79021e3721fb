package winnode

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"flannel/pkg/cniconf"
	"flannel/pkg/encap"
	"flannel/pkg/hns"
	"flannel/pkg/underlay"
)

// usualMTU is the MTU, in bytes, from which HNS subtracts the overhead, whatever the
// MTU of the adapter (microsoft/SDN#517).
const usualMTU = 1500

// causeOverhead is a cause in the log.
const causeOverhead = "pod-mtu"

// encapOverhead returns the overhead with which pods get the adapter's MTU less 50,
// 0 if they get no more than that anyway. If HNS does not accept the policy, or does
// not say so, it is 0, with a warning: pods with a wrong MTU are better than none.
func (n CNISources) encapOverhead(ctx context.Context, snapshot underlay.Snapshot, s *cniconf.Spec) int {
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

// trialEndpoint is the name of the endpoint of tryOverhead.
const trialEndpoint = "flanneld-trial"

// tryOverhead creates an endpoint with the policy and deletes it again: no version of
// HNS is known from which on it has the policy.
func (n CNISources) tryOverhead(ctx context.Context, s *cniconf.Spec, overhead int) error {
	if n.HNS == nil {
		return errors.New("this machine has no HNS")
	}
	networks, err := n.HNS.Networks(ctx)
	if err != nil {
		return err
	}
	kind := hns.L2Bridge
	if s.Overlay() {
		kind = hns.Overlay
	}
	i := slices.IndexFunc(networks, func(network hns.Network) bool { return network.Type == kind })
	if i < 0 {
		return fmt.Errorf("there is no HNS network of type %s to try the policy EncapOverhead on: run it again after flanneld prepare", kind)
	}
	// HNS may have made one in an earlier run that did not wait for it. It has an address of a pod.
	left, err := n.HNS.EndpointsNamed(ctx, trialEndpoint)
	if err != nil {
		return err
	}
	for _, e := range left {
		if err := n.HNS.DeleteEndpoint(ctx, e.ID); err != nil && !errors.Is(err, hns.ErrNotFound) {
			return fmt.Errorf("delete the endpoint of an earlier trial: %w", err)
		}
	}
	made, err := n.HNS.CreateEndpoint(ctx, hns.Endpoint{Name: trialEndpoint, Network: networks[i].ID, EncapOverhead: overhead})
	if err != nil {
		return fmt.Errorf("try the policy EncapOverhead: %w", err)
	}
	return n.HNS.DeleteEndpoint(context.WithoutCancel(ctx), made.ID)
}
