// This file asks HNS, before the CNI configuration is written, whether it accepts the policies that the CNI plugin will
// ask it for: an HNS that refuses one would let every pod on the node fail. It creates an endpoint as the plugin would,
// and deletes it.

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
	"flannel/pkg/windows/hns"
)

// Causes in the log.
const (
	causeNAT      = "pod-nat-refused"
	causeOverhead = "pod-mtu"
)

// trialEndpoint is the name of the endpoint of createTrialEndpoint.
const trialEndpoint = "flanneld-trial"

// errNoTrial is the reason if there is no trial: see conflist.File.ToTry.
var errNoTrial = errors.New("HNS is asked once for each configuration, before the file is written, or with --force")

// TryInHNS returns which options in doubt to leave out of s, since HNS refuses them for pods. The command
// cni-conf calls it; doubt are the options of s that HNS may refuse (see Complete), and f is the file that it
// writes. A pod that cannot reach itself, or has a wrong MTU, is better than none. If f has options to try
// (f.ToTry), TryInHNS creates endpoints and deletes them. The caller hands the decisions to f.Put.
//
//	the option was                    | it is left out
//	accepted or refused in this trial | if HNS refused it
//	not tried, or HNS did not answer  | as before: see conflist.File
func (n CNISources) TryInHNS(ctx context.Context, s conflist.Spec, doubt conflist.Options, f conflist.File) conflist.Decisions {
	d := f.Decisions() // those of an earlier run of the command, which its record keeps
	overhead, loopback := errNoTrial, errNoTrial
	if s.API == 1 { // the plugin calls the older API: it has no policy EncapOverhead, and LoopbackDSR is not in doubt
		d.LeftOut.EncapOverhead, d.Tried.EncapOverhead, overhead = true, true, errors.New("version 1 of the HNS API has no policy for it")
	} else if try := f.ToTry(); try != (conflist.Options{}) {
		ctx, cancel := context.WithTimeout(ctx, n.localLimit())
		defer cancel()
		overhead, loopback = n.createTrials(ctx, s, try, &d)
	}
	if doubt.EncapOverhead && !d.Tried.EncapOverhead {
		n.Log.Info("did not try whether HNS accepts the policy EncapOverhead for pods", "left_out", d.LeftOut.EncapOverhead, "reason", overhead)
	}
	if doubt.LoopbackDSR && !d.Tried.LoopbackDSR {
		n.Log.Info("did not try whether HNS accepts loopbackDSR for pods", "left_out", d.LeftOut.LoopbackDSR, "reason", loopback)
	}
	if f.Stays() { // somebody has edited the file: Put does not write it, so nothing is to warn of
		return d
	}
	if doubt.EncapOverhead && d.LeftOut.EncapOverhead { // mtu is that of the adapter, from which Complete has the overhead
		n.Log.Warn("pods get a greater MTU than the node's adapter can carry, and large packets to other nodes may be lost; set --encap-overhead, or the MTU of the adapter to 1500",
			"cause", causeOverhead, "address", s.ManagementIP, "mtu", usualMTU+dataplane.TraitsOf(dataplane.VXLAN{}).Overhead(false)-s.EncapOverhead, "overhead", s.EncapOverhead, "reason", overhead)
	}
	if doubt.LoopbackDSR && d.LeftOut.LoopbackDSR {
		n.Log.Warn("HNS refused a second policy OutBoundNAT, leaving loopbackDSR out: a pod cannot reach itself through a Service; after an update of Windows, try again with --force",
			"cause", causeNAT, "reason", loopback)
	}
	return d
}

// createTrials asks HNS about the options to try, and sets what it says in d: what is to be tried again counts as not
// tried until HNS has said something about it. The errors say why HNS refuses an option, or why the option could not be
// tried.
func (n CNISources) createTrials(ctx context.Context, s conflist.Spec, try conflist.Options, d *conflist.Decisions) (overhead, loopback error) {
	d.Tried.EncapOverhead = d.Tried.EncapOverhead && !try.EncapOverhead
	d.Tried.LoopbackDSR = d.Tried.LoopbackDSR && !try.LoopbackDSR
	network, err := n.trialNetwork(ctx, s)
	if err != nil {
		return err, err
	}
	e := hns.Endpoint{Network: network.ID}
	address := trialAddress(network)
	if address.IsValid() {
		e.IPs = []netip.Prefix{address}
	}
	with := s.Without(conflist.Options{LoopbackDSR: true}) // the overhead is tried alone
	without := with.Without(conflist.Options{EncapOverhead: true})
	if try.EncapOverhead {
		d.LeftOut.EncapOverhead, d.Tried.EncapOverhead, overhead = n.refuses(ctx, e, with, without, d.LeftOut.EncapOverhead, overheadRefusals)
	}
	if !try.LoopbackDSR {
		return overhead, nil
	}
	if !address.IsValid() {
		return overhead, fmt.Errorf("there is no HNS network %s, whose addresses no pod gets: run flanneld prepare, or set --loopback-dsr", dataplane.SwitchNetwork)
	}
	if d.Tried.EncapOverhead && !d.LeftOut.EncapOverhead { // HNS accepts the overhead, and pods get it
		without = with
	}
	with = without
	with.LoopbackDSR = true
	d.LeftOut.LoopbackDSR, d.Tried.LoopbackDSR, loopback = n.refuses(ctx, e, with, without, d.LeftOut.LoopbackDSR, natRefusals)
	return overhead, loopback
}

// Codes with which HNS refuses an endpoint for its policies. Those of OutBoundNAT were seen (hcsshim#1951,
// calico#8465). An HNS that does not know EncapOverhead may use any of the others.
var (
	natRefusals      = []hns.Code{hns.InvalidPolicy}
	overheadRefusals = []hns.Code{hns.InvalidPolicy, hns.InvalidPolicyType, hns.InvalidParameter, hns.NotSupported, hns.RequestUnsupported, hns.HandlerUnsupported}
)

// refuses creates the endpoint e with an option and, if HNS refuses the endpoint with one of the codes,
// another one without the option. The option is refused if HNS accepts the endpoint without it. If HNS says
// nothing about the option, tried is false, and refused is as before. why says why the option is refused, or
// not tried; nil: HNS accepts it.
func (n CNISources) refuses(
	ctx context.Context, e hns.Endpoint, with, without conflist.Spec, before bool, codes []hns.Code,
) (refused, tried bool, why error) {
	code, why := n.createTrialEndpoint(ctx, e, with)
	if why == nil {
		return false, true, nil
	}
	if !slices.Contains(codes, code) {
		return before, false, why
	}
	if _, err := n.createTrialEndpoint(ctx, e, without); err != nil {
		return before, false, fmt.Errorf("HNS accepts no endpoint without it either: %w", err)
	}
	return true, true, why
}

// trialAddress returns an address that no pod gets. It is not valid if pods may have endpoints on the
// network: HNS then chooses the address of a trial endpoint. The gateway has the first address of the network.
func trialAddress(network hns.Network) netip.Prefix {
	if network.Name != dataplane.SwitchNetwork || len(network.Subnets) == 0 {
		return netip.Prefix{}
	}
	subnet := network.Subnets[0].Prefix.Masked()
	return netip.PrefixFrom(subnet.Addr().Next().Next(), subnet.Bits())
}

// trialNetwork returns a network of the type that pods get, for trials: at best that of prepare.
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

// createTrialEndpoint creates the endpoint e with the policies that the configuration s has for a pod, and
// deletes it again. If HNS refuses the endpoint, code is that of HNS; it is 0 if anything else fails.
func (n CNISources) createTrialEndpoint(ctx context.Context, e hns.Endpoint, s conflist.Spec) (code hns.Code, err error) {
	var own netip.Addr
	if len(e.IPs) > 0 {
		own = e.IPs[0].Addr()
	}
	if e.Policies, err = podPolicies(s, own); err != nil {
		return 0, err
	}
	// In an earlier run, HNS may have made one after the timeout.
	left, err := n.HNS.EndpointsNamed(ctx, trialEndpoint)
	if err != nil {
		return 0, err
	}
	for _, e := range left {
		if err := n.deleteEndpoint(ctx, e.ID); err != nil {
			return 0, fmt.Errorf("delete the endpoint of an earlier trial: %w", err)
		}
	}
	e.Name = trialEndpoint
	made, err := n.HNS.CreateEndpoint(ctx, e)
	if err != nil {
		if refusal, ok := errors.AsType[*hns.Error](err); ok {
			code = refusal.Code
		}
		return code, err
	}
	if err := n.deleteEndpoint(context.WithoutCancel(ctx), made.ID); err != nil {
		return 0, fmt.Errorf("delete the endpoint of the trial: %w", err)
	}
	return 0, nil
}

// deleteEndpoint deletes an endpoint. If it does not exist, that is no error.
func (n CNISources) deleteEndpoint(ctx context.Context, id string) error {
	if err := n.HNS.DeleteEndpoint(ctx, id); !errors.Is(err, hns.ErrNotFound) {
		return err
	}
	return nil
}

// podPolicies returns the policies of the endpoint that the CNI plugin creates for a pod with this address.
func podPolicies(s conflist.Spec, pod netip.Addr) (policies []hns.Policy, err error) {
	raw, err := s.PodPolicies(pod)
	if err != nil {
		return nil, err
	}
	return policies, json.Unmarshal(raw, &policies)
}
