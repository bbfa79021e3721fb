package hnstest

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"flannel/pkg/hns"
	"flannel/pkg/hns/hnstest/api"
)

// adapter is one of the machine.
type adapter struct {
	hns.Adapter
	physical int    // index of the adapter below, for the virtual one of a switch
	away     config // that it will have after the outage
	known    bool   // HNS has seen its address
	virtual  bool
}

// config is what the user gave an adapter.
type config struct {
	addrs  []hns.Address
	dns    []netip.Addr
	dhcp   bool
	routes []hns.Route
}

// apipa is an address that Windows chooses itself when DHCP has none.
var apipa = netip.MustParsePrefix("169.254.149.216/16")

// Plug gives the machine another adapter; its routes need no Index. It returns the adapter's index. Index and GUID of
// a are chosen where it has none.
func (m *Machine) Plug(a hns.Adapter, routes ...hns.Route) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a.GUID == "" {
		a.GUID = api.NewGUID()
	}
	c := config{addrs: a.Addrs, dns: a.DNS, dhcp: a.DHCP}
	for _, r := range routes {
		r.Index = a.Index
		c.routes = append(c.routes, r)
	}
	index := m.addAdapter(a, 0)
	m.adapter(index).virtual = false
	m.adapter(index).DNS, m.adapter(index).DHCP = c.dns, c.dhcp
	for _, r := range c.routes {
		r.Index = index
		m.createRoute(r)
	}
	return index
}

func (m *Machine) adapter(index int) *adapter {
	for _, a := range m.adapters {
		if a.Index == index {
			return a
		}
	}
	return nil
}

// named finds an adapter by its name.
func (m *Machine) named(name string) *adapter {
	for _, a := range m.adapters {
		if a.Name == name {
			return a
		}
	}
	return nil
}

// UsualMetric is what Windows gives an adapter of 1 Gbit/s.
const UsualMetric = 25

// addAdapter makes one, virtual, with its addresses; parent is that below it.
func (m *Machine) addAdapter(a hns.Adapter, parent int) int {
	addrs := a.Addrs
	a.Addrs = nil
	a.V4Metric, a.V6Metric = cmp.Or(a.V4Metric, UsualMetric), cmp.Or(a.V6Metric, UsualMetric)
	if a.GUID == "" {
		a.GUID = api.NewGUID()
	}
	if a.Index == 0 {
		index, err := m.body.Add(a, parent)
		m.must("add adapter "+a.Name, err)
		a.Index = index
	}
	made := &adapter{Adapter: a, physical: parent, virtual: true}
	m.adapters = append(m.adapters, made)
	for _, ip := range addrs {
		m.giveAddress(made, ip)
	}
	m.tellStack(InterfaceChange)
	return a.Index
}

func (m *Machine) removeAdapter(index int) {
	m.take(m.adapter(index))
	m.adapters = slices.DeleteFunc(slices.Clone(m.adapters), func(a *adapter) bool { return a.Index == index })
	m.must("remove an adapter", m.body.Remove(index))
	m.tellStack(InterfaceChange)
}

// adapterFor is the physical adapter that a network takes.
func (m *Machine) adapterFor(n *network) (*adapter, hns.Code) {
	name, given := api.AdapterName(n.Policies)
	for _, a := range m.adapters {
		if !a.virtual && !a.Loopback && (a.Name == name || !given) {
			return a, 0
		}
	}
	return nil, hns.AdapterNotFound
}

// above is the virtual adapter of the switch on a physical one, or nil.
func (m *Machine) above(physical int) *adapter {
	for _, a := range m.adapters {
		if a.physical == physical {
			return a
		}
	}
	return nil
}

// bindSwitch puts a switch on an adapter: its configuration moves to a new virtual adapter.
func (m *Machine) bindSwitch(physical *adapter) {
	if m.above(physical.Index) != nil {
		return
	}
	// The new adapter is there at once, but has nothing: that is what a user sees in the meantime.
	c := m.take(physical)
	index := m.addAdapter(hns.Adapter{
		Name: "vEthernet (" + physical.Name + ")", Description: "Hyper-V Virtual Ethernet Adapter", MTU: physical.MTU,
		MAC: physical.MAC, Up: true, DHCP: c.dhcp,
	}, physical.Index)
	m.restore(index, c)
}

// freeSwitch takes the switch off an adapter, which gets back what its virtual one had.
func (m *Machine) freeSwitch(physical int) {
	virtual := m.above(physical)
	if virtual == nil {
		return
	}
	c := m.take(virtual)
	m.removeAdapter(virtual.Index)
	m.restore(physical, c)
}

// restore gives an adapter a configuration after the outage, and tells HNS of the address later still.
func (m *Machine) restore(index int, c config) {
	m.adapter(index).away = c
	m.after(outage, func() {
		a := m.adapter(index)
		if a == nil {
			return // removed in between, with what it had coming
		}
		m.give(a, a.away)
		m.after(managementIP, func() { a.known = true })
	})
}

// take takes the configuration from an adapter and ends its connections.
func (m *Machine) take(a *adapter) config {
	c := config{addrs: append(a.Addrs, a.away.addrs...), dns: append(a.DNS, a.away.dns...), dhcp: a.DHCP, routes: a.away.routes}
	a.away = config{}
	for _, r := range slices.Clone(m.routes) {
		if r.Index == a.Index && r.Ours {
			c.routes = append(c.routes, r)
			m.deleteRoute(r)
		}
	}
	for _, ip := range slices.Clone(a.Addrs) {
		m.takeAddress(a, ip.Prefix)
		if m.knobs.KillTCP {
			m.must("cut connections", m.body.Cut(ip.Prefix.Addr()))
		}
	}
	a.DNS, a.known = nil, false
	return c
}

// give brings to an adapter what the knobs leave of a configuration.
func (m *Machine) give(a *adapter, c config) {
	a.away = config{}
	a.DHCP = c.dhcp
	for _, ip := range c.addrs {
		if m.knobs.APIPA && ip.Prefix.Addr().Is4() {
			ip, a.DHCP = hns.Address{Prefix: apipa, Preferred: true}, true
		}
		m.giveAddress(a, ip)
	}
	if !m.knobs.LoseDNS {
		a.DNS = c.dns
	}
	for _, r := range c.routes {
		isDefault := r.Dst.Bits() == 0
		if isDefault && (m.knobs.LoseGateway || m.knobs.APIPA) || !isDefault && m.knobs.LoseRoutes {
			continue
		}
		if r.Index = a.Index; isDefault && m.knobs.LoseMetric {
			r.Metric = 0
		}
		m.createRoute(r)
	}
	m.tellStack(InterfaceChange)
}

// giveAddress adds an address and the routes that come with it. One set by hand ends the search for one by chance.
func (m *Machine) giveAddress(a *adapter, ip hns.Address) hns.Code {
	addr := ip.Prefix.Addr()
	for _, have := range slices.Clone(a.Addrs) {
		if have.Prefix.Addr() == addr {
			return hns.ObjectExists
		}
		if have.Prefix == apipa && addr.Is4() {
			m.takeAddress(a, apipa)
		}
	}
	a.Addrs = append(a.Addrs, ip)
	m.must(fmt.Sprintf("add %s to %s", ip.Prefix, a.Name), m.body.Address(a.Index, ip.Prefix, true))
	for _, dst := range ownRoutes(ip.Prefix) {
		m.routes = append(m.routes, hns.Route{Dst: dst, NextHop: unspecified(addr), Index: a.Index, Metric: 256})
	}
	m.tellStack(AddressChange)
	return 0
}

func (m *Machine) takeAddress(a *adapter, p netip.Prefix) {
	a.Addrs = slices.DeleteFunc(slices.Clone(a.Addrs), func(ip hns.Address) bool { return ip.Prefix == p })
	m.must(fmt.Sprintf("remove %s from %s", p, a.Name), m.body.Address(a.Index, p, false))
	m.routes = slices.DeleteFunc(m.routes, func(r hns.Route) bool {
		return r.Index == a.Index && !r.Ours && slices.Contains(ownRoutes(p), r.Dst)
	})
	m.tellStack(AddressChange)
}

// ownRoutes are the destinations that come with an address: its prefix and itself.
func ownRoutes(p netip.Prefix) []netip.Prefix {
	host := netip.PrefixFrom(p.Addr(), p.Addr().BitLen())
	if p == host {
		return []netip.Prefix{host}
	}
	return []netip.Prefix{p.Masked(), host}
}

func unspecified(like netip.Addr) netip.Addr {
	if like.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// managementIP is the host's address on a network as HNS knows it; the zero Addr: not yet.
func (m *Machine) managementIP(n *network) netip.Addr {
	a := m.above(n.adapter)
	if a == nil || !a.known || n.adapter == 0 {
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
