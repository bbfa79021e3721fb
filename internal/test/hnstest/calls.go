package hnstest

import (
	"encoding/json"
	"errors"
	"net/netip"

	"flannel/internal/test/hnstest/api"
	"flannel/pkg/windows/hns"
)

// The methods of hns.Calls make the same calls of HNS, one by one, as their
// implementation on Windows: each call may meet a Fault and is in the log. They do not hold
// the machine's lock; Program.HNS takes it for each call. Their errors are *hns.Error.

// anyQuery is a query without conditions.
const anyQuery = `{"SchemaVersion":{"Major":2,"Minor":0}}`

// ask makes a call of HNS on behalf of m.self.
func (m *Machine) ask(function string, args ...string) (string, error) {
	answer, code := m.self.HNS(function, args...)
	return answer, api.Problem(function, code)
}

// Version asks HNS for its version.
func (m *Machine) Version() (v hns.Version, err error) {
	err = m.callV1("GET", "/globals/version", "", &v)
	return v, err
}

// callV1 makes a request of the older API (HTTP in the form of a call), and decodes its
// output into out.
func (m *Machine) callV1(method, path, body string, out any) error {
	answer, err := m.ask("HNSCall", method, path, body)
	if err != nil {
		return err
	}
	var r struct {
		Success   bool
		ErrorCode hns.Code
		Output    json.RawMessage
	}
	if err := json.Unmarshal([]byte(answer), &r); err != nil {
		return err
	}
	if !r.Success {
		return api.Problem("HNSCall "+method+" "+path, r.ErrorCode)
	}
	return json.Unmarshal(r.Output, out)
}

// Networks returns all networks.
func (m *Machine) Networks() (all []json.RawMessage, err error) {
	answer, err := m.ask("HcnEnumerateNetworks", anyQuery)
	if err != nil {
		return nil, err
	}
	var ids []string
	if err := json.Unmarshal([]byte(answer), &ids); err != nil {
		return nil, err
	}
	for _, id := range ids {
		document, err := m.Network(id)
		if err != nil {
			return nil, err
		}
		all = append(all, document)
	}
	return all, nil
}

// NetworksV1 returns the networks that v1 lists.
func (m *Machine) NetworksV1() (all []hns.Network, err error) {
	var networks []api.NetworkV1
	if err := m.callV1("GET", "/networks/", "", &networks); err != nil {
		return nil, err
	}
	for _, v := range networks {
		all = append(all, hns.Network{ID: v.ID, Name: v.Name, Type: v.Type})
	}
	return all, nil
}

// DeleteNetworkV1 deletes a network by v1.
func (m *Machine) DeleteNetworkV1(id string) error {
	return m.callV1("DELETE", "/networks/"+id, "", &api.NetworkV1{})
}

// query returns the document of an object: it opens, queries and closes it.
func (m *Machine) query(k api.Kind, id string) (json.RawMessage, error) {
	h, err := m.ask("HcnOpen"+string(k), id)
	if err != nil {
		return nil, err
	}
	return m.queryClose(k, h)
}

// queryClose returns the document of the object behind a handle, and closes the
// handle.
func (m *Machine) queryClose(k api.Kind, h string) (json.RawMessage, error) {
	defer m.ask("HcnClose"+string(k), h) // an error of Close does not matter; so below
	document, err := m.ask("HcnQuery"+string(k)+"Properties", h, anyQuery)
	if err != nil {
		return nil, err
	}
	return json.RawMessage(document), nil
}

// Network returns one network.
func (m *Machine) Network(id string) (json.RawMessage, error) { return m.query(api.NetworkKind, id) }

// CreateNetwork creates a network and returns its document.
func (m *Machine) CreateNetwork(document json.RawMessage) (json.RawMessage, error) {
	h, err := m.ask("HcnCreateNetwork", api.NoID, string(document))
	if err != nil {
		return nil, err
	}
	return m.queryClose(api.NetworkKind, h)
}

// DeleteNetwork deletes a network and its endpoints.
func (m *Machine) DeleteNetwork(id string) error {
	_, err := m.ask("HcnDeleteNetwork", id)
	return err
}

// ModifyNetwork changes a network's policies.
func (m *Machine) ModifyNetwork(id string, request json.RawMessage) error {
	h, err := m.ask("HcnOpenNetwork", id)
	if err != nil {
		return err
	}
	defer m.ask("HcnCloseNetwork", h)
	_, err = m.ask("HcnModifyNetwork", h, string(request))
	return err
}

// ManagementIP returns the host's address on a network, as v1 reports it;
// invalid if HNS does not know it yet.
func (m *Machine) ManagementIP(network string) (netip.Addr, error) {
	var v api.NetworkV1
	if err := m.callV1("GET", "/networks/"+network, "", &v); err != nil || v.ManagementIP == "" {
		return netip.Addr{}, err
	}
	return netip.ParseAddr(v.ManagementIP)
}

// EndpointIDs returns the IDs of the endpoints with a name, or else on a network.
func (m *Machine) EndpointIDs(network, name string) ([]string, error) {
	filter := map[string]string{"VirtualNetwork": network}
	if name != "" {
		filter = map[string]string{"Name": name}
	}
	query := map[string]any{"SchemaVersion": map[string]int{"Major": 2, "Minor": 0}, "Filter": api.Text(filter)}
	return m.enumerateIDs(api.EndpointKind, api.Text(query))
}

// enumerateIDs returns the IDs of the objects of a kind that match a query.
func (m *Machine) enumerateIDs(k api.Kind, query string) (ids []string, err error) {
	answer, err := m.ask("HcnEnumerate"+string(k)+"s", query)
	if err != nil {
		return nil, err
	}
	return ids, json.Unmarshal([]byte(answer), &ids)
}

// NamespaceIDs returns the IDs of all namespaces.
func (m *Machine) NamespaceIDs() ([]string, error) {
	return m.enumerateIDs(api.NamespaceKind, anyQuery)
}

// Namespace returns one namespace.
func (m *Machine) Namespace(id string) (json.RawMessage, error) {
	return m.query(api.NamespaceKind, id)
}

// EndpointUse returns who uses an endpoint, as v1 reports it.
func (m *Machine) EndpointUse(id string) (hns.Use, error) {
	var v api.EndpointV1
	err := m.callV1("GET", "/endpoints/"+id, "", &v)
	return hns.Use{Containers: v.SharedContainers, Attached: v.State == attachedState || v.State == sharedState}, err
}

// Endpoint returns one endpoint.
func (m *Machine) Endpoint(id string) (json.RawMessage, error) { return m.query(api.EndpointKind, id) }

// CreateEndpoint creates an endpoint and returns its document.
func (m *Machine) CreateEndpoint(network string, document json.RawMessage) (json.RawMessage, error) {
	n, err := m.ask("HcnOpenNetwork", network)
	if err != nil {
		return nil, err
	}
	defer m.ask("HcnCloseNetwork", n)
	h, err := m.ask("HcnCreateEndpoint", n, api.NoID, string(document))
	if err != nil {
		return nil, err
	}
	return m.queryClose(api.EndpointKind, h)
}

// DeleteEndpoint deletes an endpoint.
func (m *Machine) DeleteEndpoint(id string) error {
	_, err := m.ask("HcnDeleteEndpoint", id)
	return err
}

// CreateEndpointV1 creates an endpoint as v1 does.
func (m *Machine) CreateEndpointV1(network, name string, ips []netip.Prefix) (string, error) {
	e := api.EndpointV1{Name: name, VirtualNetwork: network}
	for _, p := range ips {
		if p.Addr().Is4() {
			e.IPAddress, e.PrefixLength = p.Addr().String(), p.Bits()
		} else {
			e.IPv6Address, e.IPv6PrefixLength = p.Addr().String(), p.Bits()
		}
	}
	var made api.EndpointV1
	err := m.callV1("POST", "/endpoints/", api.Text(e), &made)
	return made.ID, err
}

// AttachHost turns an endpoint into an adapter of the host. It succeeds if it
// already is one.
func (m *Machine) AttachHost(endpoint string) error {
	err := m.callV1("POST", "/endpoints/"+endpoint+"/attach", `{"SystemType":"Host","CompartmentId":1}`, &struct{}{})
	if errors.Is(err, hns.ErrExists) {
		return nil
	}
	return err
}

// Notify calls changed after networks are created or deleted, and when HNS
// ends. It fails if Knobs.Silent is set.
func (m *Machine) Notify(changed func()) (stop func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.knobs.Silent {
		return nil, api.Problem("HcnRegisterServiceCallback", hns.NotImplemented)
	}
	return m.watch(false, changed), nil
}
