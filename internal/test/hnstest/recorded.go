package hnstest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"flannel/internal/test/hnstest/api"
	"flannel/pkg/windows/hns"
)

// Recorded returns a machine in memory in the state of another one, which may
// be a real one: files are the directory listings of its support bundle (see
// package probe). Like NewWith it needs Close.
//
// HNS returns the recorded documents byte for byte until the policies of a
// network are changed. The form that its overlays have there sets the knobs
// Version, OtherCase, HostBits, OmitVSID, OmitGateway and OmitSubnets, so that
// new networks have it, too. What a bundle does not contain is as on a new
// machine: the registry has the current configuration, and forwarding is off.
func Recorded(files fs.FS) (*Machine, error) {
	var r struct {
		version             hns.Version
		networks, endpoints []json.RawMessage
		namespaces          []json.RawMessage
		adapters            []hns.Adapter
		routes              []hns.Route
	}
	for name, into := range map[string]any{"hns-version.json": &r.version, "hns-networks.json": &r.networks,
		"hns-endpoints.json": &r.endpoints, "hns-namespaces.json": &r.namespaces, "adapters.json": &r.adapters, "ip-routes.json": &r.routes} {
		raw, err := fs.ReadFile(files, name)
		if errors.Is(err, fs.ErrNotExist) && name == "hns-namespaces.json" {
			continue // bundles of earlier versions have none
		}
		if err == nil {
			err = json.Unmarshal(raw, into)
		}
		if err != nil {
			return nil, fmt.Errorf("recorded machine: %s: %w", name, err)
		}
	}
	body := &inMemory{}
	m := NewWith(body)
	m.knobs.Version = r.version
	m.adapters, m.routes = nil, r.routes // the bundle has the loopback adapter, too
	for _, a := range r.adapters {
		body.last = max(body.last, a.Index) // new adapters get higher ones
		m.adapters = append(m.adapters, &adapter{Adapter: a, virtual: a.Virtual(), known: true})
	}
	for _, a := range m.adapters {
		if name, ok := strings.CutPrefix(a.Name, "vEthernet ("); ok && a.virtual {
			if physical := m.adapterByName(strings.TrimSuffix(name, ")")); physical != nil {
				a.physical = physical.Index
			}
		}
		m.stored[a.GUID] = persistentOf(config{addrs: a.Addrs, dhcp: a.DHCP,
			routes: slices.DeleteFunc(slices.Clone(r.routes), func(r hns.Route) bool { return r.Index != a.Index })})
	}
	for _, document := range r.networks {
		m.loadNetwork(document)
	}
	for _, document := range r.endpoints {
		m.loadEndpoint(document)
	}
	for _, document := range r.namespaces {
		t := &object{}
		_ = json.Unmarshal(document, &t.Document) // as far as it is understood
		t.Read("ID", &t.id)
		m.addObject(api.NamespaceKind, t)
	}
	return m, nil
}

// loadNetwork adds a recorded network. It ignores what it does not understand,
// because a record of an unknown form is what tests need most.
func (m *Machine) loadNetwork(document json.RawMessage) {
	n := &network{read: api.Reader{}, verbatim: document}
	_ = json.Unmarshal(document, &n.Document)
	n.Document.Read("ID", &n.id)
	n.Document.Read("Name", &n.Name)
	n.Document.Read("Type", &n.Type)
	n.Document.Read("Policies", &n.Policies)
	if strings.EqualFold(n.Type, hns.Overlay) && n.Type != hns.Overlay {
		m.knobs.OtherCase = true
		n.Type = hns.Overlay
	}
	for i := range n.Policies {
		n.Policies[i].Type = api.PolicyType(n.Policies[i].Type)
	}
	if name, ok := api.AdapterName(n.Policies); ok {
		if a := m.adapterByName(name); a != nil {
			n.adapter = a.Index
		}
	}
	// networkProperties adds these two again, from other fields, when it makes the document.
	n.Policies = slices.DeleteFunc(n.Policies, func(p hns.Policy) bool {
		var s struct{ Address json.RawMessage }
		if p.Type == "DrMacAddress" && json.Unmarshal(p.Settings, &s) == nil {
			a, err := api.ParseMAC(s.Address)
			n.mac, n.macKnown = a, err == nil
		}
		return p.Type == "DrMacAddress" || p.Type == "ProviderAddress"
	})
	m.loadSubnets(n)
	m.networks = append(m.networks, n)
}

// loadSubnets reads the subnets of a recorded network. If it is an overlay, their form sets
// knobs: see Recorded.
func (m *Machine) loadSubnets(n *network) {
	var ipams []struct {
		Subnets []struct {
			IpAddressPrefix string
			Policies        []hns.Policy
			Routes          []struct{ NextHop string }
		}
	}
	n.Document.Read("Ipams", &ipams)
	form := Knobs{OmitSubnets: true} // until there is one
	for _, i := range ipams {
		for _, d := range i.Subnets {
			p, _ := netip.ParsePrefix(d.IpAddressPrefix)
			s := api.Subnet{Prefix: p.Masked()}
			form.OmitSubnets = false
			form.HostBits = form.HostBits || p != s.Prefix
			form.OmitVSID = form.OmitVSID || len(d.Policies) == 0
			form.OmitGateway = form.OmitGateway || len(d.Routes) == 0
			for _, r := range d.Routes {
				s.Gateway, _ = netip.ParseAddr(r.NextHop)
			}
			for _, p := range d.Policies {
				var v struct{ IsolationId uint32 }
				if json.Unmarshal(p.Settings, &v) == nil && strings.EqualFold(p.Type, "VSID") {
					s.VSID = v.IsolationId
				}
			}
			n.Subnets = append(n.Subnets, s)
		}
	}
	if k := &m.knobs; n.Type == hns.Overlay {
		k.OmitSubnets, k.HostBits = k.OmitSubnets || form.OmitSubnets, k.HostBits || form.HostBits
		k.OmitVSID, k.OmitGateway = k.OmitVSID || form.OmitVSID, k.OmitGateway || form.OmitGateway
	}
}

// loadEndpoint adds a recorded endpoint. If the host has an adapter of its name,
// it is attached there.
func (m *Machine) loadEndpoint(document json.RawMessage) {
	t := &object{state: createdState}
	_ = json.Unmarshal(document, &t.Document)
	t.Read("ID", &t.id)
	t.Read("HostComputeNetwork", &t.network)
	var ips []struct {
		IpAddress    netip.Addr
		PrefixLength int
	}
	t.Read("IpConfigurations", &ips)
	for i, ip := range ips {
		if p := netip.PrefixFrom(ip.IpAddress, ip.PrefixLength); i == 0 {
			t.ip = p
		} else {
			t.more = append(t.more, p)
		}
	}
	if a := m.adapterByName("vEthernet (" + t.Name() + ")"); a != nil {
		t.state, t.adapter = attachedState, a.Index
	} else if t.Document["HostComputeNamespace"] != nil {
		t.state = sharedState
	}
	m.addObject(api.EndpointKind, t)
}
