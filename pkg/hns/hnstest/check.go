package hnstest

import (
	"bytes"
	"encoding/json"
	"net"
	"net/netip"
	"slices"
	"strings"

	"flannel/pkg/hns"
)

// checkNetwork reads a network's document and refuses what HNS refuses before it touches a switch.
func checkNetwork(document []byte) (*network, networkDocument, hns.Code) {
	var d networkDocument
	n := &network{doc: map[string]json.RawMessage{}}
	if json.Unmarshal(document, &d) != nil || json.Unmarshal(document, &n.doc) != nil {
		return nil, d, hns.InvalidJSON
	}
	n.name, n.kind, n.fleeting = d.Name, d.Type, d.Flags&nonPersistent != 0
	if !slices.Contains([]string{"NAT", "ICS", "Private", "Internal"}, d.Type) && !external(d.Type) {
		return nil, d, hns.InvalidNetworkType
	}
	if d.SchemaVersion.Major > 2 {
		return nil, d, invalidArg
	}
	for _, i := range d.Ipams {
		for _, s := range i.Subnets {
			sub, code := checkSubnet(s, d.Type == hns.Overlay)
			if code != 0 {
				return nil, d, code
			}
			n.subnets = append(n.subnets, sub)
		}
	}
	if d.Type == hns.Overlay && len(n.subnets) == 0 {
		return nil, d, invalidArg
	}
	return n, d, 0
}

func checkSubnet(d subnetDocument, overlay bool) (subnet, hns.Code) {
	s := subnet{}
	var err error
	if s.prefix, err = netip.ParsePrefix(d.IpAddressPrefix); err != nil || s.prefix.Masked() != s.prefix {
		return s, invalidArg
	}
	for _, r := range d.Routes {
		if s.gateway, err = netip.ParseAddr(r.NextHop); err != nil || !s.prefix.Contains(s.gateway) {
			return s, hns.InvalidIP
		}
		if _, err := netip.ParsePrefix(r.DestinationPrefix); err != nil {
			return s, invalidArg
		}
	}
	for _, p := range d.Policies {
		switch p.Type {
		case "VSID":
			var v struct{ IsolationId uint32 }
			if json.Unmarshal(p.Settings, &v) != nil {
				return s, hns.InvalidPolicy
			}
			s.vsid = v.IsolationId
		case "VLAN":
		default:
			return s, hns.InvalidPolicyType
		}
	}
	if overlay && !virtualSubnet(s.vsid) {
		return s, invalidArg
	}
	return s, 0
}

// virtualSubnet tells whether Windows takes the number for a virtual subnet.
func virtualSubnet(id uint32) bool { return id >= 4096 && id < 1<<24-1 }

// networkPolicies are the types that a network may have.
var networkPolicies = []string{
	"NetAdapterName", "HostRoute", "VxlanPort", "SourceMacAddress", "VSwitchExtension", "AutomaticDNS", "InterfaceConstraint",
	"LayerConstraint", "ProviderAddress", "DrMacAddress", "SetPolicy", "L4Proxy", "NetworkACL", "RemoteSubnetRoute", "InterfaceParameters",
}

func checkPolicy(network string, v hns.Version, p hns.Policy) hns.Code {
	if !slices.Contains(networkPolicies, p.Type) {
		return hns.InvalidPolicyType
	}
	switch p.Type {
	case "RemoteSubnetRoute":
		if network != hns.Overlay || v.Major < 9 || v.Major == 9 && v.Minor < 2 {
			return hns.InvalidPolicyType
		}
		_, code := remoteSubnet(p.Settings)
		return code
	case "HostRoute":
		if v.Major < 9 || v.Major == 9 && v.Minor < 2 {
			return hns.InvalidPolicyType
		}
	case "VxlanPort":
		if v.Major < 10 || v.Major == 10 && v.Minor < 3 {
			return hns.InvalidPolicyType
		}
	}
	return 0
}

// remoteSubnet reads the settings of a RemoteSubnetRoute policy.
func remoteSubnet(settings json.RawMessage) (hns.RemoteSubnet, hns.Code) {
	var s struct {
		DestinationPrefix, ProviderAddress, DistributedRouterMacAddress string
		IsolationId                                                     uint32
	}
	if json.Unmarshal(settings, &s) != nil {
		return hns.RemoteSubnet{}, hns.InvalidPolicy
	}
	prefix, err := netip.ParsePrefix(s.DestinationPrefix)
	provider, err2 := netip.ParseAddr(s.ProviderAddress)
	mac, err3 := net.ParseMAC(s.DistributedRouterMacAddress)
	if err != nil || err2 != nil || err3 != nil || len(mac) != 6 || prefix.Masked() != prefix || !virtualSubnet(s.IsolationId) {
		return hns.RemoteSubnet{}, hns.InvalidPolicy
	}
	return hns.RemoteSubnet{Prefix: prefix, VSID: s.IsolationId, Provider: provider, MAC: hns.MAC(mac)}, 0
}

// asHNSHasIt is a policy as HNS returns it: the values of one that was given, in HNS's own writing.
func asHNSHasIt(p hns.Policy) hns.Policy {
	if r, code := remoteSubnet(p.Settings); p.Type == "RemoteSubnetRoute" && code == 0 {
		return policy(p.Type, map[string]any{
			"IsolationId": r.VSID, "DistributedRouterMacAddress": strings.ToUpper(r.MAC.String()),
			"DestinationPrefix": r.Prefix.String(), "ProviderAddress": r.Provider.String(),
		})
	}
	if len(p.Settings) == 0 {
		p.Settings = json.RawMessage("{}")
	}
	return p
}

// clashes tells whether two policies cannot both be on a network.
func (n *network) clashes(p, q hns.Policy) bool {
	if p.Type != q.Type {
		return false
	}
	switch p.Type {
	case "RemoteSubnetRoute":
		a, b := n.remote(p), n.remote(q)
		return a.Prefix == b.Prefix && a.VSID == b.VSID
	case "HostRoute", "VxlanPort", "NetAdapterName":
		return true
	}
	return n.same(p, q)
}

// same tells whether two policies say the same; HNS removes nothing less.
func (n *network) same(p, q hns.Policy) bool {
	if p.Type == "RemoteSubnetRoute" && q.Type == p.Type {
		return n.remote(p) == n.remote(q)
	}
	return same(p, q)
}

// remote remembers what it read: thousands of policies are compared with each other.
func (n *network) remote(p hns.Policy) hns.RemoteSubnet {
	r, known := n.read[string(p.Settings)]
	if !known {
		r, _ = remoteSubnet(p.Settings)
		if n.read == nil {
			n.read = map[string]hns.RemoteSubnet{}
		}
		n.read[string(p.Settings)] = r
	}
	return r
}

func same(p, q hns.Policy) bool {
	return p.Type == q.Type && bytes.Equal(canonical(p.Settings), canonical(q.Settings))
}

func canonical(document json.RawMessage) []byte {
	var v any
	if json.Unmarshal(document, &v) != nil {
		return document
	}
	return []byte(text(v))
}
