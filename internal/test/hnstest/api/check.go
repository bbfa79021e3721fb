package api

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

	"flannel/pkg/windows/hns"
)

// CheckNetwork decodes the document of a network, of version 2. It refuses, with a code
// other than 0, what HNS refuses before it touches a switch.
func CheckNetwork(document []byte) (Network, hns.Code) {
	var d networkDocument
	n := Network{Document: Document{}}
	// Once into the fields that are checked, and once whole, to be read back.
	if json.Unmarshal(document, &d) != nil || json.Unmarshal(document, &n.Document) != nil {
		return n, hns.InvalidJSON
	}
	n.Name, n.Type, n.Policies, n.NonPersistent = d.Name, d.Type, d.Policies, d.Flags&nonPersistent != 0
	if !slices.Contains([]string{"NAT", "ICS", "Private", "Internal"}, d.Type) && !External(d.Type) {
		return n, hns.InvalidNetworkType
	}
	if d.SchemaVersion.Major > 2 {
		return n, InvalidArg
	}
	for _, i := range d.Ipams {
		for _, s := range i.Subnets {
			sub, code := checkSubnet(s, d.Type == hns.Overlay)
			if code != 0 {
				return n, code
			}
			n.Subnets = append(n.Subnets, sub)
		}
	}
	if d.Type == hns.Overlay && len(n.Subnets) == 0 {
		return n, InvalidArg
	}
	return n, 0
}

// checkSubnet decodes and checks a subnet. That of an overlay must have a virtual subnet ID.
func checkSubnet(d subnetDocument, overlay bool) (Subnet, hns.Code) {
	s := Subnet{}
	var err error
	if s.Prefix, err = netip.ParsePrefix(d.IpAddressPrefix); err != nil || s.Prefix.Masked() != s.Prefix {
		return s, InvalidArg
	}
	for _, r := range d.Routes {
		if s.Gateway, err = netip.ParseAddr(r.NextHop); err != nil || !s.Prefix.Contains(s.Gateway) {
			return s, invalidIP
		}
		if _, err := netip.ParsePrefix(r.DestinationPrefix); err != nil {
			return s, InvalidArg
		}
	}
	for _, p := range d.Policies {
		switch p.Type {
		case "VSID":
			var v struct{ IsolationId uint32 }
			if json.Unmarshal(p.Settings, &v) != nil {
				return s, hns.InvalidPolicy
			}
			s.VSID = v.IsolationId
		case "VLAN": // accepted, and without effect
		default:
			return s, hns.InvalidPolicyType
		}
	}
	if overlay && !virtualSubnet(s.VSID) {
		return s, InvalidArg
	}
	return s, 0
}

// virtualSubnet reports whether Windows accepts the number as a virtual subnet ID, which is
// HNS' name of a VNI.
func virtualSubnet(id uint32) bool { return id >= 4096 && id < 1<<24-1 }

// networkPolicies are the types of policies that a network can have.
var networkPolicies = []string{
	"NetAdapterName", "HostRoute", "VxlanPort", "SourceMacAddress", "VSwitchExtension", "AutomaticDNS",
	"InterfaceConstraint",
	"LayerConstraint", "ProviderAddress", "DrMacAddress", "SetPolicy", "L4Proxy", "NetworkACL", "RemoteSubnetRoute",
	"InterfaceParameters",
}

// PolicyType returns the type of a network policy in the case of the schema.
func PolicyType(kind string) string {
	if at := slices.IndexFunc(networkPolicies, func(t string) bool { return strings.EqualFold(t, kind) }); at >= 0 {
		return networkPolicies[at]
	}
	return kind
}

// CheckPolicy returns a code if networks of a type do not support the policy in a version of
// HNS; 0: they do.
func CheckPolicy(network string, v hns.Version, p hns.Policy) hns.Code {
	if !slices.Contains(networkPolicies, p.Type) {
		return hns.InvalidPolicyType
	}
	switch p.Type {
	case "RemoteSubnetRoute":
		if network != hns.Overlay || v.Major < 9 || v.Major == 9 && v.Minor < 2 {
			return hns.InvalidPolicyType
		}
		_, code := RemoteSubnet(p.Settings)
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
