package hnstest

import (
	"encoding/json"
	"net"
	"net/netip"
	"strings"

	"flannel/pkg/hns"
)

// Documents of the older API (v1), as far as they are in use: ours for a network's management address and for the
// host's endpoint, kube-proxy's for policy lists, hcsshim's tests for the rest.

type networkV1 struct {
	ID                 string `json:",omitempty"`
	Name, Type         string
	NetworkAdapterName string            `json:",omitempty"`
	Subnets            []subnetV1        `json:",omitempty"`
	Policies           []json.RawMessage `json:",omitempty"`
	ManagementIP       string            `json:",omitempty"`
	State              int
}

type subnetV1 struct {
	AddressPrefix, GatewayAddress string
	Policies                      []json.RawMessage `json:",omitempty"`
}

type endpointV1 struct {
	ID             string `json:",omitempty"`
	Name           string
	VirtualNetwork string
	IPAddress      string `json:",omitempty"`
	PrefixLength   int    `json:",omitempty"`
	MacAddress     string `json:",omitempty"`
	State          int
}

// version2 is a network's document in version 2, whichever it came in.
func version2(document []byte) ([]byte, hns.Code) {
	var d struct {
		networkV1
		SchemaVersion *struct{}
	}
	if json.Unmarshal(document, &d) != nil {
		return nil, hns.InvalidJSON
	}
	if d.SchemaVersion != nil || d.Subnets == nil {
		return document, 0
	}
	var subnets []any
	for _, s := range d.Subnets {
		var policies []any
		for _, p := range s.Policies {
			var v struct {
				Type string
				VSID uint32
			}
			if json.Unmarshal(p, &v) == nil && v.Type == "VSID" {
				policies = append(policies, policy("VSID", map[string]uint32{"IsolationId": v.VSID}))
			}
		}
		subnets = append(subnets, map[string]any{
			"IpAddressPrefix": s.AddressPrefix, "Policies": policies,
			"Routes": []any{map[string]string{"NextHop": s.GatewayAddress, "DestinationPrefix": "0.0.0.0/0"}},
		})
	}
	v2 := map[string]any{"Name": d.Name, "Type": d.Type, "Ipams": []any{map[string]any{"Type": "Static", "Subnets": subnets}}}
	if d.NetworkAdapterName != "" {
		v2["Policies"] = []any{policy("NetAdapterName", map[string]string{"NetworkAdapterName": d.NetworkAdapterName})}
	}
	return []byte(text(v2)), 0
}

func endpointVersion2(document []byte) ([]byte, hns.Code) {
	var d endpointV1
	if json.Unmarshal(document, &d) != nil {
		return nil, hns.InvalidJSON
	}
	if d.VirtualNetwork == "" {
		return document, 0
	}
	v2 := map[string]any{"Name": d.Name, "MacAddress": d.MacAddress}
	if d.IPAddress != "" {
		v2["IpConfigurations"] = []any{map[string]any{"IpAddress": d.IPAddress}}
	}
	return []byte(text(v2)), 0
}

func (m *Machine) networkV1(n *network) networkV1 {
	v := networkV1{ID: strings.ToUpper(n.id), Name: n.name, Type: n.kind, State: 1}
	v.NetworkAdapterName, _ = adapterName(n.policies)
	if ip := m.managementIP(n); ip.IsValid() {
		v.ManagementIP = ip.String()
	}
	for _, s := range n.subnets {
		v.Subnets = append(v.Subnets, subnetV1{AddressPrefix: s.prefix.String(), GatewayAddress: s.gateway.String()})
	}
	return v
}

func (t *thing) v1() endpointV1 {
	v := endpointV1{ID: t.id, Name: t.name(), VirtualNetwork: strings.ToUpper(t.network), State: t.state}
	t.read("MacAddress", &v.MacAddress)
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
		return record(code), 0
	}
	return text(map[string]any{"Success": true, "Output": out}), 0
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
		if m.thing(endpointKind, id) != nil {
			return map[string]any{"EndpointId": id}, 0
		}
		return nil, hns.EndpointNotFound
	}
	return nil, hns.NotImplemented
}

func (m *Machine) networkRequest(method, id string, body []byte) (any, hns.Code) {
	switch {
	case method == "POST" && id == "":
		id, code := m.createNetwork(newGUID(), body)
		if code != 0 {
			return nil, code
		}
		return m.networkV1(m.network(id)), 0
	case method == "GET" && id == "":
		all := []networkV1{}
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
		var d endpointV1
		if json.Unmarshal(body, &d) != nil {
			return nil, hns.InvalidJSON
		}
		id, code := m.createEndpoint(newGUID(), d.VirtualNetwork, body)
		if code != 0 {
			return nil, code
		}
		return m.thing(endpointKind, id).v1(), 0
	case method == "GET" && id == "":
		all := []endpointV1{}
		for _, t := range m.things[endpointKind] {
			all = append(all, t.v1())
		}
		return all, 0
	}
	t := m.thing(endpointKind, id)
	switch {
	case t == nil:
		return nil, hns.EndpointNotFound
	case method == "GET":
		return t.v1(), 0
	case method == "DELETE":
		m.removeThing(endpointKind, t)
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
	for _, t := range m.things[loadBalancerKind] {
		l := policyList{ID: t.id}
		for _, e := range t.endpoints() {
			l.References = append(l.References, "/endpoints/"+e)
		}
		all = append(all, l)
	}
	return all, 0
}

func (m *Machine) attachRequest(id, verb string) (any, hns.Code) {
	t := m.thing(endpointKind, id)
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

// parseMAC reads a document's MAC: a JSON string, in any usual form.
func parseMAC(raw json.RawMessage) (hns.MAC, error) {
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return hns.MAC{}, err
	}
	mac, err := net.ParseMAC(s)
	if err != nil || len(mac) != 6 {
		return hns.MAC{}, problem("read a MAC", hns.InvalidEndpoint)
	}
	return hns.MAC(mac), nil
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
