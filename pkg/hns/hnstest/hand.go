package hnstest

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"flannel/pkg/hns"
	"flannel/pkg/hns/hnstest/api"
)

// What another hand does to the machine: nothing of it is in the log.

// Hand gives the methods of another hand.
type Hand struct{ m *Machine }

// Hand returns another hand at the machine.
func (m *Machine) Hand() Hand { return Hand{m} }

// Networks returns the networks' documents, as HNS would.
func (h Hand) Networks() []json.RawMessage {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	var all []json.RawMessage
	for _, n := range h.m.networks {
		all = append(all, json.RawMessage(api.Text(h.m.viewNetwork(n))))
	}
	return all
}

// Endpoints returns the endpoints' documents.
func (h Hand) Endpoints() []json.RawMessage { return h.documents(api.EndpointKind) }

// LoadBalancers returns the load balancers' documents.
func (h Hand) LoadBalancers() []json.RawMessage { return h.documents(api.LoadBalancerKind) }

func (h Hand) documents(k api.Kind) []json.RawMessage {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	var all []json.RawMessage
	for _, t := range h.m.things[k] {
		all = append(all, json.RawMessage(api.Text(t.Document)))
	}
	return all
}

// Adapters returns the machine's adapters.
func (h Hand) Adapters() []hns.Adapter {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	var all []hns.Adapter
	for _, a := range h.m.adapters {
		all = append(all, a.Adapter)
	}
	return all
}

// Adapter returns the adapter of a name; the zero Adapter: there is none.
func (h Hand) Adapter(name string) hns.Adapter {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	if a := h.m.named(name); a != nil {
		return a.Adapter
	}
	return hns.Adapter{}
}

// Routes returns the routes that programs made.
func (h Hand) Routes() []hns.Route {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(h.m.routes), func(r hns.Route) bool { return !r.Ours })
}

// DeleteNetwork deletes the network of a name.
func (h Hand) DeleteNetwork(name string) error {
	return h.network(name, func(n *network) hns.Code {
		h.m.removeNetwork(n)
		return 0
	})
}

// CreateNetwork makes a network.
func (h Hand) CreateNetwork(document string) error {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	_, code := h.m.createNetwork(api.NewGUID(), []byte(document))
	return api.Problem("HcnCreateNetwork", code)
}

// Policies changes the policies of the network of a name. No event tells of it.
func (h Hand) Policies(name string, change func([]hns.Policy) []hns.Policy) error {
	return h.network(name, func(n *network) hns.Code {
		before := n.Policies
		n.Policies = change(slices.Clone(before))
		h.m.recarry(n, before)
		return 0
	})
}

// DeleteRemoteSubnet deletes the policies that lead to a subnet.
func (h Hand) DeleteRemoteSubnet(name string, subnet netip.Prefix) error {
	return h.Policies(name, func(all []hns.Policy) []hns.Policy {
		return slices.DeleteFunc(all, func(p hns.Policy) bool {
			r, code := api.RemoteSubnet(p.Settings)
			return p.Type == "RemoteSubnetRoute" && code == 0 && r.Prefix == subnet
		})
	})
}

// DeleteEndpoint deletes the endpoint of a name.
func (h Hand) DeleteEndpoint(name string) error {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	for _, t := range h.m.things[api.EndpointKind] {
		if t.Name() == name {
			h.m.removeThing(api.EndpointKind, t)
			return nil
		}
	}
	return fmt.Errorf("endpoint %s: %w", name, hns.ErrNotFound)
}

func (h Hand) network(name string, act func(*network) hns.Code) error {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	for _, n := range h.m.networks {
		if n.Name == name {
			return api.Problem("another hand", act(n))
		}
	}
	return fmt.Errorf("network %s: %w", name, hns.ErrNotFound)
}

// AddRoute makes a route, as a person would.
func (h Hand) AddRoute(r hns.Route) error {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	r.Ours = true
	return api.Problem("another hand", h.m.createRoute(r))
}

// DeleteRoutes deletes all routes to a destination.
func (h Hand) DeleteRoutes(dst netip.Prefix) {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	for _, r := range slices.Clone(h.m.routes) {
		if r.Dst == dst {
			h.m.deleteRoute(r)
		}
	}
}

// SetForwarding turns an adapter's forwarding on or off.
func (h Hand) SetForwarding(name string, v6, on bool) error {
	return h.adapter(name, func(a *adapter) {
		h.m.forward[family{a.Index, v6}] = on
		h.m.must("set forwarding", h.m.body.Forwarding(a.Index, v6, on))
		h.m.tellStack(InterfaceChange)
	})
}

// Forwarding tells whether an adapter forwards.
func (h Hand) Forwarding(name string, v6 bool) (on bool) {
	_ = h.adapter(name, func(a *adapter) { on = h.m.forward[family{a.Index, v6}] })
	return on
}

// Rename gives an adapter another name.
func (h Hand) Rename(from, to string) error {
	return h.adapter(from, func(a *adapter) {
		a.Name = to
		h.m.must("rename "+from, h.m.body.Rename(a.Index, to))
		h.m.tellStack(InterfaceChange)
	})
}

// Readdress gives an adapter other addresses, set by hand.
func (h Hand) Readdress(name string, addrs ...netip.Prefix) error {
	return h.adapter(name, func(a *adapter) {
		for _, ip := range slices.Clone(a.Addrs) {
			h.m.takeAddress(a, ip.Prefix)
		}
		for _, p := range addrs {
			h.m.giveAddress(a, hns.Address{Prefix: p, Manual: true, Preferred: true})
		}
	})
}

func (h Hand) adapter(name string, act func(*adapter)) error {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	a := h.m.named(name)
	if a == nil {
		return fmt.Errorf("adapter %s: %w", name, hns.ErrNotFound)
	}
	act(a)
	return nil
}
