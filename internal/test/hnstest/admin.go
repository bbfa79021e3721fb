package hnstest

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"flannel/internal/test/hnstest/api"
	"flannel/pkg/windows/hns"
)

// Admin changes and reads the machine as an administrator, or another program
// than the one under test, would. Its calls are not in the log, and no Fault applies to
// them. Each locks the machine. Changes cause the same events as those by calls, unless
// a method says something else.
type Admin struct{ m *Machine }

// Admin returns access to the machine beside the program under test.
func (m *Machine) Admin() Admin { return Admin{m} }

// Networks returns the documents of all networks, in the form in which HNS
// returns them.
func (h Admin) Networks() []json.RawMessage {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	var documents []json.RawMessage
	for _, n := range h.m.networks {
		documents = append(documents, json.RawMessage(api.Text(h.m.networkProperties(n))))
	}
	return documents
}

// Endpoints returns the endpoints' documents, as they were written.
func (h Admin) Endpoints() []json.RawMessage { return h.documents(api.EndpointKind) }

// PodMTU returns the MTU of the pod whose endpoint has that name, 0 if there is none.
func (h Admin) PodMTU(endpoint string) int {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	for _, t := range h.m.objects[api.EndpointKind] {
		if t.Name() == endpoint {
			return 1500 - t.overhead()
		}
	}
	return 0
}

// LoadBalancers returns the load balancers' documents.
func (h Admin) LoadBalancers() []json.RawMessage { return h.documents(api.LoadBalancerKind) }

// documents returns the documents of all objects of a kind.
func (h Admin) documents(k api.Kind) []json.RawMessage {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	var documents []json.RawMessage
	for _, t := range h.m.objects[k] {
		documents = append(documents, json.RawMessage(api.Text(t.Document)))
	}
	return documents
}

// Adapters returns the machine's adapters.
func (h Admin) Adapters() []hns.Adapter {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	var adapters []hns.Adapter
	for _, a := range h.m.adapters {
		adapters = append(adapters, a.Adapter)
	}
	return adapters
}

// Adapter returns the adapter with that name, or the zero Adapter.
func (h Admin) Adapter(name string) hns.Adapter {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	if a := h.m.adapterByName(name); a != nil {
		return a.Adapter
	}
	return hns.Adapter{}
}

// Routes returns the routes that programs made.
func (h Admin) Routes() []hns.Route {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(h.m.routes), func(r hns.Route) bool { return !r.Ours })
}

// DeleteNetwork deletes the network with that name.
func (h Admin) DeleteNetwork(name string) error {
	return h.network(name, func(n *network) hns.Code {
		h.m.removeNetwork(n)
		return 0
	})
}

// Ghost hides the network with that name: HNS does not list it any more, but refuses
// to create a network of its name. See Knobs.GhostNetwork.
func (h Admin) Ghost(name string) error { return h.setGhost(name, true) }

// Unghost makes HNS list the network with that name again.
func (h Admin) Unghost(name string) error { return h.setGhost(name, false) }

// setGhost implements Ghost and Unghost.
func (h Admin) setGhost(name string, ghost bool) error {
	return h.network(name, func(n *network) hns.Code {
		n.ghost = ghost
		return 0
	})
}

// CreateNetwork creates a network from its document, of either version.
func (h Admin) CreateNetwork(document string) error {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	_, code := h.m.createNetwork(api.NewGUID(), []byte(document))
	return api.Problem("HcnCreateNetwork", code)
}

// Policies replaces the policies of the network with that name by the result of change. It
// causes no event.
func (h Admin) Policies(name string, change func([]hns.Policy) []hns.Policy) error {
	return h.network(name, func(n *network) hns.Code {
		before := n.Policies
		n.Policies = change(slices.Clone(before))
		h.m.applyPolicyChanges(n, before)
		return 0
	})
}

// DeleteRemoteSubnet deletes the RemoteSubnetRoute policies for a subnet.
func (h Admin) DeleteRemoteSubnet(name string, subnet netip.Prefix) error {
	return h.Policies(name, func(policies []hns.Policy) []hns.Policy {
		return slices.DeleteFunc(policies, func(p hns.Policy) bool {
			r, code := api.RemoteSubnet(p.Settings)
			return p.Type == "RemoteSubnetRoute" && code == 0 && r.Prefix == subnet
		})
	})
}

// DeleteEndpoint deletes the endpoint with that name.
func (h Admin) DeleteEndpoint(name string) error {
	return h.endpoint(name, func(t *object) hns.Code {
		h.m.removeObject(api.EndpointKind, t)
		return 0
	})
}

// endpoint calls act with the endpoint of that name, with the machine locked.
func (h Admin) endpoint(name string, act func(*object) hns.Code) error {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	for _, t := range h.m.objects[api.EndpointKind] {
		if t.Name() == name {
			return api.Problem("change by an administrator", act(t))
		}
	}
	return fmt.Errorf("endpoint %s: %w", name, hns.ErrNotFound)
}

// AddRemoteEndpoints adds endpoints to the network with that name, as kube-proxy
// has them for the backends of Services, at once and without checks.
func (h Admin) AddRemoteEndpoints(name string, count int) error {
	return h.network(name, func(n *network) hns.Code {
		addr := netip.MustParseAddr("10.128.0.1")
		for range count {
			// The fields of object are for the simulation, the document for those who read it.
			t := &object{Document: api.Document{}, id: api.NewGUID(), network: n.id, state: createdState, ip: netip.PrefixFrom(addr, 32)}
			t.Write("ID", t.id)
			t.Write("HostComputeNetwork", n.id)
			t.Write("Flags", remoteEndpoint)
			t.Write("IpConfigurations", []any{map[string]any{"IpAddress": addr, "PrefixLength": 32}})
			h.m.addObject(api.EndpointKind, t)
			addr = addr.Next()
		}
		return 0
	})
}

// network calls act with the network of that name, with the machine locked. The error is
// hns.ErrNotFound if there is none, or that of the code that act returns (0: nil); so for
// endpoint.
func (h Admin) network(name string, act func(*network) hns.Code) error {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	for _, n := range h.m.networks {
		if n.Name == name {
			return api.Problem("change by an administrator", act(n))
		}
	}
	return fmt.Errorf("network %s: %w", name, hns.ErrNotFound)
}

// AddRoute adds a route.
func (h Admin) AddRoute(r hns.Route) error {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	r.Ours = true
	return api.Problem("change by an administrator", h.m.createRoute(r))
}

// DeleteRoutes deletes all routes to a destination.
func (h Admin) DeleteRoutes(dst netip.Prefix) {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	for _, r := range slices.Clone(h.m.routes) {
		if r.Dst == dst {
			h.m.deleteRoute(r)
		}
	}
}

// SetForwarding turns an adapter's forwarding on or off.
func (h Admin) SetForwarding(name string, v6, on bool) error {
	return h.adapter(name, func(a *adapter) {
		h.m.forward[family{a.Index, v6}] = on
		h.m.recordError("set forwarding", h.m.body.Forwarding(a.Index, v6, on))
		h.m.notifyStack(InterfaceChange)
	})
}

// Forwarding reports whether an adapter forwards packets.
func (h Admin) Forwarding(name string, v6 bool) (on bool) {
	_ = h.adapter(name, func(a *adapter) { on = h.m.forward[family{a.Index, v6}] })
	return on
}

// Rename changes the name of an adapter.
func (h Admin) Rename(from, to string) error {
	return h.adapter(from, func(a *adapter) {
		a.Name = to
		h.m.recordError("rename "+from, h.m.body.Rename(a.Index, to))
		h.m.notifyStack(InterfaceChange)
	})
}

// SetUp plugs the cable of an adapter in, or out.
func (h Admin) SetUp(name string, up bool) error {
	return h.adapter(name, func(a *adapter) {
		a.Up = up
		h.m.notifyStack(InterfaceChange)
	})
}

// Unplug removes a physical adapter without a switch, with its addresses and routes. Plug
// adds it again.
func (h Admin) Unplug(name string) error {
	return h.adapter(name, func(a *adapter) { h.m.removeAdapter(a.Index) })
}

// Readdress replaces the addresses of an adapter by static ones.
func (h Admin) Readdress(name string, addrs ...netip.Prefix) error {
	const manual = true
	return h.readdress(name, manual, addrs)
}

// Lease replaces the addresses of an adapter by others from DHCP, which configures it.
func (h Admin) Lease(name string, addrs ...netip.Prefix) error {
	const manual = false
	return h.readdress(name, manual, addrs)
}

// readdress implements Readdress and Lease.
func (h Admin) readdress(name string, manual bool, addrs []netip.Prefix) error {
	return h.adapter(name, func(a *adapter) {
		for _, ip := range slices.Clone(a.Addrs) {
			h.m.removeAddress(a, ip.Prefix)
		}
		for _, p := range addrs {
			h.m.addAddress(a, hns.Address{Prefix: p, Manual: manual, Preferred: true})
		}
	})
}

// SetDNS replaces the DNS servers of an adapter, those of both families.
func (h Admin) SetDNS(name string, servers ...netip.Addr) error {
	return h.adapter(name, func(a *adapter) {
		a.DNS, a.dnsGiven = slices.Clone(servers), false
		h.m.notifyStack(InterfaceChange)
	})
}

// adapter calls act with the adapter of that name, with the machine locked.
func (h Admin) adapter(name string, act func(*adapter)) error {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	a := h.m.adapterByName(name)
	if a == nil {
		return fmt.Errorf("adapter %s: %w", name, hns.ErrNotFound)
	}
	act(a)
	return nil
}
