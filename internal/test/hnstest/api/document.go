package api

import (
	"encoding/json"
	"slices"

	"flannel/pkg/windows/hns"
)

// Document is an HCN object of version 2, by field.
type Document map[string]json.RawMessage

// Name returns the name of the object; empty if it has none.
func (d Document) Name() string {
	var name string
	d.Read("Name", &name)
	return name
}

// Read decodes a field into v. It leaves v alone if there is no such field.
func (d Document) Read(field string, v any) {
	if raw, ok := d[field]; ok {
		_ = json.Unmarshal(raw, v) // a value of another type is ignored
	}
}

// Write encodes a field.
func (d Document) Write(field string, v any) { d[field] = json.RawMessage(Text(v)) }

// Endpoints returns the IDs of the endpoints of a load balancer.
func (d Document) Endpoints() (ids []string) {
	d.Read("HostComputeEndpoints", &ids)
	return ids
}

// ModifyPolicies adds, updates or removes policies of an endpoint, as the
// request says.
func (d Document) ModifyPolicies(request string, settings json.RawMessage) hns.Code {
	var change struct{ Policies []hns.Policy }
	var policies []hns.Policy
	if json.Unmarshal(settings, &change) != nil {
		return hns.InvalidJSON
	}
	d.Read("Policies", &policies)
	switch request {
	case "Add":
		policies = append(policies, change.Policies...)
	case "Update":
		policies = change.Policies
	case "Remove":
		policies = slices.DeleteFunc(policies, func(p hns.Policy) bool {
			return slices.ContainsFunc(change.Policies, func(q hns.Policy) bool { return Same(p, q) })
		})
	default:
		return hns.RequestUnsupported
	}
	d.Write("Policies", policies)
	return 0
}

// Flags returns the flags of an endpoint.
func (d Document) Flags() (flags uint32) {
	d.Read("Flags", &flags)
	return flags
}

// Ports returns protocol and external port of each port mapping of an endpoint,
// as comparable text.
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
