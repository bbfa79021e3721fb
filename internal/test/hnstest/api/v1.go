package api

import (
	"encoding/json"
	"strings"

	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
)

// Documents of the older API (v1), as far as somebody uses them: flanneld for
// the management address and the host endpoint, kube-proxy for policy lists,
// the tests of hcsshim for the rest.

// NetworkV1 is a network.
type NetworkV1 struct {
	ID                 string `json:",omitempty"`
	Name, Type         string
	NetworkAdapterName string            `json:",omitempty"`
	Subnets            []SubnetV1        `json:",omitempty"`
	Policies           []json.RawMessage `json:",omitempty"`
	ManagementIP       string            `json:",omitempty"`
	State              int
}

// SubnetV1 is a subnet of a network.
type SubnetV1 struct {
	AddressPrefix, GatewayAddress string
	Policies                      []json.RawMessage `json:",omitempty"`
}

// EndpointV1 is an endpoint.
type EndpointV1 struct {
	ID             string `json:",omitempty"`
	Name           string
	VirtualNetwork string
	IPAddress      string `json:",omitempty"`
	PrefixLength   int    `json:",omitempty"`
	IPv6Address    string `json:",omitempty"`
	MacAddress     string `json:",omitempty"`
	State          int

	IPv6PrefixLength int      `json:",omitempty"`
	SharedContainers []string `json:",omitempty"`
}

// Version2 converts the document of a network to version 2, if it is of version 1: that has
// no SchemaVersion, and its subnets are not in Ipams.
func Version2(document []byte) ([]byte, hns.Code) {
	var d struct {
		NetworkV1
		SchemaVersion *struct{}
	}
	if json.Unmarshal(document, &d) != nil {
		return nil, hns.InvalidJSON
	}
	if d.SchemaVersion != nil || d.Subnets == nil {
		return document, 0
	}
	var subnets []any
	for _, s := range d.Subnets {
		var policies []any
		for _, p := range s.Policies {
			var v struct {
				Type string
				VSID uint32
			}
			if json.Unmarshal(p, &v) == nil && v.Type == "VSID" {
				policies = append(policies, Policy("VSID", map[string]uint32{"IsolationId": v.VSID}))
			}
		}
		subnets = append(subnets, map[string]any{
			"IpAddressPrefix": s.AddressPrefix, "Policies": policies,
			"Routes": []any{map[string]string{"NextHop": s.GatewayAddress, "DestinationPrefix": "0.0.0.0/0"}},
		})
	}
	v2 := map[string]any{"Name": d.Name, "Type": d.Type,
		"Ipams": []any{map[string]any{"Type": "Static", "Subnets": subnets}}}
	if d.NetworkAdapterName != "" {
		v2["Policies"] = []any{Policy("NetAdapterName", map[string]string{"NetworkAdapterName": d.NetworkAdapterName})}
	}
	return []byte(Text(v2)), 0
}

// EndpointVersion2 converts the document of an endpoint to version 2, if it is of version 1:
// that names its network, in VirtualNetwork.
func EndpointVersion2(document []byte) ([]byte, hns.Code) {
	var d EndpointV1
	if json.Unmarshal(document, &d) != nil {
		return nil, hns.InvalidJSON
	}
	if d.VirtualNetwork == "" {
		return document, 0
	}
	v2 := map[string]any{"Name": d.Name, "MacAddress": d.MacAddress}
	var configs []any
	for _, ip := range []string{d.IPAddress, d.IPv6Address} {
		if ip != "" {
			configs = append(configs, map[string]any{"IpAddress": ip})
		}
	}
	if len(configs) > 0 {
		v2["IpConfigurations"] = configs
	}
	return []byte(Text(v2)), 0
}

// MAC returns a MAC in the form that HNS uses: 00-15-5D-01-02-03.
func MAC(a dataplane.MAC) string { return strings.ToUpper(strings.ReplaceAll(a.String(), ":", "-")) }

// ParseMAC decodes a MAC from a JSON string, in any usual notation.
func ParseMAC(raw json.RawMessage) (dataplane.MAC, error) {
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return dataplane.MAC{}, err
	}
	hw, err := dataplane.ParseMAC(s)
	if err != nil {
		return dataplane.MAC{}, Problem("read a MAC", invalidEndpoint)
	}
	return hw, nil
}
