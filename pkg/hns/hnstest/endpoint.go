package hnstest

import (
	"encoding/json"
	"net/netip"
	"slices"

	"flannel/pkg/hns"
	"flannel/pkg/hns/hnstest/api"
)

const remoteEndpoint = 1 // of an endpoint's flags

// createEndpoint makes an endpoint. Its address is HNS's choice where the document has none.
func (m *Machine) createEndpoint(id, network string, document []byte) (string, hns.Code) {
	n := m.network(network)
	if n == nil {
		return "", hns.NetworkNotFound
	}
	t := &thing{id: id, network: n.id, state: 1}
	if document, code := api.EndpointVersion2(document); code != 0 {
		return "", code
	} else if json.Unmarshal(document, &t.Document) != nil {
		return "", hns.InvalidJSON
	}
	// One that stands for a pod elsewhere has that pod's address, of another node's subnet.
	remote := t.Flags()&remoteEndpoint != 0
	ip, code := m.endpointAddress(n, t, remote)
	if code != 0 {
		return "", code
	}
	if m.portTaken(t) {
		return "", hns.PortExists
	}
	t.ip, t.more = ip, t.further(n)
	t.Write("ID", id)
	t.Write("HostComputeNetwork", n.id)
	if ip.IsValid() {
		var all []any
		for _, p := range append([]netip.Prefix{ip}, t.more...) {
			all = append(all, map[string]any{"IpAddress": p.Addr(), "PrefixLength": p.Bits()})
		}
		t.Write("IpConfigurations", all)
	}
	var mac string
	if t.Read("MacAddress", &mac); mac == "" {
		t.Write("MacAddress", m.newMAC().String())
	}
	m.things[api.EndpointKind] = append(m.things[api.EndpointKind], t)
	m.bring(n, t, true)
	return id, 0
}

// bring tells the body about an endpoint of the cluster: a pod, or on an overlay what stands for a peer's.
func (m *Machine) bring(n *network, t *thing, add bool) {
	if !api.External(n.Type) || !t.ip.IsValid() || t.adapter != 0 {
		return
	}
	if t.Flags()&remoteEndpoint == 0 {
		m.must("carry a pod", m.body.Pod(n.id, t.ip.Addr(), add))
		return
	}
	if add {
		t.way = m.wayTo(n, t)
	}
	if t.way != nil {
		m.must("carry a remote endpoint", m.body.Remote(n.id, *t.way, add))
	}
}

// wayTo is the way to a remote endpoint, if it has its own: neither one in a remote subnet nor one that stands for a
// Service of this machine has.
func (m *Machine) wayTo(n *network, t *thing) *hns.RemoteSubnet {
	var policies []hns.Policy
	t.Read("Policies", &policies)
	mac, _ := api.ParseMAC(t.Document["MacAddress"])
	way := hns.RemoteSubnet{Prefix: netip.PrefixFrom(t.ip.Addr(), t.ip.Addr().BitLen()), Provider: m.managementIP(n), MAC: mac}
	for _, p := range policies {
		var s struct{ ProviderAddress netip.Addr }
		if p.Type == "ProviderAddress" && json.Unmarshal(p.Settings, &s) == nil {
			way.Provider = s.ProviderAddress
		}
	}
	inSubnet := slices.ContainsFunc(n.Policies, func(p hns.Policy) bool {
		r, code := api.RemoteSubnet(p.Settings)
		return p.Type == "RemoteSubnetRoute" && code == 0 && r.Prefix.Contains(t.ip.Addr())
	})
	if inSubnet || way.Provider == m.managementIP(n) {
		return nil
	}
	return &way
}

// endpointAddress is the address of a new endpoint, which must be free; zero where the network has no subnet.
func (m *Machine) endpointAddress(n *network, t *thing, remote bool) (netip.Prefix, hns.Code) {
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
			if a := given[0].IpAddress; s.Prefix.Contains(a) && m.free(n, a) {
				return netip.PrefixFrom(a, s.Prefix.Bits()), 0
			}
			continue
		}
		for a := s.Prefix.Addr().Next().Next(); s.Prefix.Contains(a); a = a.Next() {
			if m.free(n, a) {
				return netip.PrefixFrom(a, s.Prefix.Bits()), 0
			}
		}
	}
	if len(given) > 0 || len(n.Subnets) > 0 {
		return netip.Prefix{}, api.AddressTaken
	}
	return netip.Prefix{}, 0
}

// further are the addresses of a new endpoint beside its first, as its document asks for them.
func (t *thing) further(n *network) (all []netip.Prefix) {
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

func (m *Machine) free(n *network, a netip.Addr) bool {
	return !slices.ContainsFunc(m.things[api.EndpointKind], func(t *thing) bool { return t.network == n.id && t.ip.Addr() == a })
}

// portTaken tells whether another endpoint has one of the outer ports that this one maps.
func (m *Machine) portTaken(t *thing) bool {
	mine := t.Ports()
	return slices.ContainsFunc(m.things[api.EndpointKind], func(o *thing) bool {
		return slices.ContainsFunc(o.Ports(), func(p string) bool { return slices.Contains(mine, p) })
	})
}

// attach makes an endpoint an adapter of the host.
func (m *Machine) attach(t *thing) hns.Code {
	if t.state == 2 {
		return hns.EndpointAttached
	}
	t.state = 2
	n := m.network(t.network)
	if !t.ip.IsValid() || n == nil {
		return 0
	}
	m.bring(n, t, false)
	mac, _ := api.ParseMAC(t.Document["MacAddress"])
	var addrs []hns.Address
	for _, p := range append([]netip.Prefix{t.ip}, t.more...) {
		addrs = append(addrs, hns.Address{Prefix: p, Manual: true, Preferred: true})
	}
	t.adapter = m.addAdapter(hns.Adapter{
		Name: "vEthernet (" + t.Name() + ")", Description: "Hyper-V Virtual Ethernet Adapter", MTU: 1500, MAC: mac, Up: true,
		Addrs: addrs,
	}, 0)
	return 0
}

func (m *Machine) detach(t *thing) {
	if t.adapter != 0 {
		m.removeAdapter(t.adapter)
		t.adapter = 0
		if n := m.network(t.network); n != nil {
			m.bring(n, t, true)
		}
	}
	t.state = 4
}
