package hnstest

import (
	"crypto/rand"
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"flannel/pkg/hns"
)

// network is an HNS network.
type network struct {
	id, name, kind string
	doc            map[string]json.RawMessage // as it was made, of version 2
	subnets        []subnet
	policies       []hns.Policy
	read           map[string]hns.RemoteSubnet // by a policy's settings
	fleeting       bool                        // non-persistent
	adapter        int                         // index of the physical adapter; 0: none
	first          netip.Addr                  // management address that was told first
	mac            hns.MAC
	macKnown       bool
}

// subnet is one of a network.
type subnet struct {
	prefix  netip.Prefix
	gateway netip.Addr
	vsid    uint32
}

// networkDocument is what we read of a network's document.
type networkDocument struct {
	Name, Type string
	Policies   []hns.Policy
	Ipams      []struct {
		Type    string
		Subnets []subnetDocument
	}
	Flags         uint32
	SchemaVersion struct{ Major, Minor int }
}

type subnetDocument struct {
	IpAddressPrefix string
	Policies        []hns.Policy
	Routes          []struct {
		NextHop           string
		DestinationPrefix string
	}
}

const nonPersistent = 8 // of a network's flags

// external tells whether networks of a type take an adapter of the machine.
func external(kind string) bool {
	return slices.Contains([]string{hns.Overlay, hns.L2Bridge, "L2Tunnel", "Transparent"}, kind)
}

func (m *Machine) network(id string) *network {
	for _, n := range m.networks {
		if strings.EqualFold(n.id, id) {
			return n
		}
	}
	return nil
}

// createNetwork makes a network from a document of either version, and for an external one the switch.
func (m *Machine) createNetwork(id string, document []byte) (string, hns.Code) {
	document, code := version2(document)
	if code != 0 {
		return "", code
	}
	n, d, code := checkNetwork(document)
	if code != 0 {
		return "", code
	}
	if slices.ContainsFunc(m.networks, func(o *network) bool { return o.name == n.name && n.name != "" }) {
		return "", hns.NetworkExists
	}
	n.id = id
	for _, p := range d.Policies {
		if code := checkPolicy(n.kind, m.knobs.version(), p); code != 0 {
			return "", code
		}
		n.policies = append(n.policies, asHNSHasIt(p))
	}
	// Nothing is refused from here on but for want of an adapter: HNS, too, looks before it touches a switch.
	if external(n.kind) {
		physical, code := m.adapterFor(n)
		if code != 0 {
			return "", code
		}
		n.adapter = physical.Index
		if _, given := adapterName(n.policies); !given {
			n.policies = append(n.policies, policy("NetAdapterName", map[string]string{"NetworkAdapterName": physical.Name}))
		}
		m.bindSwitch(physical)
	}
	m.networks = append(m.networks, n)
	if n.kind == hns.Overlay {
		m.startOverlay(n)
	}
	m.tell(NetworkCreate, n.id)
	return n.id, 0
}

func adapterName(policies []hns.Policy) (name string, ok bool) {
	for _, p := range policies {
		if p.Type == "NetAdapterName" {
			var s struct{ NetworkAdapterName string }
			ok = json.Unmarshal(p.Settings, &s) == nil
			return s.NetworkAdapterName, ok
		}
	}
	return "", false
}

const vxlanOverhead = 50 // bytes, over IPv4

// startOverlay gives an overlay its MAC, which HNS tells of later.
func (m *Machine) startOverlay(n *network) {
	n.mac = m.newMAC()
	m.after(drMAC, func() { n.macKnown = true })
	o := overlay{network: n.id, port: 4789, mac: n.mac, local: m.addressOf(n.adapter), mtu: m.adapter(n.adapter).MTU - vxlanOverhead}
	for _, s := range n.subnets {
		o.vsid = s.vsid
	}
	for _, p := range n.policies {
		if p.Type == "VxlanPort" {
			var s struct{ Port uint16 }
			if json.Unmarshal(p.Settings, &s) == nil && s.Port != 0 {
				o.port = s.Port
			}
		}
	}
	m.must("make the overlay", m.body.overlay(o, true))
	for _, p := range n.policies {
		m.carry(n, p, true)
	}
}

// carry tells the body about a policy that leads packets.
func (m *Machine) carry(n *network, p hns.Policy, add bool) {
	if p.Type != "RemoteSubnetRoute" {
		return
	}
	r, code := remoteSubnet(p.Settings)
	if code == 0 {
		m.must("carry a remote subnet", m.body.remote(n.id, r, add))
	}
}

// newMAC is by chance: several machines may be on one network.
func (m *Machine) newMAC() hns.MAC {
	mac := hns.MAC{0x00, 0x15, 0x5d}
	rand.Read(mac[3:]) // never fails
	return mac
}

// viewNetwork is the document of a network as HNS has it now.
func (m *Machine) viewNetwork(n *network) any {
	policies := slices.Clone(n.policies)
	if n.macKnown {
		policies = append(policies, policy("DrMacAddress", map[string]string{"Address": n.mac.String()}))
	}
	if ip := m.managementIP(n); ip.IsValid() && n.kind == hns.Overlay {
		policies = append(policies, policy("ProviderAddress", map[string]string{"ProviderAddress": ip.String()}))
	}
	doc := maps.Clone(n.doc)
	doc["ID"] = json.RawMessage(text(n.id))
	doc["Policies"] = json.RawMessage(text(policies))
	doc["SchemaVersion"] = json.RawMessage(`{"Major":2,"Minor":0}`)
	return doc
}

func policy(kind string, settings any) hns.Policy {
	return hns.Policy{Type: kind, Settings: json.RawMessage(text(settings))}
}

// modifyNetwork adds, removes or updates policies.
func (m *Machine) modifyNetwork(n *network, request []byte) hns.Code {
	var r struct {
		ResourceType, RequestType string
		Settings                  struct{ Policies []hns.Policy }
	}
	if json.Unmarshal(request, &r) != nil {
		return hns.InvalidJSON
	}
	if r.ResourceType != "Policy" {
		return hns.RequestUnsupported
	}
	before := slices.Clone(n.policies)
	for _, p := range r.Settings.Policies {
		code := checkPolicy(n.kind, m.knobs.version(), p)
		if code == 0 {
			code = m.changePolicy(n, r.RequestType, p)
		}
		if code != 0 {
			if !m.knobs.PartialBatches {
				n.policies = before
			}
			m.recarry(n, before)
			return code
		}
	}
	m.recarry(n, before)
	return 0
}

func (m *Machine) changePolicy(n *network, request string, p hns.Policy) hns.Code {
	at := slices.IndexFunc(n.policies, func(q hns.Policy) bool { return n.clashes(p, q) })
	switch request {
	case "Add":
		if at >= 0 && !m.knobs.AcceptDuplicates {
			return hns.PolicyExists
		}
		n.policies = append(n.policies, asHNSHasIt(p))
	case "Remove":
		at := slices.IndexFunc(n.policies, func(q hns.Policy) bool { return n.same(p, q) })
		if at < 0 {
			return hns.PolicyNotFound
		}
		n.policies = slices.Delete(slices.Clone(n.policies), at, at+1)
	case "Update":
		if at < 0 {
			return hns.PolicyNotFound
		}
		n.policies = slices.Clone(n.policies)
		n.policies[at] = asHNSHasIt(p)
	default:
		return hns.RequestUnsupported
	}
	return 0
}

// recarry tells the body what became of the policies that were there before.
func (m *Machine) recarry(n *network, before []hns.Policy) {
	was, is := map[string]hns.Policy{}, map[string]hns.Policy{}
	for _, p := range before {
		was[text(p)] = p
	}
	for _, p := range n.policies {
		is[text(p)] = p
	}
	for key, p := range was {
		if _, still := is[key]; !still {
			m.carry(n, p, false)
		}
	}
	for key, p := range is {
		if _, already := was[key]; !already {
			m.carry(n, p, true)
		}
	}
}

// removeNetwork deletes a network, its endpoints, and the switch with the last network on it.
func (m *Machine) removeNetwork(n *network) {
	for _, t := range slices.Clone(m.things[endpointKind]) {
		if t.network == n.id {
			m.removeThing(endpointKind, t)
		}
	}
	m.networks = slices.DeleteFunc(slices.Clone(m.networks), func(o *network) bool { return o == n })
	if n.kind == hns.Overlay {
		m.must("remove the overlay", m.body.overlay(overlay{network: n.id}, false))
	}
	if n.adapter != 0 && !slices.ContainsFunc(m.networks, func(o *network) bool { return o.adapter == n.adapter }) {
		m.freeSwitch(n.adapter)
	}
	m.tell(NetworkDelete, n.id)
}
