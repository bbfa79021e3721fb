package node

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"flannel/pkg/cni/conflist"
	"flannel/pkg/windows/hns"
)

// trialEndpoint is the name of the endpoint of try.
const trialEndpoint = "flanneld-trial"

// trialNetwork returns a network of the type that pods get, for try.
func (n CNISources) trialNetwork(ctx context.Context, s *conflist.Spec) (hns.Network, error) {
	if n.HNS == nil {
		return hns.Network{}, errors.New("this machine has no HNS")
	}
	networks, err := n.HNS.Networks(ctx)
	if err != nil {
		return hns.Network{}, err
	}
	kind := hns.L2Bridge
	if s.Overlay() {
		kind = hns.Overlay
	}
	i := slices.IndexFunc(networks, func(network hns.Network) bool { return network.Type == kind && network.Name == s.Network })
	if i < 0 {
		i = slices.IndexFunc(networks, func(network hns.Network) bool { return network.Type == kind })
	}
	if i < 0 {
		return hns.Network{}, fmt.Errorf("there is no HNS network of type %s for a trial endpoint: run it again after flanneld prepare", kind)
	}
	return networks[i], nil
}

// try creates an endpoint and deletes it again. The error is that of HNS if it refuses the
// endpoint.
func (n CNISources) try(ctx context.Context, e hns.Endpoint) error {
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
	e.Name = trialEndpoint
	made, err := n.HNS.CreateEndpoint(ctx, e)
	if err != nil {
		return err
	}
	return n.HNS.DeleteEndpoint(context.WithoutCancel(ctx), made.ID)
}
