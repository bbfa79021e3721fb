package hnstest

import (
	"encoding/json"
	"net/netip"
	"strings"

	"flannel/internal/test/hnstest/api"
)

// readBack changes the document of a network as the knobs say.
func (m *Machine) readBack(doc api.Document) {
	var ipams []map[string]any
	doc.Read("Ipams", &ipams)
	for _, ipam := range ipams {
		list, _ := ipam["Subnets"].([]any)
		for _, s := range list {
			if subnet, ok := s.(map[string]any); ok {
				m.readBackSubnet(subnet)
			}
		}
		if m.knobs.OmitSubnets {
			delete(ipam, "Subnets")
		}
	}
	if len(ipams) > 0 {
		doc.Write("Ipams", ipams)
	}
	if !m.knobs.OtherCase {
		return
	}
	for _, field := range []string{"Type", "Policies"} {
		doc[field] = json.RawMessage(lowerTypes(field, doc[field]))
	}
}

func (m *Machine) readBackSubnet(subnet map[string]any) {
	text, _ := subnet["IpAddressPrefix"].(string)
	p, err := netip.ParsePrefix(text)
	if err == nil && m.knobs.HostBits {
		subnet["IpAddressPrefix"] = netip.PrefixFrom(p.Masked().Addr().Next(), p.Bits()).String()
	}
	if m.knobs.OmitVSID {
		delete(subnet, "Policies")
	}
	if m.knobs.OmitGateway {
		delete(subnet, "Routes")
	}
	if err == nil && m.knobs.OtherGateway && p.Addr().Is4() && p.Bits() == 24 {
		last := p.Addr().As4()
		last[3] = 254
		subnet["Routes"] = []any{map[string]any{"NextHop": netip.AddrFrom4(last).String(), "DestinationPrefix": "0.0.0.0/0"}}
	}
}

// lowerTypes returns a field of a network's document with types in lower case.
func lowerTypes(field string, raw json.RawMessage) string {
	if field == "Type" {
		return strings.ToLower(string(raw))
	}
	var policies []map[string]any
	if json.Unmarshal(raw, &policies) != nil {
		return string(raw)
	}
	for _, p := range policies {
		if kind, ok := p["Type"].(string); ok {
			p["Type"] = strings.ToLower(kind)
		}
	}
	return api.Text(policies)
}
