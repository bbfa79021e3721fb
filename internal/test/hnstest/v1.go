package hnstest

import (
	"encoding/json"
	"net/netip"
	"strings"

	"flannel/internal/test/hnstest/api"
	"flannel/pkg/windows/hns"
)

// The older API (v1), as far as somebody uses it: requests with a method and a path of HTTP,
// all by the function HNSCall. It shares networks and endpoints with HCN.

// networkV1 returns the document of a network in the older API.
func (m *Machine) networkV1(n *network) api.NetworkV1 {
	v := api.NetworkV1{ID: strings.ToUpper(n.id), Name: n.Name, Type: n.Type, State: 1}
	v.NetworkAdapterName, _ = api.AdapterName(n.Policies)
	if ip := m.managementIP(n); ip.IsValid() {
		v.ManagementIP = ip.String()
	}
	for _, s := range n.Subnets {
		v.Subnets = append(v.Subnets, api.SubnetV1{AddressPrefix: s.Prefix.String(),
			GatewayAddress: s.Gateway.String()})
	}
	return v
}

// v1 returns the document of an endpoint in the older API.
func (t *object) v1() api.EndpointV1 {
	v := api.EndpointV1{ID: t.id, Name: t.Name(), VirtualNetwork: strings.ToUpper(t.network), State: t.state, SharedContainers: t.containers}
	t.Read("MacAddress", &v.MacAddress)
	if t.ip.IsValid() {
		v.IPAddress, v.PrefixLength = t.ip.Addr().String(), t.ip.Bits()
	}
	return v
}

// v1 answers HNSCall. The call always succeeds, and its document contains the
// result of the request.
func (m *Machine) v1(method, path, body string) (string, hns.Code) {
	out, code := m.request(method, strings.Split(strings.Trim(path, "/"), "/"), []byte(body))
	if code != 0 {
		return api.Record(code), 0
	}
	return api.Text(map[string]any{"Success": true, "Output": out}), 0
}

// request answers a request by the parts of its path: collection, ID, verb. The functions
// below return the output, or a code.
func (m *Machine) request(method string, path []string, body []byte) (any, hns.Code) {
	id := ""
	if len(path) > 1 {
		id = path[1]
	}
	switch path[0] {
	case "globals":
		return m.knobs.version(), 0
	case "networks":
		return m.networkRequest(method, id, body)
	case "endpoints":
		if len(path) > 2 {
			return m.attachRequest(id, path[2])
		}
		return m.endpointRequest(method, id, body)
	case "policylists":
		return m.policyListRequest(method, id)
	case "endpointstats":
		if m.object(api.EndpointKind, id) != nil {
			return map[string]any{"EndpointId": id}, 0
		}
		return nil, hns.EndpointNotFound
	}
	return nil, hns.NotImplemented
}

func (m *Machine) networkRequest(method, id string, body []byte) (any, hns.Code) {
	switch {
	case method == "POST" && id == "":
		id, code := m.createNetwork(api.NewGUID(), body)
		if code != 0 {
			return nil, code
		}
		return m.networkV1(m.network(id)), 0
	case method == "GET" && id == "":
		networks := []api.NetworkV1{}
		for _, n := range m.networks {
			if !n.ghost || m.knobs.GhostNetwork {
				networks = append(networks, m.networkV1(n))
			}
		}
		return networks, 0
	}
	n := m.olderNetwork(id)
	switch {
	case n == nil:
		return nil, hns.NetworkNotFound
	case method == "GET":
		return m.networkV1(n), 0
	case method == "DELETE":
		v := m.networkV1(n)
		m.removeNetwork(n)
		return v, 0
	}
	return nil, hns.NotImplemented
}

func (m *Machine) endpointRequest(method, id string, body []byte) (any, hns.Code) {
	switch {
	case method == "POST" && id == "":
		var d api.EndpointV1
		if json.Unmarshal(body, &d) != nil {
			return nil, hns.InvalidJSON
		}
		id, code := m.createEndpoint(api.NewGUID(), d.VirtualNetwork, body)
		if code != 0 {
			return nil, code
		}
		made := m.object(api.EndpointKind, id)
		made.byV1 = true
		return made.v1(), 0
	case method == "GET" && id == "":
		endpoints := []api.EndpointV1{}
		for _, t := range m.objects[api.EndpointKind] {
			endpoints = append(endpoints, t.v1())
		}
		return endpoints, 0
	}
	t := m.object(api.EndpointKind, id)
	switch {
	case t == nil:
		return nil, hns.EndpointNotFound
	case method == "GET":
		return t.v1(), 0
	case method == "DELETE":
		m.removeObject(api.EndpointKind, t)
		return t.v1(), 0
	}
	return nil, hns.NotImplemented
}

// policyListRequest answers requests for policy lists, the name of load
// balancers in the older API, with the endpoints behind them.
func (m *Machine) policyListRequest(method, id string) (any, hns.Code) {
	if method != "GET" || id != "" {
		return nil, hns.NotImplemented
	}
	type policyList struct {
		ID         string
		References []string
	}
	lists := []policyList{}
	for _, t := range m.objects[api.LoadBalancerKind] {
		l := policyList{ID: t.id}
		for _, e := range t.Endpoints() {
			l.References = append(l.References, "/endpoints/"+e)
		}
		lists = append(lists, l)
	}
	return lists, 0
}

// attachRequest attaches an endpoint to the host, or detaches it.
func (m *Machine) attachRequest(id, verb string) (any, hns.Code) {
	t := m.object(api.EndpointKind, id)
	if t == nil {
		return nil, hns.EndpointNotFound
	}
	switch verb {
	case "attach":
		if code := m.knobs.V2EndpointNotAttachable; code != 0 && !t.byV1 {
			return nil, code
		}
		return struct{}{}, m.attach(t)
	case "detach":
		m.detach(t)
		return struct{}{}, 0
	}
	return nil, hns.NotImplemented
}

// addressOf returns the IPv4 address of a physical adapter, or of the virtual
// adapter on it; invalid if there is none. Pending addresses count, link-local
// ones do not.
func (m *Machine) addressOf(index int) netip.Addr {
	for _, a := range m.adapters {
		if a.Index != index && a.physical != index {
			continue
		}
		for _, ip := range append(a.Addrs, a.pending.addrs...) {
			if ip.Prefix.Addr().Is4() && !ip.Prefix.Addr().IsLinkLocalUnicast() {
				return ip.Prefix.Addr()
			}
		}
	}
	return netip.Addr{}
}
