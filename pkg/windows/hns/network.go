package hns

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"flannel/pkg/dataplane"
)

// nonPersistent is the flag of networks that HNS deletes when it restarts (EnableNonPersistent in the HCN schema).
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
// error. Nothing is lost, because we never write a whole network back, only single policies.
type networkDocument struct {
	ID       string   `json:",omitempty"`
	Name     string   `json:",omitempty"`
	Type     string   `json:",omitempty"`
	Policies []Policy `json:",omitempty"`
	MacPool  struct {
		Ranges []macRange `json:",omitempty"`
	} `json:",omitzero"`
	DNS struct {
		ServerList []string `json:",omitempty"`
	} `json:"Dns,omitzero"`
	Ipams         []ipam `json:",omitempty"`
	Flags         uint32 `json:",omitempty"`
	SchemaVersion Version
}

// The parts of a networkDocument. An ipam has the subnets; a subnet's policy VSID has the number of its VXLAN network,
// and its default route the gateway.
type macRange struct{ StartMacAddress, EndMacAddress dashedMAC }

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

// The settings of policies. The pointers may lead to a field of Network, so that decoding sets it; a field that is null
// or missing leaves it unchanged.
type (
	adapterName     struct{ NetworkAdapterName *string }
	providerAddress struct{ ProviderAddress *netip.Addr }
	drMAC           struct{ Address *dashedMAC }
	vxlanPort       struct{ Port *uint16 }
	isolation       struct {
		IsolationID *uint32 `json:"IsolationId"`
	}
)

// schema returns the schema version of all documents that we write. Documents of the older API have none.
func schema() Version { return Version{Major: 2} }

// EncodeNetwork encodes the document to create a network.
func EncodeNetwork(n Network) (json.RawMessage, error) {
	d := networkDocument{Name: n.Name, Type: n.Type, SchemaVersion: schema()}
	d.DNS.ServerList = n.DNS
	if n.NonPersistent {
		d.Flags |= nonPersistent
	}
	if n.MACs != ([2]dataplane.MAC{}) {
		d.MacPool.Ranges = []macRange{{dashedMAC(n.MACs[0]), dashedMAC(n.MACs[1])}}
	}
	if n.Adapter != "" {
		d.Policies = append(d.Policies, policy(typeAdapter, adapterName{&n.Adapter}))
	}
	if n.HostIP.IsValid() {
		d.Policies = append(d.Policies, policy(typeProvider, providerAddress{&n.HostIP}))
	}
	if n.VxlanPort != 0 {
		d.Policies = append(d.Policies, policy(typeVxlanPort, vxlanPort{&n.VxlanPort}))
	}
	all := ipam{Type: "Static"}
	for _, s := range n.Subnets {
		if s.VSID > maxVSID {
			return nil, fmt.Errorf("VSID %d of %s is above %d", s.VSID, s.Prefix, maxVSID)
		}
		sd := subnetDocument{IPAddressPrefix: s.Prefix.Masked().String()}
		if s.VSID != 0 {
			sd.Policies = append(sd.Policies, policy(typeVSID, isolation{&s.VSID}))
		}
		if s.Gateway.IsValid() {
			sd.Routes = append(sd.Routes, defaultRoute(s.Gateway))
		}
		all.Subnets = append(all.Subnets, sd)
	}
	d.Ipams = []ipam{all}
	return encode(d), nil
}

// defaultRoute returns the route to all addresses of the gateway's family.
func defaultRoute(gateway netip.Addr) routeDocument {
	return routeDocument{NextHop: gateway.String(), DestinationPrefix: netip.PrefixFrom(gateway, 0).Masked().String()}
}

// DecodeNetwork decodes a document from HNS. It ignores properties that Network does not have, but keeps all policies.
// Client.Networks lists a network with an error as Unread, so that it does not hide the others.
func DecodeNetwork(document json.RawMessage) (Network, error) {
	d := networkDocument{Type: "NAT"} // HNS leaves out the type of such a network
	if err := json.Unmarshal(document, &d); err != nil {
		return Network{}, fmt.Errorf("read the network's document: %w", err)
	}
	n := Network{ID: d.ID, Name: d.Name, Type: canonical(d.Type, Overlay, L2Bridge), DNS: d.DNS.ServerList, NonPersistent: d.Flags&nonPersistent != 0,
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
	if len(d.MacPool.Ranges) > 0 {
		n.MACs = [2]dataplane.MAC{dataplane.MAC(d.MacPool.Ranges[0].StartMacAddress), dataplane.MAC(d.MacPool.Ranges[0].EndMacAddress)}
	}
	for _, p := range n.Policies {
		if err := n.applyPolicy(p); err != nil {
			return Network{}, fmt.Errorf("policy %s: %w", p.Type, err)
		}
	}
	return n, nil
}

// canonical returns the one of the known names that HNS means by name, which HNS may write in another case. A name that
// is not known stays as it is.
func canonical(name string, known ...string) string {
	for _, k := range known {
		if strings.EqualFold(name, k) {
			return k
		}
	}
	return name
}

// applyPolicy sets the field of n that a policy is about, if any. HNS may leave an address empty that it has not assigned
// yet.
func (n *Network) applyPolicy(p Policy) error {
	switch canonical(p.Type, typeHostRoute, typeAdapter, typeVxlanPort, typeProvider, typeDRMAC) {
	case typeHostRoute:
		n.HostRoute = true
	case typeAdapter: // the structs point to the fields of n, which Unmarshal sets
		return json.Unmarshal(p.Settings, &adapterName{&n.Adapter})
	case typeVxlanPort:
		return json.Unmarshal(p.Settings, &vxlanPort{&n.VxlanPort})
	case typeProvider:
		return json.Unmarshal(p.Settings, &providerAddress{&n.ManagementIP})
	case typeDRMAC:
		return json.Unmarshal(p.Settings, &drMAC{(*dashedMAC)(&n.DRMAC)})
	}
	return nil
}

// decodeSubnet decodes a part of a network's document.
func decodeSubnet(d subnetDocument) (s Subnet, err error) {
	if s.Prefix, err = netip.ParsePrefix(d.IPAddressPrefix); err != nil {
		return s, fmt.Errorf("subnet: %w", err)
	}
	s.Prefix = s.Prefix.Masked()
	// The gateway is that of the first default route. Networks of other programs may have other routes, too.
	for _, r := range d.Routes {
		to, err := netip.ParsePrefix(r.DestinationPrefix)
		if err != nil || to.Bits() != 0 || s.Gateway.IsValid() {
			continue
		}
		if r.NextHop == "" {
			continue // HNS may leave it out
		}
		if s.Gateway, err = netip.ParseAddr(r.NextHop); err != nil {
			return s, fmt.Errorf("gateway of subnet %s: %w", s.Prefix, err)
		}
	}
	// Networks of other programs may have policies for VLANs instead.
	for _, p := range d.Policies {
		if !strings.EqualFold(p.Type, typeVSID) {
			continue
		}
		if err := json.Unmarshal(p.Settings, &isolation{&s.VSID}); err != nil {
			return s, fmt.Errorf("VSID of subnet %s: %w", s.Prefix, err)
		}
	}
	return s, nil
}

// identify decodes only the ID and the name of a network or an endpoint; "" for what cannot be decoded.
func identify(document json.RawMessage) (id, name string) {
	var d struct{ ID, Name string }
	_ = json.Unmarshal(document, &d)
	return d.ID, d.Name
}
