package hns

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"flannel/pkg/dataplane"
)

// HostEndpoint returns the name of the host's own endpoint on an L2Bridge.
func HostEndpoint(network string) string { return network + "_ep" }

// SourceVIPEndpoint is the name of the endpoint with the address from which kube-proxy sends on an overlay. Package node
// creates it.
const SourceVIPEndpoint = "source-vip"

// remoteEndpoint is the flag of an endpoint that is on another host (RemoteEndpoint in the HCN schema).
const remoteEndpoint = 1

// endpointDocument is HostComputeEndpoint of the HCN schema.
type endpointDocument struct {
	ID                   string          `json:",omitempty"`
	Name                 string          `json:",omitempty"`
	HostComputeNetwork   string          `json:",omitempty"`
	HostComputeNamespace string          `json:",omitempty"`
	Policies             []Policy        `json:",omitempty"`
	IPConfigurations     []ipConfig      `json:"IpConfigurations,omitempty"`
	Routes               []routeDocument `json:",omitempty"`
	MacAddress           dashedMAC       `json:",omitzero"`
	Flags                uint32          `json:",omitempty"`
	SchemaVersion        Version
}

// ipConfig is an address of an endpoint, with the length of its subnet's prefix.
type ipConfig struct {
	IPAddress    netip.Addr `json:"IpAddress"`
	PrefixLength int        `json:",omitempty"`
}

// EncodeEndpoint encodes the document to create an endpoint. Its gateways become default routes, one for each family.
func EncodeEndpoint(e Endpoint) json.RawMessage {
	d := endpointDocument{Name: e.Name, HostComputeNetwork: e.Network, MacAddress: dashedMAC(e.MAC),
		SchemaVersion: schema()}
	for _, p := range e.IPs {
		d.IPConfigurations = append(d.IPConfigurations, ipConfig{p.Addr(), p.Bits()})
	}
	for _, g := range e.Gateways {
		d.Routes = append(d.Routes, defaultRoute(g))
	}
	if e.Remote {
		d.Flags |= remoteEndpoint
	}
	if e.Provider.IsValid() {
		d.Policies = append(d.Policies, policy(typeProvider, providerAddress{&e.Provider}))
	}
	d.Policies = append(d.Policies, e.Policies...)
	return encode(d)
}

// DecodeEndpoint decodes a document from HNS. Properties that only endpoints of other programs have are ignored.
func DecodeEndpoint(document json.RawMessage) (Endpoint, error) {
	var d endpointDocument
	if err := json.Unmarshal(document, &d); err != nil {
		return Endpoint{}, fmt.Errorf("read the endpoint's document: %w", err)
	}
	e := Endpoint{ID: d.ID, Name: d.Name, Network: d.HostComputeNetwork, Namespace: d.HostComputeNamespace, MAC: dataplane.MAC(d.MacAddress),
		Remote: d.Flags&remoteEndpoint != 0}
	if e.Namespace == noNamespace {
		e.Namespace = ""
	}
	for _, c := range d.IPConfigurations {
		if !c.IPAddress.IsValid() { // not assigned yet
			continue
		}
		// Without a length, it is a single address.
		p := netip.PrefixFrom(c.IPAddress, cmp.Or(c.PrefixLength, c.IPAddress.BitLen()))
		if !p.IsValid() {
			return Endpoint{}, fmt.Errorf("endpoint %s: %s cannot have the prefix length %d", d.Name, c.IPAddress, c.PrefixLength)
		}
		e.IPs = append(e.IPs, p)
	}
	// Ignore routes that cannot be parsed: endpoints of pods may have routes of other kinds.
	for _, r := range d.Routes {
		to, err := netip.ParsePrefix(r.DestinationPrefix)
		if err != nil || to.Bits() != 0 {
			continue
		}
		if gateway, err := netip.ParseAddr(r.NextHop); err == nil {
			e.Gateways = append(e.Gateways, gateway)
		}
	}
	for _, p := range d.Policies {
		if strings.EqualFold(p.Type, typeProvider) {
			// If there is no address, Provider stays zero, so that the endpoint is not as wanted.
			_ = json.Unmarshal(p.Settings, &providerAddress{&e.Provider})
		}
	}
	return e, nil
}
