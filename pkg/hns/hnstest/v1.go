package hnstest

import (
	"encoding/json"
	"net/netip"
	"strings"

	"flannel/pkg/hns"
	"flannel/pkg/hns/hnstest/api"
)

// What the older API (v1) answers, as far as it is in use.

func (m *Machine) networkV1(n *network) api.NetworkV1 {
	v := api.NetworkV1{ID: strings.ToUpper(n.id), Name: n.Name, Type: n.Type, State: 1}
	v.NetworkAdapterName, _ = api.AdapterName(n.Policies)
	if ip := m.managementIP(n); ip.IsValid() {
		v.ManagementIP = ip.String()
	}
	for _, s := range n.Subnets {
		v.Subnets = append(v.Subnets, api.SubnetV1{AddressPrefix: s.Prefix.String(), GatewayAddress: s.Gateway.String()})
	}
	return v
}

func (t *thing) v1() api.EndpointV1 {
	v := api.EndpointV1{ID: t.id, Name: t.Name(), VirtualNetwork: strings.ToUpper(t.network), State: t.state}
	t.Read("MacAddress", &v.MacAddress)
	if t.ip.IsValid() {
		v.IPAddress, v.PrefixLength = t.ip.Addr().String(), t.ip.Bits()
	}
	return v
}

// v1 answers HNSCall: the call succeeds, and its document says whether the request did.
func (m *Machine) v1(method, path, body string) (string, hns.Code) {
	// Hence no code of ours reaches the caller but in the document.
	out, code := m.request(method, strings.Split(strings.Trim(path, "/"), "/"), []byte(body))
	if code != 0 {
		return api.Record(code), 0
	}
	return api.Text(map[string]any{"Success": true, "Output": out}), 0
}

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
		if m.thing(api.EndpointKind, id) != nil {
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
		all := []api.NetworkV1{}
		for _, n := range m.networks {
			all = append(all, m.networkV1(n))
		}
		return all, 0
	}
	n := m.network(id)
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
		return m.thing(api.EndpointKind, id).v1(), 0
	case method == "GET" && id == "":
		all := []api.EndpointV1{}
		for _, t := range m.things[api.EndpointKind] {
			all = append(all, t.v1())
		}
		return all, 0
	}
	t := m.thing(api.EndpointKind, id)
	switch {
	case t == nil:
		return nil, hns.EndpointNotFound
	case method == "GET":
		return t.v1(), 0
	case method == "DELETE":
		m.removeThing(api.EndpointKind, t)
		return t.v1(), 0
	}
	return nil, hns.NotImplemented
}

// policyListRequest knows what the older API calls load balancers by: policy lists, with the endpoints that they lead to.
func (m *Machine) policyListRequest(method, id string) (any, hns.Code) {
	if method != "GET" || id != "" {
		return nil, hns.NotImplemented
	}
	type policyList struct {
		ID         string
		References []string
	}
	all := []policyList{}
	for _, t := range m.things[api.LoadBalancerKind] {
		l := policyList{ID: t.id}
		for _, e := range t.Endpoints() {
			l.References = append(l.References, "/endpoints/"+e)
		}
		all = append(all, l)
	}
	return all, 0
}

func (m *Machine) attachRequest(id, verb string) (any, hns.Code) {
	t := m.thing(api.EndpointKind, id)
	if t == nil {
		return nil, hns.EndpointNotFound
	}
	switch verb {
	case "attach":
		return struct{}{}, m.attach(t)
	case "detach":
		m.detach(t)
		return struct{}{}, 0
	}
	return nil, hns.NotImplemented
}

// addressOf is the IPv4 address of a physical adapter, on it or, with a switch bound, on its virtual one: the zero Addr
// without.
func (m *Machine) addressOf(index int) netip.Addr {
	for _, a := range m.adapters {
		if a.Index != index && a.physical != index {
			continue
		}
		for _, ip := range append(a.Addrs, a.away.addrs...) {
			if ip.Prefix.Addr().Is4() && !ip.Prefix.Addr().IsLinkLocalUnicast() {
				return ip.Prefix.Addr()
			}
		}
	}
	return netip.Addr{}
}
