package hnstest

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"flannel/internal/test/hnstest/api"
	"flannel/pkg/windows/hns"
)

// adapter is a network adapter of the machine: a physical one, the loopback, the virtual
// one of a switch, or that of an endpoint that is attached to the host.
type adapter struct {
	hns.Adapter
	physical int          // of the virtual adapter of a switch: index of the physical one; else 0
	pending  config       // what it will get after the outage
	known    bool         // HNS has seen its address, see managementIP
	virtual  bool         // of a switch or an endpoint
	metrics  [2]int       // fixed ones, of IPv4 and IPv6; 0: automatic
	dnsGiven bool         // DHCP gave the DNS servers of IPv4
	category hns.Category // of the network that it is connected to: see category.go
}

// config is the IP configuration of an adapter.
type config struct {
	addrs  []hns.Address
	dns    []netip.Addr
	given  bool // DHCP gave those of IPv4 in dns
	dhcp   bool
	routes []hns.Route
	metric int // fixed interface metric of IPv4; 0: automatic
	mtu    int
	booted bool // it comes from the persistent store at boot, when no knob loses anything of it
}

// apipa is the address that Windows chooses when no DHCP server answers.
var apipa = netip.MustParsePrefix("169.254.149.216/16")

// Plug adds a physical adapter with routes, and returns its index. Index of the routes is
// ignored: they are the adapter's. An Index or GUID of a that is zero is chosen. A metric
// that is zero is automatic.
func (m *Machine) Plug(a hns.Adapter, routes ...hns.Route) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a.GUID == "" {
		a.GUID = api.NewGUID()
	}
	c := config{addrs: a.Addrs, dns: a.DNS, dhcp: a.DHCP, metric: a.V4Metric, routes: routes}
	metrics := [2]int{a.V4Metric, a.V6Metric}
	index := m.addAdapter(a, 0)
	m.adapter(index).virtual, m.adapter(index).metrics = false, metrics // addAdapter has made it a virtual one
	m.adapter(index).DNS, m.adapter(index).DHCP = c.dns, c.dhcp
	m.stored[a.GUID] = persistentOf(c)
	for _, r := range routes {
		r.Index = index
		m.createRoute(r)
	}
	return index
}

// adapter returns the adapter with that index, or nil.
func (m *Machine) adapter(index int) *adapter {
	for _, a := range m.adapters {
		if a.Index == index {
			return a
		}
	}
	return nil
}

// adapterByName returns the adapter with that name, or nil.
func (m *Machine) adapterByName(name string) *adapter {
	for _, a := range m.adapters {
		if a.Name == name {
			return a
		}
	}
	return nil
}

// UsualMetric is the interface metric that Windows gives an adapter of 1
// Gbit/s.
const UsualMetric = 25

// addAdapter adds a virtual adapter with its addresses and returns its index.
// parent is the index of the physical adapter below it; 0: none.
func (m *Machine) addAdapter(a hns.Adapter, parent int) int {
	addrs := a.Addrs
	a.Addrs = nil
	a.V4Metric, a.V6Metric = cmp.Or(a.V4Metric, UsualMetric), cmp.Or(a.V6Metric, UsualMetric)
	if a.GUID == "" {
		a.GUID = api.NewGUID()
	}
	if a.Index == 0 { // else the body has it already
		index, err := m.body.Add(a, parent)
		m.recordError("add adapter "+a.Name, err)
		a.Index = index
	}
	made := &adapter{Adapter: a, physical: parent, virtual: true}
	m.adapters = append(m.adapters, made)
	for _, ip := range addrs {
		m.addAddress(made, ip)
	}
	m.notifyStack(InterfaceChange)
	return a.Index
}

// removeAdapter removes an adapter, which must exist, with its addresses and routes.
func (m *Machine) removeAdapter(index int) {
	m.takeConfig(m.adapter(index))
	m.adapters = slices.DeleteFunc(slices.Clone(m.adapters), func(a *adapter) bool { return a.Index == index })
	m.recordError("remove an adapter", m.body.Remove(index))
	m.notifyStack(InterfaceChange)
}

// adapterFor returns the physical adapter that a new network uses: the one that its policies
// name, or have the address of, or else the first one. It returns a code if HNS finds none.
func (m *Machine) adapterFor(n *network) (*adapter, hns.Code) {
	name, given := api.AdapterName(n.Policies)
	provider := api.ProviderAddress(n.Policies)
	var found []*adapter
	for _, a := range m.adapters {
		byAddress := !given && provider.IsValid()
		switch { // the first case: no physical adapter, or not the one that the policies ask for
		case a.virtual || a.Loopback || given && a.Name != name || byAddress && m.addressOf(a.Index) != provider:
		case m.knobs.EmptyElsewhere && !given && !byAddress && m.virtualAdapter(a.Index) != nil: // it has a switch
		default:
			found = append(found, a)
		}
	}
	if len(found) == 0 {
		return nil, hns.AdapterNotFound
	}
	if m.kindRefused(n) {
		return nil, hns.AdapterNotFound
	}
	bound := m.virtualAdapter(found[0].Index) != nil // it has a switch
	switch {
	case bound && given && m.knobs.BoundName != 0:
		return nil, m.knobs.BoundName
	// Or an overlay beside networks of another type.
	case bound && !given && !provider.IsValid() && m.knobs.EmptyRefused, n.Type == hns.Overlay && m.hasOtherType(found[0].Index):
		return nil, hns.AdapterNotFound
	}
	return found[0], 0
}

// kindRefused reports whether HNS finds no adapter for a network because of the adapters' kind.
func (m *Machine) kindRefused(n *network) bool {
	kind := m.knobs.AdapterKind
	return kind == hns.Tunnel || kind == hns.WiFi && n.Type == hns.L2Bridge || kind != hns.Ethernet && m.knobs.KindRefused
}

// hasOtherType reports whether an adapter has a network that is not an overlay.
func (m *Machine) hasOtherType(physical int) bool {
	return slices.ContainsFunc(m.networks, func(n *network) bool { return n.adapter == physical && n.Type != hns.Overlay })
}

// virtualAdapter returns the virtual adapter of the switch on a physical one,
// or nil.
func (m *Machine) virtualAdapter(physical int) *adapter {
	for _, a := range m.adapters {
		if a.physical == physical {
			return a
		}
	}
	return nil
}

// bindSwitch creates a switch on an adapter. The adapter's configuration moves
// to a new virtual adapter. Example with the machine of New, Outage 10 s and
// ManagementIP 5 s:
//
//	0 s   CreateNetwork   Ethernet: no address; vEthernet (Ethernet): no address
//	10 s  restoreConfig   vEthernet (Ethernet): 10.99.0.2/24, DNS, default route
//	15 s  known           HNS reports ManagementIP 10.99.0.2
//
// When the last network is deleted, freeSwitch moves the configuration back in
// the same way.
func (m *Machine) bindSwitch(physical *adapter) {
	if m.virtualAdapter(physical.Index) != nil {
		return
	}
	// The new adapter exists at once, but has no addresses during the outage,
	// as on Windows.
	c := m.takeConfig(physical)
	virtual := hns.Adapter{
		Name: "vEthernet (" + physical.Name + ")", GUID: api.NewGUID(), Description: "Hyper-V Virtual Ethernet Adapter",
		MTU: physical.MTU, MAC: physical.MAC, Up: !m.knobs.VirtualDown, DHCP: c.dhcp, Registers: physical.Registers,
	}
	if m.knobs.LoseMTU {
		virtual.MTU = 1500
	}
	m.stored[virtual.GUID] = m.stored[physical.GUID]
	if m.knobs.BecomesDHCP {
		m.stored[virtual.GUID] = hns.Persistent{DHCP: true}
	}
	index := m.addAdapter(virtual, physical.Index)
	if !m.knobs.LosesCategory {
		m.adapter(index).category = physical.category
	}
	m.restoreConfig(index, c)
}

// freeSwitch deletes the switch on an adapter, which gets back the
// configuration of the virtual one.
func (m *Machine) freeSwitch(physical int) {
	virtual := m.virtualAdapter(physical)
	if virtual == nil {
		return
	}
	c := m.takeConfig(virtual)
	m.removeAdapter(virtual.Index)
	if m.dead[physical] {
		delete(m.dead, physical) // the physical adapter has its addresses
		return
	}
	m.restoreConfig(physical, c)
}

// restoreConfig gives an adapter a configuration after the outage. HNS sees the adapter's
// address only after Knobs.ManagementIP more.
func (m *Machine) restoreConfig(index int, c config) {
	m.adapter(index).pending = c
	m.afterKnob(outage, func() {
		a := m.adapter(index)
		if a == nil {
			return // removed meanwhile
		}
		m.giveConfig(a, a.pending)
		m.afterKnob(managementIP, func() { a.known = true })
	})
}

// takeConfig removes the configuration, also a pending one, from an adapter and
// returns it.
func (m *Machine) takeConfig(a *adapter) config {
	c := config{addrs: append(a.Addrs, a.pending.addrs...), dns: append(a.DNS, a.pending.dns...), dhcp: a.DHCP,
		given: a.dnsGiven || a.pending.given, routes: a.pending.routes, metric: a.metrics[0], mtu: a.MTU}
	a.pending = config{}
	for _, r := range slices.Clone(m.routes) {
		if r.Index == a.Index && r.Ours {
			c.routes = append(c.routes, r)
			m.deleteRoute(r)
		}
	}
	for _, ip := range slices.Clone(a.Addrs) {
		m.removeAddress(a, ip.Prefix)
		if m.knobs.KillTCP {
			m.recordError("cut connections", m.body.Cut(ip.Prefix.Addr()))
		}
	}
	a.DNS, a.dnsGiven, a.known = nil, false, false
	return c
}

// giveConfig applies a configuration to an adapter, except for what the knobs
// lose.
func (m *Machine) giveConfig(a *adapter, c config) {
	k := m.knobs
	if c.booted {
		k = Knobs{}
	}
	a.pending = config{}
	if a.physical != 0 && !a.Up { // VirtualDown: the configuration is nowhere, until takeConfig finds it here
		a.pending = c
		return
	}
	if k.BecomesDHCP && !c.dhcp {
		c = leased(c)
	}
	a.DHCP = c.dhcp
	for _, ip := range c.addrs {
		if k.APIPA && ip.Prefix.Addr().Is4() {
			ip, a.DHCP = hns.Address{Prefix: apipa, Preferred: true}, true
		}
		m.addAddress(a, ip)
	}
	if !k.LoseDNS {
		a.DNS, a.dnsGiven = c.dns, c.given
	}
	if !k.LoseMTU {
		a.MTU = c.mtu
	}
	if !k.LoseMetric {
		m.setMetric(a, false, c.metric)
	}
	for _, r := range c.routes {
		isDefault := r.Dst.Bits() == 0
		if isDefault && (k.LoseGateway || k.APIPA) || !isDefault && k.LoseRoutes {
			continue
		}
		if r.Index = a.Index; isDefault && k.LoseMetric {
			r.Metric = 0
		}
		m.createRoute(r)
	}
	m.notifyStack(InterfaceChange)
}

// addAddress adds an address and its routes. An IPv4 address also removes
// apipa.
func (m *Machine) addAddress(a *adapter, ip hns.Address) hns.Code {
	addr := ip.Prefix.Addr()
	for _, old := range slices.Clone(a.Addrs) {
		if old.Prefix.Addr() == addr {
			return hns.ObjectExists
		}
		if old.Prefix == apipa && addr.Is4() {
			m.removeAddress(a, apipa)
		}
	}
	a.Addrs = append(a.Addrs, ip)
	if a.physical == 0 || m.knobs.VlanLost == 0 { // else the host reaches nobody by the switch
		m.recordError(fmt.Sprintf("add %s to %s", ip.Prefix, a.Name), m.body.Address(a.Index, ip.Prefix, true))
	}
	for _, dst := range ownRoutes(ip.Prefix) {
		m.routes = append(m.routes, hns.Route{Dst: dst, NextHop: unspecified(addr), Index: a.Index, Metric: 256})
	}
	m.notifyStack(AddressChange)
	return 0
}

// removeAddress removes an address and the routes that Windows made for it.
func (m *Machine) removeAddress(a *adapter, p netip.Prefix) {
	a.Addrs = slices.DeleteFunc(slices.Clone(a.Addrs), func(ip hns.Address) bool { return ip.Prefix == p })
	m.recordError(fmt.Sprintf("remove %s from %s", p, a.Name), m.body.Address(a.Index, p, false))
	m.routes = slices.DeleteFunc(m.routes, func(r hns.Route) bool {
		return r.Index == a.Index && !r.Ours && slices.Contains(ownRoutes(p), r.Dst)
	})
	m.notifyStack(AddressChange)
}

// ownRoutes returns the destinations of the routes that Windows creates for an
// address: its prefix and the address itself.
func ownRoutes(p netip.Prefix) []netip.Prefix {
	host := netip.PrefixFrom(p.Addr(), p.Addr().BitLen())
	if p == host {
		return []netip.Prefix{host}
	}
	return []netip.Prefix{p.Masked(), host}
}

// unspecified returns 0.0.0.0 or ::, in the family of an address.
func unspecified(like netip.Addr) netip.Addr {
	if like.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// hasHostEndpoint reports whether an endpoint of the network is attached to the host.
func (m *Machine) hasHostEndpoint(n *network) bool {
	return slices.ContainsFunc(m.objects[api.EndpointKind], func(o *object) bool { return o.network == n.id && o.state == attachedState })
}

// managementIP returns the host's address on a network as HNS knows it;
// invalid: HNS does not know it yet.
func (m *Machine) managementIP(n *network) netip.Addr {
	a := m.virtualAdapter(n.adapter)
	if m.dead[n.adapter] && m.knobs.FirstIP { // the virtual adapter has no address, and HNS says the one of before
		return n.first
	}
	if a == nil || !a.known || n.adapter == 0 {
		return netip.Addr{}
	}
	if m.knobs.ManagementIPAfterEndpoint && n.Type == hns.L2Bridge && !m.hasHostEndpoint(n) {
		return netip.Addr{}
	}
	if m.knobs.FirstIP && n.first.IsValid() {
		return n.first
	}
	for _, ip := range a.Addrs {
		if ip.Prefix.Addr().Is4() {
			n.first = ip.Prefix.Addr()
			return n.first
		}
	}
	return netip.Addr{}
}
