// Package conflist makes the CNI configuration of a Windows node. It is for the
// flannel plugin, which delegates to one of four plugins that use HNS:
//
//	             overlay       bridge        HNS API
//	CNI project  win-overlay   win-bridge    1 or 2
//	Microsoft    sdnoverlay    sdnbridge     2
//
// The formats follow cni.dev (win-overlay, win-bridge), the samples of the plugins
// (github.com/containernetworking/plugins, sample-v1.conf and sample-v2.conf) and
// those of Microsoft (github.com/microsoft/windows-container-networking, example).
package conflist

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Spec is what the configuration is made from.
type Spec struct {
	Plugin  string // one of Plugins
	API     int    // 1: policies of the older HNS API (dockershim); 2: of the newer one, HCN, which containerd needs
	Network string // name of the HNS network
	List    bool   // make a .conflist, not a .conf

	Cluster       []netip.Prefix // pod networks
	Services      []netip.Prefix // networks of Services
	Management    []netip.Prefix // networks of the nodes; pods on a bridge reach them without NAT
	NATExceptions []netip.Prefix // further networks that pods reach without NAT
	ManagementIP  netip.Addr     // the node's own address
	ManagementIP6 netip.Addr     // zero: none

	DNS         []netip.Addr // DNS servers; with Search empty, too: kubelet sets them for each pod
	Search      []string
	LoopbackDSR bool   // a pod may reach itself through a Service; needs an HNS with DSR
	MACPrefix   string // of the pods' endpoints; only for an overlay
	// EncapOverhead is what HNS subtracts from 1500 for the MTU of pods, in bytes; 0
	// or less: its default, 50. Only version 2 of the API has it.
	EncapOverhead int
}

// Plugins returns the plugins that the flannel plugin can delegate to on Windows.
func Plugins() []string { return []string{"win-overlay", "win-bridge", "sdnoverlay", "sdnbridge"} }

// Programs returns the files of all plugins that the configuration needs. The
// flannel plugin makes the other plugin use host-local for IPAM.
func (s Spec) Programs() []string {
	return []string{"flannel.exe", s.Plugin + ".exe", "host-local.exe"}
}

// Overlay reports whether the plugin is for an overlay, and not for a bridge.
func (s Spec) Overlay() bool { return strings.HasSuffix(s.Plugin, "overlay") }

// dualStack reports whether pods have IPv6, too.
func (s Spec) dualStack() bool {
	return slices.ContainsFunc(s.Cluster, func(p netip.Prefix) bool { return p.Addr().Is6() })
}

// sdn reports whether the plugin is one of Microsoft's.
func (s Spec) sdn() bool { return strings.HasPrefix(s.Plugin, "sdn") }

// validate returns all problems of the Spec.
func (s Spec) validate() error {
	var problems []error
	report := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if !slices.Contains(Plugins(), s.Plugin) {
		report("plugin %.40q: use one of %s", s.Plugin, strings.Join(Plugins(), ", "))
	}
	if s.API != 1 && s.API != 2 {
		report("API version %d: use 1 or 2", s.API)
	} else if s.sdn() && s.API == 1 {
		report("API version 1: %s supports only 2", s.Plugin)
	}
	if s.Network == "" {
		report("the name of the HNS network is missing: set --network-name")
	}
	if len(s.Cluster) == 0 {
		report("the cluster's pod network is missing: set --cluster-cidr")
	}
	if len(s.Services) == 0 {
		report("the cluster's service network is missing: set --service-cidr, or a --kubeconfig-file with the permission to read it")
	}
	if !s.ManagementIP.IsValid() && (s.API == 2 || !s.Overlay()) {
		report("the node's own address is missing: set --management-ip")
	}
	for _, p := range slices.Concat(s.Cluster, s.Services, s.Management, s.NATExceptions) {
		switch {
		case p.Addr().Is6() && s.Overlay():
			report("%s: Windows does not support IPv6 on an overlay: remove it", p)
		case p.Bits() == 0:
			report("%s: without NAT to any address, pods cannot reach hosts outside of the cluster", p)
		}
	}
	return errors.Join(problems...)
}

// The types below are the JSON documents. Their fields are in the order in which
// the samples have them. The JSON names differ between the plugins: win-* has
// policies, in lower case, and sdn* has AdditionalArgs, in camel case. V1 and V2
// are the forms of a policy in the two HNS APIs.

// conf is the configuration of the flannel plugin, alone or in a list.
type conf struct {
	CNIVersion   string          `json:"cniVersion,omitempty"`
	Name         string          `json:"name,omitempty"`
	Type         string          `json:"type"`
	Capabilities map[string]bool `json:"capabilities"`
	Delegate     delegate        `json:"delegate"`
}

// delegate is the part of conf for the plugin that does the work.
type delegate struct {
	Type           string          `json:"type"`
	APIVersion     int             `json:"apiVersion,omitempty"`
	IPMasq         bool            `json:"ipMasq"`
	IPMasqNetwork  *string         `json:"ipMasqNetwork,omitempty"`
	DNS            any             `json:"dns,omitempty"`
	LoopbackDSR    bool            `json:"loopbackDSR,omitempty"`
	MACPrefix      string          `json:"endpointMacPrefix,omitempty"`
	OptionalFlags  map[string]bool `json:"optionalFlags,omitempty"`
	Policies       []winPolicy     `json:"policies,omitempty"`       // of win-*
	AdditionalArgs []sdnPolicy     `json:"AdditionalArgs,omitempty"` // of sdn*
}

type (
	// Policies in the two groups of plugins, and DNS servers.
	winPolicy struct {
		Name  string `json:"name"`
		Value any    `json:"value"`
	}
	sdnPolicy struct{ Name, Value any }

	dnsLower struct {
		Nameservers []netip.Addr `json:"nameservers,omitempty"`
		Search      []string     `json:"search,omitempty"`
	}
	dnsUpper struct {
		Nameservers []netip.Addr `json:",omitempty"`
		Search      []string     `json:",omitempty"`
	}

	// The policies themselves, by the HNS API.
	natV1   struct{ Type, ExceptionList any } // a string, and a list of networks
	routeV1 struct {
		Type              string
		DestinationPrefix netip.Prefix
		NeedEncap         bool
	}
	policyV2 struct {
		Type     string
		Settings any
	}
	natV2   struct{ Exceptions []netip.Prefix }
	routeV2 struct {
		DestinationPrefix netip.Prefix
		NeedEncap         bool
	}
	providerV2 struct{ ProviderAddress netip.Addr }
	overheadV2 struct{ Overhead int }
	loopbackV2 struct{ Destinations []netip.Addr }
)

// cniVersion is a version that all four plugins support, and that has lists.
const cniVersion = "0.3.0"

// Make returns the configuration's text, or all problems of the Spec.
func Make(s Spec) ([]byte, error) {
	if err := s.validate(); err != nil {
		return nil, err
	}
	// Our policy OutBoundNAT has all exceptions. Without these two settings, the flannel plugin
	// would request another such policy from win-overlay and win-bridge.
	d := delegate{Type: s.Plugin, IPMasq: false}
	if s.Plugin == "win-bridge" {
		d.IPMasqNetwork = new(string) // present and empty
	}
	// What the runtime passes to the plugins. Microsoft's have another name for the DNS servers.
	capabilities := map[string]bool{"portMappings": true, "dns": true}
	if s.sdn() {
		capabilities = map[string]bool{"portMappings": true, "dnsCapabilities": true}
		d.OptionalFlags = map[string]bool{"loopbackDSR": s.LoopbackDSR}
		if !s.Overlay() {
			// Otherwise sdnbridge gives pods the network's gateway instead of the
			// host's endpoint (windows-container-networking#40).
			d.OptionalFlags["forceBridgeGateway"] = true
		}
		if s.dualStack() {
			d.OptionalFlags["enableDualStack"] = true
		}
		for _, p := range s.policies() {
			d.AdditionalArgs = append(d.AdditionalArgs, sdnPolicy{"EndpointPolicy", p})
		}
	} else {
		d.LoopbackDSR = s.LoopbackDSR
		if s.API == 2 {
			d.APIVersion = 2
		}
		if s.Overlay() {
			d.MACPrefix = s.MACPrefix
		}
		for _, p := range s.policies() {
			d.Policies = append(d.Policies, winPolicy{"EndpointPolicy", p})
		}
	}
	switch {
	case len(s.DNS)+len(s.Search) == 0: // the runtime sets kubelet's, through the capability
	case s.sdn():
		d.DNS = dnsUpper{s.DNS, s.Search}
	default:
		d.DNS = dnsLower{s.DNS, s.Search}
	}
	plugin := conf{CNIVersion: cniVersion, Name: s.Network, Type: "flannel", Capabilities: capabilities, Delegate: d}
	if !s.List {
		return text(plugin)
	}
	plugin.CNIVersion, plugin.Name = "", ""
	return text(struct {
		CNIVersion string `json:"cniVersion"`
		Name       string `json:"name"`
		Plugins    []conf `json:"plugins"`
	}{cniVersion, s.Network, []conf{plugin}})
}

// policies returns the policies of each pod's endpoint: the destinations that it
// reaches without NAT, those to which HNS routes and encapsulates its packets, on an
// overlay with HCN the node's address as the source of encapsulated packets, and the
// overhead that lowers the MTU.
func (s Spec) policies() []any {
	routed := slices.Clone(s.Services)
	if !s.Overlay() {
		routed = append(routed, netip.PrefixFrom(s.ManagementIP, s.ManagementIP.BitLen()))
		if s.ManagementIP6.IsValid() && s.dualStack() {
			routed = append(routed, netip.PrefixFrom(s.ManagementIP6, s.ManagementIP6.BitLen()))
		}
	}
	var policies []any
	if s.API == 1 {
		policies = append(policies, natV1{outBoundNAT, s.exceptions()})
		for _, p := range routed {
			policies = append(policies, routeV1{"ROUTE", p, true}) // true: encapsulate
		}
		return policies
	}
	policies = append(policies, policyV2{outBoundNAT, natV2{s.exceptions()}})
	for _, p := range routed {
		policies = append(policies, policyV2{"SDNRoute", routeV2{p, true}}) // true, as above
	}
	if s.Overlay() {
		policies = append(policies, policyV2{"ProviderAddress", providerV2{s.ManagementIP}})
	}
	if s.EncapOverhead > 0 {
		policies = append(policies, policyV2{encapOverhead, overheadV2{s.EncapOverhead}})
	}
	return policies
}

// Types of policies.
const (
	outBoundNAT   = "OutBoundNAT"
	encapOverhead = "EncapOverhead"
)

// exceptions returns the networks that pods reach without NAT: with their own address as the
// source, not the node's.
func (s Spec) exceptions() []netip.Prefix {
	exceptions := slices.Concat(s.Cluster, s.Services)
	if !s.Overlay() {
		exceptions = append(exceptions, s.Management...)
	}
	return append(exceptions, s.NATExceptions...)
}

// text returns a value as indented JSON.
func text(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("encode the CNI configuration: %w", err)
	}
	return b.Bytes(), nil
}
