package hnstest

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

	"flannel/pkg/hns"
)

// thing is an HCN object that is no network. What its document says beyond what is read here is kept as it is.
type thing struct {
	id      string
	doc     map[string]json.RawMessage
	network string // of an endpoint
	ip      netip.Prefix
	more    []netip.Prefix    // its addresses of further subnets
	state   int               // of an endpoint, as v1 has it: 1 created, 2 attached, 4 detached
	adapter int               // index of the host's adapter that it became; 0: none
	way     *hns.RemoteSubnet // of a remote endpoint with a way of its own, as the body has it
}

func (t *thing) name() string {
	var name string
	t.read("Name", &name)
	return name
}

// read decodes a field of the document, if it has it.
func (t *thing) read(field string, v any) {
	if raw, ok := t.doc[field]; ok {
		_ = json.Unmarshal(raw, v) // another type: as if it was not there
	}
}

func (t *thing) write(field string, v any) { t.doc[field] = json.RawMessage(text(v)) }

func (m *Machine) thing(k kind, id string) *thing {
	for _, t := range m.things[k] {
		if strings.EqualFold(t.id, id) {
			return t
		}
	}
	return nil
}

// createThing makes a namespace, a load balancer or an SDN route.
func (m *Machine) createThing(k kind, id string, document []byte) (string, hns.Code) {
	t := &thing{id: id}
	if json.Unmarshal(document, &t.doc) != nil {
		return "", hns.InvalidJSON
	}
	for _, e := range t.endpoints() {
		if m.thing(endpointKind, e) == nil {
			return "", hns.EndpointNotFound
		}
	}
	t.write("ID", id)
	m.things[k] = append(m.things[k], t)
	return id, 0
}

// endpoints are those that a load balancer leads to.
func (t *thing) endpoints() (ids []string) {
	t.read("HostComputeEndpoints", &ids)
	return ids
}

// modifyThing changes an endpoint's policies, a namespace's members, or replaces a load balancer.
func (m *Machine) modifyThing(k kind, t *thing, request []byte) hns.Code {
	if k == loadBalancerKind || k == sdnRouteKind {
		if json.Unmarshal(request, &t.doc) != nil {
			return hns.InvalidJSON
		}
		t.write("ID", t.id)
		return 0
	}
	var r struct {
		ResourceType, RequestType string
		Settings                  json.RawMessage
	}
	if json.Unmarshal(request, &r) != nil {
		return hns.InvalidJSON
	}
	switch {
	case k == endpointKind && r.ResourceType == "Policy":
		return t.modifyPolicies(r.RequestType, r.Settings)
	case k == namespaceKind && r.ResourceType == "Endpoint":
		return m.modifyMembers(t, r.RequestType, r.Settings)
	}
	return hns.RequestUnsupported
}

func (t *thing) modifyPolicies(request string, settings json.RawMessage) hns.Code {
	var change struct{ Policies []hns.Policy }
	var have []hns.Policy
	if json.Unmarshal(settings, &change) != nil {
		return hns.InvalidJSON
	}
	t.read("Policies", &have)
	switch request {
	case "Add":
		have = append(have, change.Policies...)
	case "Update":
		have = change.Policies
	case "Remove":
		have = slices.DeleteFunc(have, func(p hns.Policy) bool {
			return slices.ContainsFunc(change.Policies, func(q hns.Policy) bool { return same(p, q) })
		})
	default:
		return hns.RequestUnsupported
	}
	t.write("Policies", have)
	return 0
}

// member is a resource of a namespace.
type member struct {
	Type string
	Data struct{ ID string }
}

func (m *Machine) modifyMembers(t *thing, request string, settings json.RawMessage) hns.Code {
	var change struct{ EndpointId string }
	var have []member
	if json.Unmarshal(settings, &change) != nil {
		return hns.InvalidJSON
	}
	e := m.thing(endpointKind, change.EndpointId)
	if e == nil {
		return hns.EndpointNotFound
	}
	t.read("Resources", &have)
	have = slices.DeleteFunc(have, func(r member) bool { return r.Data.ID == e.id })
	delete(e.doc, "HostComputeNamespace")
	if request == "Add" {
		have = append(have, member{Type: "Endpoint", Data: struct{ ID string }{e.id}})
		e.write("HostComputeNamespace", t.id)
	}
	t.write("Resources", have)
	return 0
}

func (m *Machine) removeThing(k kind, t *thing) {
	m.things[k] = slices.DeleteFunc(slices.Clone(m.things[k]), func(o *thing) bool { return o == t })
	if k != endpointKind {
		return
	}
	m.detach(t)
	if n := m.network(t.network); n != nil {
		m.bring(n, t, false)
	}
}
