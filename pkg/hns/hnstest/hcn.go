package hnstest

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"flannel/pkg/hns"
)

// kind is a kind of HCN objects, as the names of the calls have it.
type kind string

const (
	networkKind      kind = "Network"
	endpointKind     kind = "Endpoint"
	namespaceKind    kind = "Namespace"
	loadBalancerKind kind = "LoadBalancer"
	sdnRouteKind     kind = "SdnRoute"
	callbackKind     kind = "Callback" // handles only
)

type handle struct {
	kind kind
	id   string // of the object; for a callback whose it is
}

// split takes the name of a call apart: HcnQueryNetworkProperties is Query and Network.
func split(function string) (verb string, k kind) {
	rest := strings.TrimSuffix(strings.TrimPrefix(function, "Hcn"), "Properties")
	for _, verb := range []string{"Enumerate", "Create", "Open", "Modify", "Query", "Delete", "Close"} {
		if k, ok := strings.CutPrefix(rest, verb); ok {
			return verb, kind(strings.TrimSuffix(k, "s"))
		}
	}
	return rest, ""
}

// hcn makes one call of computenetwork.dll or vmcompute.dll, its arguments as text: GUIDs, handles as decimal numbers,
// documents. It returns the document or the handle that the call returns.
func (m *Machine) hcn(function string, args ...string) (string, hns.Code) {
	verb, k := split(function)
	changes := verb == "Create" || verb == "Modify" || verb == "Delete"
	if function == "HNSCall" && len(args) == 3 {
		changes = args[0] != "GET" // the older API's verbs are those of HTTP
	}
	return m.enter(function, args, changes, func() (string, hns.Code) {
		if len(args) < arity(function) {
			return "", invalidArg
		}
		switch {
		case function == "HNSCall":
			return m.v1(args[0], args[1], args[2])
		case !known(k):
			return m.register(function, args)
		}
		return m.perform(verb, k, args)
	})
}

func known(k kind) bool {
	return slices.Contains([]kind{networkKind, endpointKind, namespaceKind, loadBalancerKind, sdnRouteKind}, k)
}

// arity is how many arguments a call has.
func arity(function string) int {
	verb, _ := split(function)
	switch {
	case function == "HcnCreateEndpoint" || function == "HNSCall":
		return 3
	case verb == "Create" || verb == "Modify" || verb == "Query":
		return 2
	}
	return 1
}

func (m *Machine) perform(verb string, k kind, args []string) (string, hns.Code) {
	switch verb {
	case "Enumerate":
		return m.enumerate(k, args[0])
	case "Create":
		id, code := m.create(k, args)
		if code != 0 {
			return "", code
		}
		return m.open(k, id), 0
	case "Open":
		id := strings.ToLower(args[0])
		if code := m.look(k, id); code != 0 {
			return "", code
		}
		return m.open(k, id), 0
	case "Delete":
		return "", m.delete(k, strings.ToLower(args[0]))
	}
	id, code := m.held(k, args[0])
	if code != 0 {
		return "", code
	}
	// Closing works, and must be done, when the object has gone.
	if verb == "Close" {
		m.forget(args[0])
		return "", 0
	}
	if code := m.look(k, id); code != 0 {
		return "", code
	}
	if verb == "Modify" {
		return "", m.modify(k, id, args[1])
	}
	return text(m.view(k, id)), 0
}

// open returns a new handle.
func (m *Machine) open(k kind, id string) string {
	n := m.nextID()
	m.handles[n] = handle{k, id}
	return strconv.FormatUint(n, 10)
}

// held is the object that a handle stands for.
func (m *Machine) held(k kind, number string) (string, hns.Code) {
	n, err := strconv.ParseUint(number, 10, 64)
	if h, ok := m.handles[n]; err == nil && ok && h.kind == k {
		return h.id, 0
	}
	return "", invalidHandle
}

// forget closes a handle.
func (m *Machine) forget(number string) {
	n, _ := strconv.ParseUint(number, 10, 64) // one that is held is a number
	delete(m.handles, n)
}

// look tells whether an object is there.
func (m *Machine) look(k kind, id string) hns.Code {
	switch {
	case k == networkKind && m.network(id) == nil:
		return hns.NetworkNotFound
	case k == networkKind || m.thing(k, id) != nil:
		return 0
	case k == endpointKind:
		return hns.EndpointNotFound
	}
	return hns.ElementNotFound
}

// enumerate lists the IDs of the objects that a query asks for.
func (m *Machine) enumerate(k kind, query string) (string, hns.Code) {
	var q struct{ Filter string }
	var filter struct{ ID, Name, VirtualNetwork *string }
	if query != "" && json.Unmarshal([]byte(query), &q) != nil {
		return "", hns.InvalidJSON
	}
	if q.Filter != "" && json.Unmarshal([]byte(q.Filter), &filter) != nil {
		return "", hns.InvalidJSON
	}
	ids := []string{}
	add := func(id, name, network string) {
		if (filter.ID == nil || strings.EqualFold(*filter.ID, id)) && (filter.Name == nil || *filter.Name == name) &&
			(filter.VirtualNetwork == nil || strings.EqualFold(*filter.VirtualNetwork, network)) {
			ids = append(ids, id)
		}
	}
	if k == networkKind {
		for _, n := range m.networks {
			add(n.id, n.name, "")
		}
	}
	for _, t := range m.things[k] {
		add(t.id, t.name(), t.network)
	}
	return text(ids), 0
}

// create makes an object from the arguments of its call and returns its ID: that of the call, else that of the
// document, else a new one.
func (m *Machine) create(k kind, args []string) (string, hns.Code) {
	document := []byte(args[len(args)-1])
	var d struct{ ID string }
	if json.Unmarshal(document, &d) != nil {
		return "", hns.InvalidJSON
	}
	id := strings.ToLower(args[len(args)-2])
	if id == noID {
		id = cmp.Or(strings.ToLower(d.ID), newGUID())
	}
	switch k {
	case networkKind:
		return m.createNetwork(id, document)
	case endpointKind:
		network, code := m.held(networkKind, args[0])
		if code != 0 {
			return "", code
		}
		return m.createEndpoint(id, network, document)
	}
	return m.createThing(k, id, document)
}

func (m *Machine) delete(k kind, id string) hns.Code {
	if code := m.look(k, id); code != 0 {
		return code
	}
	if k == networkKind {
		m.removeNetwork(m.network(id))
		return 0
	}
	m.removeThing(k, m.thing(k, id))
	return 0
}

func (m *Machine) modify(k kind, id, request string) hns.Code {
	if k == networkKind {
		return m.modifyNetwork(m.network(id), []byte(request))
	}
	return m.modifyThing(k, m.thing(k, id), []byte(request))
}

// view is an object as a query returns it.
func (m *Machine) view(k kind, id string) any {
	if k == networkKind {
		return m.viewNetwork(m.network(id))
	}
	return m.thing(k, id).doc
}
