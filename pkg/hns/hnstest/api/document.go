package api

import (
	"encoding/json"
	"slices"

	"flannel/pkg/hns"
)

// Document is an object of HCN, of version 2, field by field.
type Document map[string]json.RawMessage

// Name is what the object is called.
func (d Document) Name() string {
	var name string
	d.Read("Name", &name)
	return name
}

// Read decodes a field of the document, if it has it.
func (d Document) Read(field string, v any) {
	if raw, ok := d[field]; ok {
		_ = json.Unmarshal(raw, v) // another type: as if it was not there
	}
}

// Write encodes a field.
func (d Document) Write(field string, v any) { d[field] = json.RawMessage(Text(v)) }

// Endpoints are those that a load balancer leads to.
func (d Document) Endpoints() (ids []string) {
	d.Read("HostComputeEndpoints", &ids)
	return ids
}

// ModifyPolicies does what a request asks for.
func (d Document) ModifyPolicies(request string, settings json.RawMessage) hns.Code {
	var change struct{ Policies []hns.Policy }
	var have []hns.Policy
	if json.Unmarshal(settings, &change) != nil {
		return hns.InvalidJSON
	}
	d.Read("Policies", &have)
	switch request {
	case "Add":
		have = append(have, change.Policies...)
	case "Update":
		have = change.Policies
	case "Remove":
		have = slices.DeleteFunc(have, func(p hns.Policy) bool {
			return slices.ContainsFunc(change.Policies, func(q hns.Policy) bool { return Same(p, q) })
		})
	default:
		return hns.RequestUnsupported
	}
	d.Write("Policies", have)
	return 0
}

// Flags are those of an endpoint.
func (d Document) Flags() (flags uint32) {
	d.Read("Flags", &flags)
	return flags
}

// Ports are the outer ones that an endpoint maps.
func (d Document) Ports() (ports []string) {
	var policies []hns.Policy
	d.Read("Policies", &policies)
	for _, p := range policies {
		var s struct{ Protocol, ExternalPort int }
		if p.Type == "PortMapping" && json.Unmarshal(p.Settings, &s) == nil {
			ports = append(ports, Text(s))
		}
	}
	return ports
}
