package hns

import (
	"encoding/json"
	"fmt"
	"net/netip"

	"flannel/pkg/mac"
)

// HostEndpoint returns the name of the host's own endpoint on an L2Bridge.
func HostEndpoint(network string) string { return network + "_ep" }

// remoteEndpoint is the flag of an endpoint that is on another host.
const remoteEndpoint = 1

// endpointDocument is HostComputeEndpoint of the HCN schema.
type endpointDocument struct {
	ID                 string          `json:",omitempty"`
	Name               string          `json:",omitempty"`
	HostComputeNetwork string          `json:",omitempty"`
	Policies           []Policy        `json:",omitempty"`
	IPConfigurations   []ipConfig      `json:"IpConfigurations,omitempty"`
	Routes             []routeDocument `json:",omitempty"`
	MacAddress         string          `json:",omitempty"`
	Flags              uint32          `json:",omitempty"`
	SchemaVersion      Version
}

type ipConfig struct {
	IPAddress    string `json:"IpAddress"`
	PrefixLength int    `json:",omitempty"`
}

// EncodeEndpoint encodes the document to create an endpoint. Its gateways become default routes, one for each family.
func EncodeEndpoint(e Endpoint) json.RawMessage {
	d := endpointDocument{Name: e.Name, HostComputeNetwork: e.Network, SchemaVersion: schema()}
	for _, p := range e.IPs {
		d.IPConfigurations = append(d.IPConfigurations, ipConfig{p.Addr().String(), p.Bits()})
	}
	for _, g := range e.Gateways {
		d.Routes = append(d.Routes, defaultRoute(g))
	}
	if e.MAC != (mac.Addr{}) {
		d.MacAddress = dashed(e.MAC)
	}
	if e.Remote {
		d.Flags |= remoteEndpoint
	}
	if e.Provider.IsValid() {
		d.Policies = append(d.Policies, policy(typeProvider, struct{ ProviderAddress string }{e.Provider.String()}))
	}
	return encode(d)
}

// DecodeEndpoint decodes a document from HNS. Properties that only endpoints of other programs have are ignored.
func DecodeEndpoint(document json.RawMessage) (Endpoint, error) {
	var d endpointDocument
	if err := json.Unmarshal(document, &d); err != nil {
		return Endpoint{}, fmt.Errorf("read the endpoint's document: %w", err)
	}
	e := Endpoint{ID: d.ID, Name: d.Name, Network: d.HostComputeNetwork, Remote: d.Flags&remoteEndpoint != 0}
	for _, c := range d.IPConfigurations {
		if c.IPAddress == "" { // not assigned yet
			continue
		}
		ip, err := netip.ParseAddr(c.IPAddress)
		if err != nil {
			return Endpoint{}, fmt.Errorf("endpoint %s: %w", d.Name, err)
		}
		bits := c.PrefixLength
		if bits == 0 { // a single address
			bits = ip.BitLen()
		}
		p := netip.PrefixFrom(ip, bits)
		if !p.IsValid() {
			return Endpoint{}, fmt.Errorf("endpoint %s: %s cannot have a prefix length of %d", d.Name, ip, bits)
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
	var err error
	if d.MacAddress != "" {
		if e.MAC, err = mac.Parse(d.MacAddress); err != nil {
			return Endpoint{}, fmt.Errorf("endpoint %s: %w", d.Name, err)
		}
	}
	for _, p := range d.Policies {
		var s struct{ ProviderAddress string }
		if p.Type != typeProvider || json.Unmarshal(p.Settings, &s) != nil || s.ProviderAddress == "" {
			continue
		}
		if e.Provider, err = netip.ParseAddr(s.ProviderAddress); err != nil {
			return Endpoint{}, fmt.Errorf("endpoint %s: %w", d.Name, err)
		}
	}
	return e, nil
}
