package conflist

import (
	"encoding/json"
	"net/netip"
)

// Options are a set of options of a Spec that HNS may refuse for the endpoints of pods: those that are
// true. In JSON it is part of the record of Put.
type Options struct {
	LoopbackDSR   bool `json:"loopbackDSR,omitempty"`
	EncapOverhead bool `json:"encapOverhead,omitempty"`
}

// Without returns s without options.
func (s Spec) Without(o Options) Spec {
	if o.LoopbackDSR {
		s.LoopbackDSR = false
	}
	if o.EncapOverhead {
		s.EncapOverhead = 0
	}
	return s
}

// PodPolicies returns, in JSON, the policies with which the plugin creates the endpoint of a pod with
// this address: those of the configuration, and the one that the plugin adds for LoopbackDSR.
func (s Spec) PodPolicies(pod netip.Addr) ([]byte, error) {
	policies := s.policies()
	if s.LoopbackDSR {
		policies = append(policies, policyV2{outBoundNAT, loopbackV2{[]netip.Addr{pod}}})
	}
	return json.Marshal(policies)
}
