package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"flannel/pkg/cni/conflist"
	"flannel/pkg/dataplane"
	"flannel/pkg/encap"
	"flannel/pkg/windows/hns"
)

// Causes in the log.
const (
	causeNAT      = "pod-nat-refused"
	causeOverhead = "pod-mtu"
)

// trialEndpoint is the name of the endpoint of try.
const trialEndpoint = "flanneld-trial"

var errRefusedBefore = errors.New("HNS refused it when the file was written")

// Try returns s without those options in doubt that HNS refuses for pods: a pod that cannot
// reach itself, or has a wrong MTU, is better than none. The caller hands refused to Put.
//
//	the file                                         | the options are those
//	has s, or is somebody else's and stays           | of s; there is no trial
//	has s without what HNS refused when Put wrote it | of the file; there is no trial
//	would change, and HNS accepts or refuses them    | that HNS accepts
//	would change, and HNS does not say               | of the file; without a file LoopbackDSR alone
//
// So a run that changes nothing in the file changes nothing in HNS either.
func (n CNISources) Try(ctx context.Context, s conflist.Spec, doubt conflist.Options, f conflist.File) (made conflist.Spec, refused conflist.Options) {
	before := f.Refused().And(doubt)
	switch {
	case s.API == 1: // it has no policy EncapOverhead, and LoopbackDSR is not in doubt
		n.warn(s, doubt, errors.New("version 1 of the HNS API has no policy for it"))
		return s.Without(doubt), conflist.Options{}
	case doubt == conflist.Options{}, f.Keeps(s):
		return s, conflist.Options{}
	case before != conflist.Options{} && f.Keeps(s.Without(before)):
		n.warn(s, before, errRefusedBefore)
		return s.Without(before), before
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	refused, unknown, err := n.tryOptions(ctx, s, doubt)
	n.warn(s, refused, err)
	if unknown != (conflist.Options{}) {
		has, exists := f.Options()
		lacks := unknown.And(conflist.Options{LoopbackDSR: exists && !has.LoopbackDSR, EncapOverhead: !has.EncapOverhead})
		n.Log.Info("could not try which policies HNS accepts for pods", "loopback_dsr", s.LoopbackDSR && !lacks.LoopbackDSR, "reason", err)
		n.warn(s, conflist.Options{EncapOverhead: lacks.EncapOverhead}, err)
		s, refused = s.Without(lacks), refused.Or(before.And(lacks))
	}
	return s.Without(refused), refused
}

// warn says which options s will lack.
func (n CNISources) warn(s conflist.Spec, lacks conflist.Options, reason error) {
	if lacks.EncapOverhead {
		n.Log.Warn("pods get a greater MTU than the node's adapter can carry, and large packets to other nodes may be lost; set --encap-overhead, or the MTU of the adapter to 1500",
			"cause", causeOverhead, "address", s.ManagementIP, "mtu", usualMTU+encap.VXLAN(false)-s.EncapOverhead, "overhead", s.EncapOverhead, "reason", reason)
	}
	if lacks.LoopbackDSR {
		n.Log.Warn("HNS refuses a second policy OutBoundNAT, leaving loopbackDSR out: a pod cannot reach itself through a Service; after an update of Windows, try again with --force",
			"cause", causeNAT, "reason", reason)
	}
}

// tryOptions asks HNS about the options in doubt. The error says why HNS refuses some, or says
// nothing about others.
func (n CNISources) tryOptions(ctx context.Context, s conflist.Spec, doubt conflist.Options) (refused, unknown conflist.Options, err error) {
	network, err := n.trialNetwork(ctx, s)
	if err != nil {
		return refused, doubt, err
	}
	e := hns.Endpoint{Network: network.ID}
	var noAddress error
	if a := trialAddress(network); a.IsValid() {
		e.IPs = []netip.Prefix{a}
	} else if doubt.LoopbackDSR {
		unknown.LoopbackDSR, doubt.LoopbackDSR, s.LoopbackDSR = true, false, false
		noAddress = fmt.Errorf("there is no HNS network %s, whose addresses no pod gets", dataplane.SwitchNetwork)
	}
	refused, err = n.refusedOf(ctx, e, s, doubt)
	if err != nil && refused == (conflist.Options{}) {
		unknown = unknown.Or(doubt)
	}
	return refused, unknown, errors.Join(noAddress, err)
}

// refusedOf creates the endpoint e with the policies of a pod. If HNS refuses it, it tries again
// without options in doubt: what HNS refuses are those without which it accepts the endpoint. If
// there are none such, they stay unknown.
func (n CNISources) refusedOf(ctx context.Context, e hns.Endpoint, s conflist.Spec, doubt conflist.Options) (refused conflist.Options, err error) {
	var why error // of the last endpoint with both
	for _, without := range []conflist.Options{{}, {EncapOverhead: true}, {LoopbackDSR: true}, {LoopbackDSR: true, EncapOverhead: true}} {
		switch {
		case doubt == conflist.Options{}:
			return refused, nil
		case without.And(doubt) != without:
			continue
		case without.LoopbackDSR && !invalidPolicy(why):
			return refused, why
		}
		err := n.try(ctx, e, s.Without(without))
		switch {
		case err == nil:
			return without, why
		case !answers(err):
			return refused, err
		case !without.LoopbackDSR:
			why = err
		}
	}
	return refused, why
}

// answers reports whether an error of HNS may be about the policies of an endpoint.
func answers(err error) bool {
	_, ofHNS := errors.AsType[*hns.Error](err)
	return ofHNS && !errors.Is(err, hns.ErrUnavailable) && !errors.Is(err, hns.ErrAddressInUse) && !errors.Is(err, hns.ErrNotFound)
}

// invalidPolicy reports whether HNS refused an endpoint as it refuses those with policies OutBoundNAT
// (hcsshim#1951, calico#8465).
func invalidPolicy(err error) bool {
	e, ofHNS := errors.AsType[*hns.Error](err)
	return ofHNS && e.Code == hns.InvalidPolicy
}

// trialAddress returns an address that no pod gets, since the network has no pods; invalid if it has some.
// The gateway is the first address of the network.
func trialAddress(network hns.Network) netip.Prefix {
	if network.Name != dataplane.SwitchNetwork || len(network.Subnets) == 0 {
		return netip.Prefix{}
	}
	subnet := network.Subnets[0].Prefix.Masked()
	return netip.PrefixFrom(subnet.Addr().Next().Next(), subnet.Bits())
}

// trialNetwork returns a network of the type that pods get, for try: at best that of prepare.
func (n CNISources) trialNetwork(ctx context.Context, s conflist.Spec) (hns.Network, error) {
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
	networks = slices.DeleteFunc(networks, func(network hns.Network) bool { return network.Type != kind })
	for _, name := range []string{dataplane.SwitchNetwork, s.Network} {
		if i := slices.IndexFunc(networks, func(network hns.Network) bool { return network.Name == name }); i >= 0 {
			return networks[i], nil
		}
	}
	if len(networks) == 0 {
		return hns.Network{}, fmt.Errorf("there is no HNS network of type %s for a trial endpoint: run it again after flanneld prepare", kind)
	}
	return networks[0], nil
}

// try creates an endpoint with the policies of a pod, and deletes it again. The error is that of HNS if it
// refuses the endpoint.
func (n CNISources) try(ctx context.Context, e hns.Endpoint, s conflist.Spec) error {
	var own netip.Addr
	if len(e.IPs) > 0 {
		own = e.IPs[0].Addr()
	}
	var err error
	if e.Policies, err = podPolicies(s, own); err != nil {
		return err
	}
	// HNS may have made one in an earlier run that did not wait for it.
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

// podPolicies returns the policies of a pod with this address.
func podPolicies(s conflist.Spec, pod netip.Addr) (policies []hns.Policy, err error) {
	raw, err := s.PodPolicies(pod)
	if err != nil {
		return nil, err
	}
	return policies, json.Unmarshal(raw, &policies)
}
