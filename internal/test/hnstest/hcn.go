package hnstest

import (
	"cmp"
	"encoding/json"
	"strings"

	"flannel/internal/test/hnstest/api"
	"flannel/pkg/windows/hns"
)

// This file has the calls of HCN on objects of any kind, for Program.perform. Networks are a
// type of their own (network.go), all other kinds are in Machine.objects.

// lookUp returns 0 if the object exists, else the code for a missing one.
func (m *Machine) lookUp(k api.Kind, id string) hns.Code {
	switch {
	case k == api.NetworkKind && m.network(id) == nil:
		return hns.NetworkNotFound
	case k == api.NetworkKind || m.object(k, id) != nil:
		return 0
	case k == api.EndpointKind:
		return hns.EndpointNotFound
	}
	return hns.ElementNotFound
}

// enumerate returns the IDs of the objects that match a query, as a JSON list.
func (m *Machine) enumerate(k api.Kind, query string) (string, hns.Code) {
	var q struct{ Filter string }                         // JSON in a string
	var filter struct{ ID, Name, VirtualNetwork *string } // conditions; nil: none
	if query != "" && json.Unmarshal([]byte(query), &q) != nil {
		return "", hns.InvalidJSON
	}
	if q.Filter != "" && json.Unmarshal([]byte(q.Filter), &filter) != nil {
		return "", hns.InvalidJSON
	}
	if k == api.EndpointKind {
		if m.knobs.OnlyNames || m.knobs.NoConditions {
			filter.ID, filter.VirtualNetwork = nil, nil
		}
		if m.knobs.NoConditions {
			filter.Name = nil
		}
	}
	ids := []string{}
	add := func(id, name, network string) {
		if (filter.ID == nil || strings.EqualFold(*filter.ID, id)) && (filter.Name == nil || *filter.Name == name) &&
			(filter.VirtualNetwork == nil || strings.EqualFold(*filter.VirtualNetwork, network)) {
			ids = append(ids, id)
		}
	}
	if k == api.NetworkKind {
		for _, n := range m.networks {
			if !n.ghost { // only the older API lists a ghost
				add(n.id, n.Name, "")
			}
		}
	}
	for _, t := range m.objects[k] {
		add(t.id, t.Name(), t.network)
	}
	return api.Text(ids), 0
}

// create creates an object from the arguments of its call ([network handle,] ID, document),
// and returns its ID: the one in the call, or else in the document, or else a new one.
func (m *Machine) create(k api.Kind, args []string) (string, hns.Code) {
	document := []byte(args[len(args)-1])
	var d struct{ ID string }
	if json.Unmarshal(document, &d) != nil {
		return "", hns.InvalidJSON
	}
	id := strings.ToLower(args[len(args)-2])
	if id == api.NoID {
		id = cmp.Or(strings.ToLower(d.ID), api.NewGUID())
	}
	switch k {
	case api.NetworkKind:
		return m.createNetwork(id, document)
	case api.EndpointKind:
		network, code := m.resolveHandle(api.NetworkKind, args[0])
		if code != 0 {
			return "", code
		}
		return m.createEndpoint(id, network, document)
	}
	return m.createObject(k, id, document)
}

// delete deletes an object.
func (m *Machine) delete(k api.Kind, id string) hns.Code {
	if code := m.lookUp(k, id); code != 0 {
		return code
	}
	if k == api.NetworkKind {
		m.removeNetwork(m.network(id))
		return 0
	}
	m.removeObject(k, m.object(k, id))
	return 0
}

// modify changes an object, which exists, as the request says.
func (m *Machine) modify(k api.Kind, id, request string) hns.Code {
	if k == api.NetworkKind {
		return m.modifyNetwork(m.network(id), []byte(request))
	}
	return m.modifyObject(k, m.object(k, id), []byte(request))
}

// properties returns the document of an object, which exists, as a query of its properties does.
func (m *Machine) properties(k api.Kind, id string) any {
	if k == api.NetworkKind {
		return m.networkProperties(m.network(id))
	}
	return m.object(k, id).Document
}
