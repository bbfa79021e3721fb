// Package cniconf makes the CNI configuration of a Windows node: the flannel plugin, which delegates to one of the four
// plugins that speak to HNS. It is pure: the same Spec gives the same text.
//
// The formats are those of cni.dev (win-overlay, win-bridge), of the plugins' own samples
// (github.com/containernetworking/plugins, sample-v1.conf and sample-v2.conf) and of Microsoft's
// (github.com/microsoft/windows-container-networking, example).
package cniconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Spec says what the configuration is for.
type Spec struct {
	Plugin  string // one of Plugins
	API     int    // 1: policies for HNS's old interface (dockershim); 2: for HCN's, which containerd needs
	Network string // name of the HNS network
	List    bool   // a .conflist rather than a .conf

	Cluster      []netip.Prefix // pod networks
	Services     []netip.Prefix
	Management   []netip.Prefix // the nodes' own networks; only bridges reach them without NAT
	Spare        []netip.Prefix // more that is reached without NAT
	ManagementIP netip.Addr     // the node's own address

	DNS         []netip.Addr
	Search      []string
	LoopbackDSR bool   // a pod may reach itself through a Service
	MACPrefix   string // of endpoints, with overlay
}

// Plugins are those that the flannel plugin can delegate to on Windows.
func Plugins() []string { return []string{"win-overlay", "win-bridge", "sdnoverlay", "sdnbridge"} }

// Programs are the plugins that the configuration needs, as files. The flannel plugin has host-local give addresses.
func (s Spec) Programs() []string {
	return []string{"flannel.exe", s.Plugin + ".exe", "host-local.exe"}
}

// Overlay tells whether the plugin is for one; the others are for bridges.
func (s Spec) Overlay() bool { return strings.HasSuffix(s.Plugin, "overlay") }

func (s Spec) sdn() bool { return strings.HasPrefix(s.Plugin, "sdn") }

// check finds everything that is wrong.
func (s Spec) check() error {
	var problems []error
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if !slices.Contains(Plugins(), s.Plugin) {
		bad("plugin %.40q: use one of %s", s.Plugin, strings.Join(Plugins(), ", "))
	}
	if s.API != 1 && s.API != 2 {
		bad("API version %d: use 1 or 2", s.API)
	} else if s.sdn() && s.API == 1 {
		bad("API version 1: %s speaks only 2", s.Plugin)
	}
	if s.Network == "" {
		bad("the name of the HNS network is missing: give --network-name")
	}
	if len(s.Cluster) == 0 {
		bad("the cluster's pod network is missing: give --cluster-cidr")
	}
	if len(s.Services) == 0 {
		bad("the cluster's service network is missing: give --service-cidr, or a --kubeconfig-file that may ask")
	}
	if !s.ManagementIP.IsValid() && (s.API == 2 || !s.Overlay()) {
		bad("the node's own address is missing: give --management-ip")
	}
	for _, p := range slices.Concat(s.Cluster, s.Services, s.Management, s.Spare) {
		switch {
		case p.Addr().Is6() && s.Overlay():
			bad("%s: Windows has no overlay for IPv6: leave it out", p)
		case p.Bits() == 0:
			bad("%s: to masquerade nothing at all cuts pods off from the world", p)
		}
	}
	return errors.Join(problems...)
}

// conf is the configuration of the flannel plugin, alone or in a list; the fields are in the order in which people
// write them.
type conf struct {
	CNIVersion   string          `json:"cniVersion,omitempty"`
	Name         string          `json:"name,omitempty"`
	Type         string          `json:"type"`
	Capabilities map[string]bool `json:"capabilities"`
	Delegate     delegate        `json:"delegate"`
}

type delegate struct {
	Type           string          `json:"type"`
	APIVersion     int             `json:"apiVersion,omitempty"`
	DNS            any             `json:"dns,omitempty"`
	LoopbackDSR    bool            `json:"loopbackDSR,omitempty"`
	MACPrefix      string          `json:"endpointMacPrefix,omitempty"`
	OptionalFlags  map[string]bool `json:"optionalFlags,omitempty"`
	Policies       []winPolicy     `json:"policies,omitempty"`       // of win-*
	AdditionalArgs []sdnPolicy     `json:"AdditionalArgs,omitempty"` // of sdn*
}

type (
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

	natV1   struct{ Type, ExceptionList any }
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
)

// cniVersion is one that all four plugins speak and that knows lists.
const cniVersion = "0.3.0"

// Make returns the configuration's text.
func Make(s Spec) ([]byte, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	d := delegate{Type: s.Plugin}
	capabilities := map[string]bool{"portMappings": true, "dns": true}
	if s.sdn() {
		capabilities = map[string]bool{"portMappings": true, "dnsCapabilities": true}
		d.OptionalFlags = map[string]bool{"loopbackDSR": s.LoopbackDSR}
		if slices.ContainsFunc(s.Cluster, func(p netip.Prefix) bool { return p.Addr().Is6() }) {
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
	case len(s.DNS)+len(s.Search) == 0: // kubelet's, by the capability
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

// policies are those of each pod's endpoint: what is reached without NAT, what goes through the encapsulation, and with
// an overlay by HCN from which of the node's addresses.
func (s Spec) policies() []any {
	spared := slices.Concat(s.Cluster, s.Services)
	routed := slices.Clone(s.Services)
	if !s.Overlay() {
		spared = append(spared, s.Management...)
		routed = append(routed, netip.PrefixFrom(s.ManagementIP, s.ManagementIP.BitLen()))
	}
	spared = append(spared, s.Spare...)
	var all []any
	if s.API == 1 {
		all = append(all, natV1{"OutBoundNAT", spared})
		for _, p := range routed {
			all = append(all, routeV1{"ROUTE", p, true})
		}
		return all
	}
	all = append(all, policyV2{"OutBoundNAT", natV2{spared}})
	for _, p := range routed {
		all = append(all, policyV2{"SDNRoute", routeV2{p, true}})
	}
	if s.Overlay() {
		all = append(all, policyV2{"ProviderAddress", providerV2{s.ManagementIP}})
	}
	return all
}

func text(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("write the CNI configuration: %w", err)
	}
	return b.Bytes(), nil
}
