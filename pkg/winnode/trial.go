package winnode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"flannel/pkg/cniconf"
	"flannel/pkg/hns"
)

// trialEndpoint is the name of the endpoint of try.
const trialEndpoint = "flanneld-trial"

// trialNetwork returns a network of the type that pods get, for try.
func (n CNISources) trialNetwork(ctx context.Context, s *cniconf.Spec) (hns.Network, error) {
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
	i := slices.IndexFunc(networks, func(network hns.Network) bool { return network.Type == kind })
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

// causeNAT is a cause in the log.
const causeNAT = "outbound-nat"

// fitNAT removes from s the policies OutBoundNAT that HNS refuses (hcsshim#1951, calico#8465):
// LoopbackDSR first, then all of them, with a warning. A pod without them is better than none.
// If HNS cannot be asked, they stay.
func (n CNISources) fitNAT(ctx context.Context, s *cniconf.Spec) {
	if s.API != 2 || len(s.Cluster) == 0 || len(s.Services) == 0 {
		return // the trial would differ from the configuration, or there is none
	}
	network, err := n.trialNetwork(ctx, s)
	if err != nil || len(network.Subnets) == 0 {
		return
	}
	refused := n.tryNAT(ctx, s, network)
	if refused == nil {
		return
	}
	if s.LoopbackDSR {
		s.LoopbackDSR = false
		if n.tryNAT(ctx, s, network) == nil {
			n.Log.Warn("HNS refuses the policies for a pod that reaches itself through a Service, so the configuration does not have them; --loopback-dsr=false prevents the trial",
				"cause", causeNAT, "error", refused)
			return
		}
	}
	s.WithoutNAT = true
	n.Log.Warn("HNS refuses the policy OutBoundNAT, so the configuration does not have it: pods do not reach addresses outside of the cluster. Install the updates of Windows, and run cni-conf again",
		"cause", causeNAT, "error", refused)
}

// tryNAT returns the error with which HNS refuses the policies OutBoundNAT of a pod. It is
// nil after any other error.
func (n CNISources) tryNAT(ctx context.Context, s *cniconf.Spec, network hns.Network) error {
	subnet := network.Subnets[0].Prefix
	pod := lastAddr(subnet).Prev() // that which host-local assigns last
	e := hns.Endpoint{Network: network.ID, IPs: []netip.Prefix{netip.PrefixFrom(pod, subnet.Bits())}}
	kind, all := s.NATPolicies(pod)
	for _, settings := range all {
		text, err := json.Marshal(settings)
		if err != nil {
			return err
		}
		e.Policies = append(e.Policies, hns.Policy{Type: kind, Settings: text})
	}
	err := n.try(ctx, e)
	if problem := (*hns.Error)(nil); errors.As(err, &problem) && problem.Code == hns.InvalidPolicy {
		return err
	}
	return nil
}

// lastAddr returns the last address of a prefix.
func lastAddr(p netip.Prefix) netip.Addr {
	bytes := p.Masked().Addr().AsSlice()
	for i := range bytes {
		if host := (i+1)*8 - p.Bits(); host > 0 {
			bytes[i] |= byte(1<<min(host, 8) - 1)
		}
	}
	last, _ := netip.AddrFromSlice(bytes)
	return last
}
