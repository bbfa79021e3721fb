package hnstest

import (
	"encoding/json"
	"net/netip"
	"slices"

	"flannel/internal/test/hnstest/api"
	"flannel/pkg/windows/hns"
)

const remoteEndpoint = 1 // bit in the flags of an endpoint

// createEndpoint creates an endpoint on a network from a document of either version, and
// returns id. If the document has no address, the first free one of the network is used.
func (m *Machine) createEndpoint(id, network string, document []byte) (string, hns.Code) {
	n := m.network(network)
	if n == nil {
		return "", hns.NetworkNotFound
	}
	t := &object{id: id, network: n.id, state: createdState}
	if document, code := api.EndpointVersion2(document); code != 0 {
		return "", code
	} else if json.Unmarshal(document, &t.Document) != nil {
		return "", hns.InvalidJSON
	}
	if m.knobs.OverheadRefused != 0 && t.overhead() != usualOverhead {
		return "", m.knobs.OverheadRefused
	}
	if m.natRefused(t) {
		return "", hns.InvalidPolicy
	}
	// A remote endpoint has the address of a pod on another node, so it is not
	// in a subnet of the network.
	remote := t.Flags()&remoteEndpoint != 0
	ip, code := m.endpointAddress(n, t, remote)
	if code != 0 {
		return "", code
	}
	if m.portTaken(t) {
		return "", hns.PortExists
	}
	t.ip, t.more = ip, t.moreAddresses(n)
	t.Write("ID", id)
	t.Write("HostComputeNetwork", n.id)
	if ip.IsValid() {
		var configs []any
		for _, p := range append([]netip.Prefix{ip}, t.more...) {
			configs = append(configs, map[string]any{"IpAddress": p.Addr(), "PrefixLength": p.Bits()})
		}
		t.Write("IpConfigurations", configs)
	}
	var mac string
	if t.Read("MacAddress", &mac); mac == "" {
		t.Write("MacAddress", m.newMAC().String())
	}
	m.addObject(api.EndpointKind, t)
	m.applyEndpoint(n, t, true)
	return id, 0
}

// usualOverhead is what HNS subtracts from 1500 for the MTU of pods, whatever the
// MTU of the adapter, in bytes.
const usualOverhead = 50

// overhead returns what the policy EncapOverhead of the endpoint says, in bytes, or
// usualOverhead without it.
func (t *object) overhead() int {
	var policies []hns.Policy
	t.Read("Policies", &policies)
	s := struct{ Overhead int }{usualOverhead}
	for _, p := range policies {
		if p.Type == "EncapOverhead" {
			_ = json.Unmarshal(p.Settings, &s) // with invalid settings HNS would refuse the endpoint
		}
	}
	return s.Overhead
}

// applyEndpoint tells the body to add or remove an endpoint of a network: a
// local pod, or a remote endpoint of an overlay. Endpoints that are attached to
// the host are adapters instead.
func (m *Machine) applyEndpoint(n *network, t *object, add bool) {
	if !api.External(n.Type) || !t.ip.IsValid() || t.adapter != 0 { // t.adapter: it is attached to the host
		return
	}
	if t.Flags()&remoteEndpoint == 0 {
		m.recordError("carry a pod", m.body.Pod(n.id, t.ip.Addr(), add))
		return
	}
	if add {
		t.remote = m.remoteRoute(n, t)
	}
	if t.remote != nil {
		m.recordError("carry a remote endpoint", m.body.Remote(n.id, *t.remote, add))
	}
}

// remoteRoute returns the route to a remote endpoint. It is nil if the endpoint
// is in a remote subnet, which has a route already, or stands for a Service of
// this machine.
func (m *Machine) remoteRoute(n *network, t *object) *hns.RemoteSubnet {
	var policies []hns.Policy
	t.Read("Policies", &policies)
	mac, _ := api.ParseMAC(t.Document["MacAddress"])
	route := hns.RemoteSubnet{Prefix: netip.PrefixFrom(t.ip.Addr(), t.ip.Addr().BitLen()), Provider: m.managementIP(n),
		MAC: mac}
	for _, p := range policies {
		var s struct{ ProviderAddress netip.Addr }
		if p.Type == "ProviderAddress" && json.Unmarshal(p.Settings, &s) == nil {
			route.Provider = s.ProviderAddress
		}
	}
	inSubnet := slices.ContainsFunc(n.Policies, func(p hns.Policy) bool {
		r, code := api.RemoteSubnet(p.Settings)
		return p.Type == "RemoteSubnetRoute" && code == 0 && r.Prefix.Contains(t.ip.Addr())
	})
	if inSubnet || route.Provider == m.managementIP(n) {
		return nil
	}
	return &route
}

// endpointAddress returns the address of a new endpoint: the one in its document, which must
// be free, or else a free one of a subnet, behind the first two addresses. It is invalid
// without an error if the document has none and the network no subnet.
func (m *Machine) endpointAddress(n *network, t *object, remote bool) (netip.Prefix, hns.Code) {
	var given []struct {
		IpAddress    netip.Addr
		PrefixLength int
	}
	t.Read("IpConfigurations", &given)
	if len(given) > 0 && remote {
		return netip.PrefixFrom(given[0].IpAddress, given[0].IpAddress.BitLen()), 0
	}
	for _, s := range n.Subnets {
		if len(given) > 0 {
			if a := given[0].IpAddress; s.Prefix.Contains(a) && m.addressFree(n, a) {
				return netip.PrefixFrom(a, s.Prefix.Bits()), 0
			}
			continue
		}
		for a := s.Prefix.Addr().Next().Next(); s.Prefix.Contains(a); a = a.Next() {
			if m.unused(n, a) {
				return netip.PrefixFrom(a, s.Prefix.Bits()), 0
			}
		}
	}
	if len(given) > 0 || len(n.Subnets) > 0 {
		return netip.Prefix{}, hns.AddressInUse
	}
	return netip.Prefix{}, 0
}

// moreAddresses returns the addresses in the document of a new endpoint,
// without the first one.
func (t *object) moreAddresses(n *network) (all []netip.Prefix) {
	var given []struct{ IpAddress netip.Addr }
	t.Read("IpConfigurations", &given)
	for _, g := range given[min(len(given), 1):] {
		for _, s := range n.Subnets {
			if s.Prefix.Contains(g.IpAddress) {
				all = append(all, netip.PrefixFrom(g.IpAddress, s.Prefix.Bits()))
			}
		}
	}
	return all
}

// addressFree reports whether a new endpoint of the network can have the address.
func (m *Machine) addressFree(n *network, a netip.Addr) bool {
	return m.knobs.SharedAddresses || m.unused(n, a)
}

// unused reports whether no endpoint of the network has the address.
func (m *Machine) unused(n *network, a netip.Addr) bool {
	return !slices.ContainsFunc(m.objects[api.EndpointKind],
		func(t *object) bool { return t.network == n.id && t.ip.Addr() == a })
}

// portTaken reports whether another endpoint maps one of the external ports of
// t.
func (m *Machine) portTaken(t *object) bool {
	ports := t.Ports()
	return slices.ContainsFunc(m.objects[api.EndpointKind], func(o *object) bool {
		return slices.ContainsFunc(o.Ports(), func(p string) bool { return slices.Contains(ports, p) })
	})
}

// attach turns an endpoint into an adapter of the host.
func (m *Machine) attach(t *object) hns.Code {
	if t.state == attachedState {
		return hns.EndpointAttached
	}
	t.state = attachedState
	n := m.anyNetwork(t.network)
	if !t.ip.IsValid() || n == nil {
		return 0
	}
	m.applyEndpoint(n, t, false) // from here on, its address is that of an adapter
	mac, _ := api.ParseMAC(t.Document["MacAddress"])
	var addrs []hns.Address
	for _, p := range append([]netip.Prefix{t.ip}, t.more...) {
		addrs = append(addrs, hns.Address{Prefix: p, Manual: true, Preferred: true})
	}
	t.adapter = m.addAdapter(hns.Adapter{
		Name: "vEthernet (" + t.Name() + ")", Description: "Hyper-V Virtual Ethernet Adapter", MTU: 1500, MAC: mac,
		Up: true, Registers: true,
		Addrs: addrs,
	}, 0)
	m.addDefaultRoutes(n, t)
	return 0
}

// addDefaultRoutes adds the default routes of an endpoint to the host, to which
// it was attached.
func (m *Machine) addDefaultRoutes(n *network, t *object) {
	var routes []struct{ NextHop, DestinationPrefix string }
	t.Read("Routes", &routes)
	for _, r := range routes {
		dst, err1 := netip.ParsePrefix(r.DestinationPrefix)
		hop, err2 := netip.ParseAddr(r.NextHop)
		if err1 == nil && err2 == nil {
			m.createRoute(hns.Route{Dst: dst, NextHop: hop, Index: t.adapter, Ours: true})
		}
	}
	for _, s := range n.Subnets {
		if m.knobs.HostDefaultRoute {
			m.createRoute(hns.Route{Dst: netip.PrefixFrom(unspecified(s.Gateway), 0), NextHop: s.Gateway, Index: t.adapter, Ours: true})
		}
	}
}

// detach removes the host adapter of an endpoint, if it has one.
func (m *Machine) detach(t *object) {
	if t.adapter != 0 {
		m.removeAdapter(t.adapter)
		t.adapter = 0
		if n := m.anyNetwork(t.network); n != nil {
			m.applyEndpoint(n, t, true)
		}
	}
	t.state = detachedState
}
