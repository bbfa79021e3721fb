package hnstest

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

	"flannel/internal/test/hnstest/api"
	"flannel/pkg/windows/hns"
)

// object is an HCN object that is not a network: an endpoint, namespace, load
// balancer or SDN route. Its Document is what HNS returns for a query, with the fields that
// the simulation does not know, too.
type object struct {
	api.Document
	id         string
	network    string            // ID of an endpoint's network
	ip         netip.Prefix      // of an endpoint; invalid: none
	more       []netip.Prefix    // further addresses of an endpoint
	byV1       bool              // an endpoint that was created by v1
	state      int               // of an endpoint: createdState and so on
	containers []string          // that use an endpoint, as v1 lists them
	adapter    int               // index of the host adapter of an attached endpoint; 0: none
	remote     *hns.RemoteSubnet // route to a remote endpoint that the body has; nil: none
}

// States of an endpoint, with the numbers of v1.
const (
	createdState  = 1
	attachedState = 2
	sharedState   = 3 // attached to the namespace of a pod
	detachedState = 4
)

// object returns the object with that ID, in any case of letters, or nil.
func (m *Machine) object(k api.Kind, id string) *object { return m.byID[k][strings.ToLower(id)] }

// addObject adds an object to both lists of its kind.
func (m *Machine) addObject(k api.Kind, t *object) {
	if m.byID[k] == nil {
		m.byID[k] = map[string]*object{}
	}
	m.byID[k][strings.ToLower(t.id)] = t
	m.objects[k] = append(m.objects[k], t)
}

// createObject creates a namespace, a load balancer or an SDN route.
func (m *Machine) createObject(k api.Kind, id string, document []byte) (string, hns.Code) {
	t := &object{id: id}
	if json.Unmarshal(document, &t.Document) != nil {
		return "", hns.InvalidJSON
	}
	for _, e := range t.Endpoints() {
		if m.object(api.EndpointKind, e) == nil {
			return "", hns.EndpointNotFound
		}
	}
	if k == api.LoadBalancerKind && m.portsExhausted() {
		return "", api.OutOfMemory
	}
	t.Write("ID", id)
	m.addObject(k, t)
	return id, 0
}

// modifyObject changes an endpoint's policies or a namespace's members, or
// replaces a load balancer or SDN route.
func (m *Machine) modifyObject(k api.Kind, t *object, request []byte) hns.Code {
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

// member is an entry of the field Resources of a namespace.
type member struct {
	Type string
	Data struct{ ID string }
}

// modifyMembers moves an endpoint into or out of a namespace.
func (m *Machine) modifyMembers(t *object, request string, settings json.RawMessage) hns.Code {
	var change struct{ EndpointId string }
	var members []member
	if json.Unmarshal(settings, &change) != nil {
		return hns.InvalidJSON
	}
	e := m.object(api.EndpointKind, change.EndpointId)
	if e == nil {
		return hns.EndpointNotFound
	}
	t.Read("Resources", &members)
	members = slices.DeleteFunc(members, func(r member) bool { return r.Data.ID == e.id })
	delete(e.Document, "HostComputeNamespace")
	e.state = detachedState
	if request == "Add" { // else Remove
		members = append(members, member{Type: "Endpoint", Data: struct{ ID string }{e.id}})
		e.state = sharedState
		if !m.knobs.OmitNamespace {
			e.Write("HostComputeNamespace", t.id)
		}
	}
	t.Write("Resources", members)
	return 0
}

// detachMembers takes the endpoints out of a namespace that is deleted.
func (m *Machine) detachMembers(t *object) {
	var members []member
	t.Read("Resources", &members)
	for _, r := range members {
		if e := m.object(api.EndpointKind, r.Data.ID); e != nil {
			delete(e.Document, "HostComputeNamespace")
			e.state = detachedState
		}
	}
}

// removeObject removes an object; an endpoint with its adapter on the host, and with what the
// body has for it.
func (m *Machine) removeObject(k api.Kind, t *object) {
	delete(m.byID[k], strings.ToLower(t.id))
	m.objects[k] = slices.DeleteFunc(slices.Clone(m.objects[k]), func(o *object) bool { return o == t })
	if k == api.NamespaceKind && m.knobs.ForgetNamespace {
		m.detachMembers(t)
	}
	if k != api.EndpointKind {
		return
	}
	m.detach(t)
	if n := m.anyNetwork(t.network); n != nil {
		m.applyEndpoint(n, t, false)
	}
}
