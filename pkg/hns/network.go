package hns

import (
	"encoding/json"
	"fmt"
	"net/netip"

	"flannel/pkg/mac"
)

// nonPersistent is the flag of networks that HNS deletes when it restarts.
const nonPersistent = 8

// Types of policies.
const (
	typeAdapter      = "NetAdapterName"
	typeProvider     = "ProviderAddress"
	typeDRMAC        = "DrMacAddress"
	typeHostRoute    = "HostRoute"
	typeVSID         = "VSID"
	typeVxlanPort    = "VxlanPort"
	typeRemoteSubnet = "RemoteSubnetRoute"
)

// networkDocument is HostComputeNetwork of the HCN schema. Decoding ignores unknown fields, so that a newer HNS causes no
// error. Nothing is lost thereby, because we never write a whole network back, only single policies.
type networkDocument struct {
	ID            string   `json:",omitempty"`
	Name          string   `json:",omitempty"`
	Type          string   `json:",omitempty"`
	Policies      []Policy `json:",omitempty"`
	MacPool       macPool  `json:",omitzero"`
	DNS           dns      `json:"Dns,omitzero"`
	Ipams         []ipam   `json:",omitempty"`
	Flags         uint32   `json:",omitempty"`
	SchemaVersion Version
}

type macPool struct {
	Ranges []macRange `json:",omitempty"`
}

func (p macPool) IsZero() bool { return len(p.Ranges) == 0 }

type macRange struct{ StartMacAddress, EndMacAddress string }

type dns struct {
	ServerList []string `json:",omitempty"`
}

func (d dns) IsZero() bool { return len(d.ServerList) == 0 }

type ipam struct {
	Type    string           `json:",omitempty"`
	Subnets []subnetDocument `json:",omitempty"`
}

type subnetDocument struct {
	IPAddressPrefix string          `json:"IpAddressPrefix,omitempty"`
	Policies        []Policy        `json:",omitempty"`
	Routes          []routeDocument `json:",omitempty"`
}

type routeDocument struct {
	NextHop           string `json:",omitempty"`
	DestinationPrefix string `json:",omitempty"`
}

// isolation are the settings of policy VSID.
type isolation struct {
	IsolationID uint32 `json:"IsolationId"`
}

// schema returns the schema version of all documents that we write. Documents of the older API have none.
func schema() Version { return Version{Major: 2} }

// EncodeNetwork encodes the document to create a network.
func EncodeNetwork(n Network) (json.RawMessage, error) {
	d := networkDocument{Name: n.Name, Type: n.Type, DNS: dns{n.DNS}, SchemaVersion: schema()}
	if n.NonPersistent {
		d.Flags |= nonPersistent
	}
	if n.MACs != ([2]mac.Addr{}) {
		d.MacPool.Ranges = []macRange{{dashed(n.MACs[0]), dashed(n.MACs[1])}}
	}
	if n.Adapter != "" {
		d.Policies = append(d.Policies, policy(typeAdapter, struct{ NetworkAdapterName string }{n.Adapter}))
	}
	if n.VxlanPort != 0 {
		d.Policies = append(d.Policies, policy(typeVxlanPort, struct{ Port uint16 }{n.VxlanPort}))
	}
	all := ipam{Type: "Static"}
	for _, s := range n.Subnets {
		if s.VSID > maxVSID {
			return nil, fmt.Errorf("VSID %d of %s is above %d", s.VSID, s.Prefix, maxVSID)
		}
		sd := subnetDocument{IPAddressPrefix: s.Prefix.Masked().String()}
		if s.VSID != 0 {
			sd.Policies = append(sd.Policies, policy(typeVSID, isolation{s.VSID}))
		}
		if s.Gateway.IsValid() {
			sd.Routes = append(sd.Routes, defaultRoute(s.Gateway))
		}
		all.Subnets = append(all.Subnets, sd)
	}
	d.Ipams = []ipam{all}
	return encode(d), nil
}

func defaultRoute(gateway netip.Addr) routeDocument {
	zero := netip.IPv4Unspecified()
	if gateway.Is6() {
		zero = netip.IPv6Unspecified()
	}
	return routeDocument{NextHop: gateway.String(), DestinationPrefix: netip.PrefixFrom(zero, 0).String()}
}

// DecodeNetwork decodes a document from HNS. It ignores properties that Network does not have, but keeps all policies.
func DecodeNetwork(document json.RawMessage) (Network, error) {
	var d networkDocument
	if err := json.Unmarshal(document, &d); err != nil {
		return Network{}, fmt.Errorf("read the network's document: %w", err)
	}
	n := Network{ID: d.ID, Name: d.Name, Type: d.Type, DNS: d.DNS.ServerList, NonPersistent: d.Flags&nonPersistent != 0,
		Policies: d.Policies}
	for _, i := range d.Ipams {
		for _, sd := range i.Subnets {
			s, err := decodeSubnet(sd)
			if err != nil {
				return Network{}, err
			}
			n.Subnets = append(n.Subnets, s)
		}
	}
	// HNS may have split the range that it was asked for. The first range begins at the requested address.
	if len(d.MacPool.Ranges) > 0 && d.MacPool.Ranges[0] != (macRange{}) {
		for i, text := range []string{d.MacPool.Ranges[0].StartMacAddress, d.MacPool.Ranges[0].EndMacAddress} {
			mac, err := mac.Parse(text)
			if err != nil {
				return Network{}, fmt.Errorf("MAC pool: %w", err)
			}
			n.MACs[i] = mac
		}
	}
	for _, p := range n.Policies {
		if err := n.applyPolicy(p); err != nil {
			return Network{}, fmt.Errorf("policy %s: %w", p.Type, err)
		}
	}
	return n, nil
}

// applyPolicy sets the field of n that a policy is about, if any.
func (n *Network) applyPolicy(p Policy) (err error) {
	// The settings of all four types; their field names do not collide.
	var s struct {
		NetworkAdapterName, ProviderAddress, Address string
		Port                                         uint16
	}
	switch p.Type {
	case typeHostRoute:
		n.HostRoute = true
		return nil
	case typeAdapter, typeProvider, typeDRMAC, typeVxlanPort:
		if err := json.Unmarshal(p.Settings, &s); err != nil {
			return err
		}
	}
	switch p.Type {
	case typeAdapter:
		n.Adapter = s.NetworkAdapterName
	case typeVxlanPort:
		n.VxlanPort = s.Port
	case typeProvider:
		// Empty while HNS has not assigned the management address.
		if s.ProviderAddress != "" {
			n.ManagementIP, err = netip.ParseAddr(s.ProviderAddress)
		}
	case typeDRMAC:
		if s.Address != "" {
			n.DRMAC, err = mac.Parse(s.Address)
		}
	}
	return err
}

func decodeSubnet(d subnetDocument) (s Subnet, err error) {
	if s.Prefix, err = netip.ParsePrefix(d.IPAddressPrefix); err != nil {
		return s, fmt.Errorf("subnet: %w", err)
	}
	// The gateway is that of the first default route. Networks of other programs may have other routes, too.
	for _, r := range d.Routes {
		to, err := netip.ParsePrefix(r.DestinationPrefix)
		if err != nil || to.Bits() != 0 || s.Gateway.IsValid() {
			continue
		}
		if s.Gateway, err = netip.ParseAddr(r.NextHop); err != nil {
			return s, fmt.Errorf("gateway of subnet %s: %w", s.Prefix, err)
		}
	}
	// Networks of other programs may have policies for VLANs instead.
	for _, p := range d.Policies {
		var i isolation
		if p.Type != typeVSID {
			continue
		}
		if err := json.Unmarshal(p.Settings, &i); err != nil {
			return s, fmt.Errorf("VSID of subnet %s: %w", s.Prefix, err)
		}
		s.VSID = i.IsolationID
	}
	return s, nil
}

// idOf decodes only the ID of a network, "" if that fails.
func idOf(document json.RawMessage) string {
	var d struct{ ID string }
	if json.Unmarshal(document, &d) != nil {
		return ""
	}
	return d.ID
}

// nameOf decodes only the name of a network, "" if that fails.
func nameOf(document json.RawMessage) string {
	var d struct{ Name string }
	if json.Unmarshal(document, &d) != nil {
		return ""
	}
	return d.Name
}
