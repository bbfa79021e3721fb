package hnstest

import (
	"crypto/rand"
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"flannel/internal/test/hnstest/api"
	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
)

// network is an HNS network. Policies of the embedded Network are the current ones,
// Document is what the network was created with.
type network struct {
	api.Network
	id       string          // in lower case, unless it is recorded
	read     api.Reader      // compares policies
	adapter  int             // index of the physical adapter; 0: none
	first    netip.Addr      // first management address that HNS reported
	mac      dataplane.MAC   // of an overlay's distributed router
	macKnown bool            // HNS reports mac as DrMacAddress
	ghost    bool            // see Admin.Ghost
	verbatim json.RawMessage // recorded document; nil: made from the other fields
}

// network returns the network with that ID, in any case of letters, or nil if there
// is none or it is a ghost.
func (m *Machine) network(id string) *network {
	if n := m.anyNetwork(id); n != nil && !n.ghost {
		return n
	}
	return nil
}

// olderNetwork is network for the older API, which knows ghosts by Knobs.GhostNetwork.
func (m *Machine) olderNetwork(id string) *network {
	if n := m.anyNetwork(id); n != nil && (!n.ghost || m.knobs.GhostNetwork) {
		return n
	}
	return nil
}

// anyNetwork is network for ghosts, too.
func (m *Machine) anyNetwork(id string) *network {
	for _, n := range m.networks {
		if strings.EqualFold(n.id, id) {
			return n
		}
	}
	return nil
}

// createNetwork creates a network from a document of either version, and the
// virtual switch of an external one. It returns id.
func (m *Machine) createNetwork(id string, document []byte) (string, hns.Code) {
	document, code := api.Version2(document)
	if code != 0 {
		return "", code
	}
	requested, code := api.CheckNetwork(document)
	if code != 0 {
		return "", code
	}
	n := &network{Network: requested, id: id, read: api.Reader{}}
	if slices.ContainsFunc(m.networks, func(o *network) bool { return o.Name == n.Name && n.Name != "" }) {
		return "", hns.NetworkExists
	}
	if !m.deletedAt.IsZero() && time.Since(m.deletedAt) < m.knobs.DeleteSettles {
		return "", hns.ElementNotFound
	}
	n.Policies = nil
	for _, p := range requested.Policies {
		code := api.CheckPolicy(n.Type, m.knobs.version(), p)
		if p.Type == "ProviderAddress" && !m.knobs.ProviderSelects {
			code = hns.InvalidPolicy
		}
		if code != 0 {
			return "", code
		}
		n.Policies = append(n.Policies, api.AsHNSHasIt(p))
	}
	// From here on, only what has to do with the adapter is refused. HNS, too, validates
	// the document before it touches a switch.
	if api.External(n.Type) {
		physical, code := m.adapterFor(n)
		if code != 0 {
			return "", code
		}
		n.adapter = physical.Index
		if m.dead[n.adapter] && m.knobs.DeadRefuses {
			return "", hns.InvalidParameter
		}
		n.Policies = slices.DeleteFunc(n.Policies, func(p hns.Policy) bool { return p.Type == "ProviderAddress" })
		if _, given := api.AdapterName(n.Policies); !given {
			n.Policies = append(n.Policies, api.Policy("NetAdapterName",
				map[string]string{"NetworkAdapterName": physical.Name}))
		}
		if code := m.knobs.CreateFailsAfterBind; code != 0 && m.virtualAdapter(physical.Index) == nil { // no switch yet
			m.bindSwitch(physical)
			m.freeSwitch(physical.Index)
			return "", code
		}
		m.bindSwitch(physical)
	}
	m.networks = append(m.networks, n)
	if n.Type == hns.Overlay {
		m.startOverlay(n)
	}
	m.notify(NetworkCreate, n.id)
	return n.id, 0
}

// startOverlay chooses the MAC of an overlay, which HNS reports later, and
// tells the body.
func (m *Machine) startOverlay(n *network) {
	n.mac = m.newMAC()
	m.afterKnob(drMAC, func() { n.macKnown = true })
	o := Overlay{Network: n.id, Port: api.VXLANPort(n.Policies), MAC: n.mac, Local: m.addressOf(n.adapter),
		MTU: m.adapter(n.adapter).MTU - dataplane.TraitsOf(dataplane.VXLAN{}).Overhead(false)}
	for _, s := range n.Subnets {
		o.VSID = s.VSID
	}
	m.recordError("create the overlay", m.body.Overlay(o, true))
	for _, p := range n.Policies {
		m.applyPolicy(n, p, true)
	}
}

// applyPolicy tells the body that a RemoteSubnetRoute was added or removed.
func (m *Machine) applyPolicy(n *network, p hns.Policy, add bool) {
	if p.Type != "RemoteSubnetRoute" {
		return
	}
	r, code := api.RemoteSubnet(p.Settings)
	if code == 0 {
		m.recordError("carry a remote subnet", m.body.Remote(n.id, r, add))
	}
}

// newMAC returns a random MAC, because several machines may be on one network.
func (m *Machine) newMAC() dataplane.MAC {
	mac := dataplane.MAC{0x00, 0x15, 0x5d}
	rand.Read(mac[3:]) // never fails
	return mac
}

// networkProperties returns the document of a network in its current state, in the form in
// which HNS returns it.
func (m *Machine) networkProperties(n *network) any {
	if n.verbatim != nil {
		return n.verbatim
	}
	policies := slices.Clone(n.Policies)
	if n.macKnown {
		policies = append(policies, api.Policy("DrMacAddress", map[string]string{"Address": api.MAC(n.mac)}))
	}
	if ip := m.managementIP(n); ip.IsValid() && n.Type == hns.Overlay {
		policies = append(policies, api.Policy("ProviderAddress", map[string]string{"ProviderAddress": ip.String()}))
	}
	doc := maps.Clone(n.Document)
	doc["ID"] = json.RawMessage(api.Text(n.id))
	doc["Policies"] = json.RawMessage(api.Text(policies))
	m.readBack(doc)
	doc["SchemaVersion"] = json.RawMessage(`{"Major":2,"Minor":0}`)
	return doc
}

// modifyNetwork adds, removes or updates policies, as the request says.
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
	if most := m.knobs.MaxPolicies; most > 0 && len(r.Settings.Policies) > most {
		return api.InvalidArg
	}
	n.verbatim = nil
	before := slices.Clone(n.Policies) // to undo a request that is refused, and to find what has changed
	for _, p := range r.Settings.Policies {
		code := api.CheckPolicy(n.Type, m.knobs.version(), p)
		if code == 0 && p.IsHostRoute() && r.RequestType == "Add" {
			code = m.knobs.HostRouteRefused
		}
		if code == 0 {
			code = m.changePolicy(n, r.RequestType, p)
		}
		if code != 0 {
			if !m.knobs.PartialBatches {
				n.Policies = before
			}
			m.applyPolicyChanges(n, before)
			return code
		}
	}
	m.applyPolicyChanges(n, before)
	return 0
}

// changePolicy adds, removes or updates one policy. It replaces n.Policies and leaves the
// elements of the old slice alone.
func (m *Machine) changePolicy(n *network, request string, p hns.Policy) hns.Code {
	at := slices.IndexFunc(n.Policies, func(q hns.Policy) bool { return n.read.Clash(p, q) })
	switch request {
	case "Add":
		if at >= 0 && !m.knobs.AcceptDuplicates {
			return hns.PolicyExists
		}
		n.Policies = append(n.Policies, api.AsHNSHasIt(p))
	case "Remove":
		at := slices.IndexFunc(n.Policies, func(q hns.Policy) bool { return n.read.Same(p, q) })
		if at < 0 {
			return hns.PolicyNotFound
		}
		n.Policies = slices.Delete(slices.Clone(n.Policies), at, at+1)
	case "Update":
		if at < 0 {
			return hns.PolicyNotFound
		}
		n.Policies = slices.Clone(n.Policies)
		n.Policies[at] = api.AsHNSHasIt(p)
	default:
		return hns.RequestUnsupported
	}
	return 0
}

// applyPolicyChanges tells the body which policies were added or removed
// compared to before. Policies are compared as text, so an update is a removal
// and an addition.
func (m *Machine) applyPolicyChanges(n *network, before []hns.Policy) {
	old, current := map[string]hns.Policy{}, map[string]hns.Policy{}
	for _, p := range before {
		old[api.Text(p)] = p
	}
	for _, p := range n.Policies {
		current[api.Text(p)] = p
	}
	for key, p := range old {
		if _, ok := current[key]; !ok {
			m.applyPolicy(n, p, false)
		}
	}
	for key, p := range current {
		if _, ok := old[key]; !ok {
			m.applyPolicy(n, p, true)
		}
	}
}

// removeNetwork deletes a network and its endpoints, and the switch if it was
// the last network on it.
func (m *Machine) removeNetwork(n *network) {
	for _, t := range slices.Clone(m.objects[api.EndpointKind]) {
		if t.network == n.id {
			m.removeObject(api.EndpointKind, t)
		}
	}
	m.networks = slices.DeleteFunc(slices.Clone(m.networks), func(o *network) bool { return o == n })
	m.deletedAt = time.Now()
	if n.Type == hns.Overlay {
		m.recordError("remove the overlay", m.body.Overlay(Overlay{Network: n.id}, false))
	}
	if n.adapter != 0 && !slices.ContainsFunc(m.networks, func(o *network) bool { return o.adapter == n.adapter }) {
		m.freeSwitch(n.adapter)
	}
	m.notify(NetworkDelete, n.id)
}
