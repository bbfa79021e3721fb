package api

import (
	"bytes"
	"encoding/json"
	"net/netip"

	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
)

// Policy returns a policy with the settings encoded as JSON.
func Policy(kind string, settings any) hns.Policy {
	return hns.Policy{Type: kind, Settings: json.RawMessage(Text(settings))}
}

// AdapterName returns the adapter that the policies name, if any.
func AdapterName(policies []hns.Policy) (name string, ok bool) {
	for _, p := range policies {
		if p.Type == "NetAdapterName" {
			var s struct{ NetworkAdapterName string }
			ok = json.Unmarshal(p.Settings, &s) == nil
			return s.NetworkAdapterName, ok
		}
	}
	return "", false
}

// ProviderAddress returns the address by which a network selects its adapter;
// invalid if it does not.
func ProviderAddress(policies []hns.Policy) netip.Addr {
	for _, p := range policies {
		var s struct{ ProviderAddress netip.Addr }
		if p.Type == "ProviderAddress" && json.Unmarshal(p.Settings, &s) == nil {
			return s.ProviderAddress
		}
	}
	return netip.Addr{}
}

// VXLANPort returns the UDP port of an overlay with these policies.
func VXLANPort(policies []hns.Policy) uint16 {
	for _, p := range policies {
		var s struct{ Port uint16 }
		if p.Type == "VxlanPort" && json.Unmarshal(p.Settings, &s) == nil && s.Port != 0 {
			return s.Port
		}
	}
	return 4789
}

// RemoteSubnet decodes and checks the settings of a RemoteSubnetRoute policy.
func RemoteSubnet(settings json.RawMessage) (hns.RemoteSubnet, hns.Code) {
	var s struct {
		DestinationPrefix, ProviderAddress, DistributedRouterMacAddress string
		IsolationId                                                     uint32
	}
	if json.Unmarshal(settings, &s) != nil {
		return hns.RemoteSubnet{}, hns.InvalidPolicy
	}
	prefix, err := netip.ParsePrefix(s.DestinationPrefix)
	provider, err2 := netip.ParseAddr(s.ProviderAddress)
	hw, err3 := dataplane.ParseMAC(s.DistributedRouterMacAddress)
	if err != nil || err2 != nil || err3 != nil || prefix.Masked() != prefix || !virtualSubnet(s.IsolationId) {
		return hns.RemoteSubnet{}, hns.InvalidPolicy
	}
	return hns.RemoteSubnet{Prefix: prefix, VSID: s.IsolationId, Provider: provider, MAC: hw}, 0
}

// AsHNSHasIt returns a policy in the form in which HNS returns it: the same
// values, in other letters and order.
func AsHNSHasIt(p hns.Policy) hns.Policy {
	if r, code := RemoteSubnet(p.Settings); p.Type == "RemoteSubnetRoute" && code == 0 {
		return Policy(p.Type, map[string]any{
			"IsolationId": r.VSID, "DistributedRouterMacAddress": MAC(r.MAC),
			"DestinationPrefix": r.Prefix.String(), "ProviderAddress": r.Provider.String(),
		})
	}
	if len(p.Settings) == 0 {
		p.Settings = json.RawMessage("{}")
	}
	return p
}

// Reader compares policies. It caches decoded settings of RemoteSubnetRoutes, by their text,
// because thousands of them are compared with each other. It must not be used by several
// goroutines at once.
type Reader map[string]hns.RemoteSubnet

// Clash reports whether a network cannot have both policies.
func (r Reader) Clash(p, q hns.Policy) bool {
	if p.Type != q.Type {
		return false
	}
	switch p.Type {
	case "RemoteSubnetRoute":
		a, b := r.remote(p), r.remote(q)
		return a.Prefix == b.Prefix && a.VSID == b.VSID
	case "HostRoute", "VxlanPort", "NetAdapterName": // a network has one of these at most
		return true
	}
	return r.Same(p, q)
}

// Same reports whether two policies have the same values. HNS removes only such
// a policy.
func (r Reader) Same(p, q hns.Policy) bool {
	if p.Type == "RemoteSubnetRoute" && q.Type == p.Type {
		return r.remote(p) == r.remote(q)
	}
	return Same(p, q)
}

// remote returns the settings of a RemoteSubnetRoute; the zero value if they are invalid.
func (r Reader) remote(p hns.Policy) hns.RemoteSubnet {
	s, known := r[string(p.Settings)]
	if !known {
		s, _ = RemoteSubnet(p.Settings)
		r[string(p.Settings)] = s
	}
	return s
}

// Same reports whether two policies of any object have the same values, whatever the order and
// layout of their JSON.
func Same(p, q hns.Policy) bool {
	return p.Type == q.Type && bytes.Equal(canonical(p.Settings), canonical(q.Settings))
}

// canonical returns a JSON document with sorted keys and without blanks; an invalid one as it is.
func canonical(document json.RawMessage) []byte {
	var v any
	if json.Unmarshal(document, &v) != nil {
		return document
	}
	return []byte(Text(v))
}
