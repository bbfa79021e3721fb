package hnstest

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

	"flannel/pkg/hns"
	"flannel/pkg/hns/hnstest/api"
)

// thing is an HCN object that is no network. What its document says beyond what is read here is kept as it is.
type thing struct {
	api.Document
	id      string
	network string // of an endpoint
	ip      netip.Prefix
	more    []netip.Prefix    // its addresses of further subnets
	state   int               // of an endpoint, as v1 has it: 1 created, 2 attached, 4 detached
	adapter int               // index of the host's adapter that it became; 0: none
	way     *hns.RemoteSubnet // of a remote endpoint with a way of its own, as the body has it
}

func (m *Machine) thing(k api.Kind, id string) *thing {
	for _, t := range m.things[k] {
		if strings.EqualFold(t.id, id) {
			return t
		}
	}
	return nil
}

// createThing makes a namespace, a load balancer or an SDN route.
func (m *Machine) createThing(k api.Kind, id string, document []byte) (string, hns.Code) {
	t := &thing{id: id}
	if json.Unmarshal(document, &t.Document) != nil {
		return "", hns.InvalidJSON
	}
	for _, e := range t.Endpoints() {
		if m.thing(api.EndpointKind, e) == nil {
			return "", hns.EndpointNotFound
		}
	}
	t.Write("ID", id)
	m.things[k] = append(m.things[k], t)
	return id, 0
}

// modifyThing changes an endpoint's policies, a namespace's members, or replaces a load balancer.
func (m *Machine) modifyThing(k api.Kind, t *thing, request []byte) hns.Code {
	if k == api.LoadBalancerKind || k == api.SdnRouteKind {
		if json.Unmarshal(request, &t.Document) != nil {
			return hns.InvalidJSON
		}
		t.Write("ID", t.id)
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
	case k == api.EndpointKind && r.ResourceType == "Policy":
		return t.ModifyPolicies(r.RequestType, r.Settings)
	case k == api.NamespaceKind && r.ResourceType == "Endpoint":
		return m.modifyMembers(t, r.RequestType, r.Settings)
	}
	return hns.RequestUnsupported
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
	e := m.thing(api.EndpointKind, change.EndpointId)
	if e == nil {
		return hns.EndpointNotFound
	}
	t.Read("Resources", &have)
	have = slices.DeleteFunc(have, func(r member) bool { return r.Data.ID == e.id })
	delete(e.Document, "HostComputeNamespace")
	if request == "Add" {
		have = append(have, member{Type: "Endpoint", Data: struct{ ID string }{e.id}})
		e.Write("HostComputeNamespace", t.id)
	}
	t.Write("Resources", have)
	return 0
}

func (m *Machine) removeThing(k api.Kind, t *thing) {
	m.things[k] = slices.DeleteFunc(slices.Clone(m.things[k]), func(o *thing) bool { return o == t })
	if k != api.EndpointKind {
		return
	}
	m.detach(t)
	if n := m.network(t.network); n != nil {
		m.bring(n, t, false)
	}
}
