package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"flannel/pkg/cni/conflist"
	"flannel/pkg/windows/hns"
)

// causeNAT is a cause in the log.
const causeNAT = "pod-nat-refused"

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

// tryNAT turns LoopbackDSR off if HNS refuses it beside the policy OutBoundNAT that each
// pod has (hcsshim#1951), and warns if it refuses that policy alone, too. Another error,
// or that there is no network yet, says nothing about the policies.
func (n CNISources) tryNAT(ctx context.Context, s *conflist.Spec) {
	if !s.LoopbackDSR || s.API == 1 {
		return
	}
	network, err := n.trialNetwork(ctx, s)
	if err != nil || len(network.Subnets) == 0 {
		return
	}
	own, err := json.Marshal(s.OutBoundNAT())
	if err != nil {
		return
	}
	var e hns.Endpoint
	e.Network, e.IPs, e.Policies = network.ID, []netip.Prefix{lastAddress(network.Subnets[0].Prefix)}, make([]hns.Policy, 1)
	if err := json.Unmarshal(own, &e.Policies[0]); err != nil {
		return
	}
	alone := e
	// What the plugins add for loopbackDSR.
	loopback := hns.Policy{Type: e.Policies[0].Type, Settings: fmt.Appendf(nil, `{"Destinations":[%q]}`, e.IPs[0].Addr())}
	e.Policies = append(slices.Clone(e.Policies), loopback)
	if !refusesPolicy(n.try(ctx, e)) {
		return
	}
	s.LoopbackDSR = false
	err = n.try(ctx, alone)
	if !refusesPolicy(err) {
		n.Log.Warn("HNS refuses pods with loopbackDSR, leaving it out: a pod cannot reach itself through a Service", "cause", causeNAT)
		return
	}
	n.Log.Warn("HNS refuses the policy OutBoundNAT of pods, and they will not start; update Windows", "cause", causeNAT, "error", err)
}

func refusesPolicy(err error) bool {
	var e *hns.Error
	return errors.As(err, &e) && e.Code == hns.InvalidPolicy
}

// lastAddress returns the last address that a host can have in a subnet: pods get that one
// last.
func lastAddress(subnet netip.Prefix) netip.Prefix {
	bytes := subnet.Masked().Addr().AsSlice()
	for bit := subnet.Bits(); bit < len(bytes)*8; bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(bytes)
	return netip.PrefixFrom(last.Prev(), subnet.Bits())
}
