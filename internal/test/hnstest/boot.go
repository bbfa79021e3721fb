package hnstest

import (
	"fmt"
	"net/netip"
	"slices"

	"flannel/internal/test/hnstest/api"
	"flannel/pkg/windows/hns"
)

// persistentOf returns what the registry holds for an adapter with this
// configuration.
func persistentOf(c config) hns.Persistent {
	p := hns.Persistent{DHCP: c.dhcp, Metric: c.metric}
	if c.dhcp {
		return p
	}
	for _, a := range c.addrs {
		if a.Prefix.Addr().Is4() && a.Manual {
			p.Addrs = append(p.Addrs, a.Prefix)
		}
	}
	for _, r := range c.routes {
		if r.Dst.Bits() == 0 && r.Dst.Addr().Is4() {
			p.Gateways = append(p.Gateways, hns.Gateway{Addr: r.NextHop, Metric: r.Metric})
		}
	}
	return p
}

// The host numbers of the lease and of the DNS server that the DHCP server of
// every subnet gives.
const (
	leaseHost = 150
	dnsHost   = 53
)

// leased returns the configuration that DHCP gives instead of the static one c: an
// address of the same subnet, the same gateway with metric 0, another DNS
// server. IPv6 addresses stay.
func leased(c config) config {
	out := config{dhcp: true, given: true, mtu: c.mtu}
	for _, a := range c.addrs {
		switch ip := a.Prefix.Addr(); {
		case !ip.Is4():
			out.addrs = append(out.addrs, a)
		case !out.dhcpHas4():
			b := ip.As4()
			b[3] = leaseHost
			out.addrs = append(out.addrs, hns.Address{Prefix: netip.PrefixFrom(netip.AddrFrom4(b), a.Prefix.Bits()), Preferred: true})
			b[3] = dnsHost
			out.dns = append(out.dns, netip.AddrFrom4(b))
		}
	}
	for _, r := range c.routes {
		if r.Dst.Bits() == 0 {
			r.Metric = 0
			out.routes = append(out.routes, r)
		}
	}
	return out
}

// dhcpHas4 reports whether the configuration, made by DHCP, has an IPv4 address.
func (c config) dhcpHas4() bool {
	return slices.ContainsFunc(c.addrs, func(a hns.Address) bool { return a.Prefix.Addr().Is4() })
}

// Reboot restarts the machine. All programs end (the test closes those that
// live in its own process). HNS keeps its persistent networks, without
// endpoints, and the IP stack what is in the registry. DNS servers are there,
// too. What the adapters get takes Knobs.Outage. See Knobs.RebootForgets,
// DeadSwitch and ChangedGUID.
func (m *Machine) Reboot() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.boots++
	clear(m.handles) // of all programs
	for _, l := range m.listeners {
		l.ended = true
	}
	m.wakeListeners()
	for _, t := range slices.Clone(m.objects[api.EndpointKind]) {
		m.removeObject(api.EndpointKind, t)
	}
	lost := map[int]config{} // of virtual adapters: what they had, by physical adapter
	for _, a := range slices.Clone(m.adapters) {
		if a.Loopback {
			continue
		}
		c := m.takeConfig(a)
		a.metrics, a.pending = [2]int{}, config{}
		m.forward[family{a.Index, false}], m.forward[family{a.Index, true}] = false, false
		if owner := m.hostOf(a); c.has() {
			lost[owner] = c
		}
	}
	m.waiting = nil
	for _, n := range slices.Clone(m.networks) {
		if n.NonPersistent || n.ghost {
			// As if dead, so that removeNetwork frees the switch and moves no configuration: bootAdapter gives it.
			m.dead[n.adapter] = m.dead[n.adapter] || n.adapter != 0
			m.removeNetwork(n)
		}
	}
	clear(m.dead)
	for _, a := range slices.Clone(m.adapters) {
		if !a.Loopback && !a.virtual {
			m.bootAdapter(a, lost[a.Index])
		}
	}
}

// hostOf returns the index of the physical adapter below an adapter, or its own.
func (m *Machine) hostOf(a *adapter) int {
	if a.physical != 0 {
		return a.physical
	}
	return a.Index
}

// has reports whether there is anything to restore.
func (c config) has() bool { return len(c.addrs) > 0 }

// bootAdapter gives a physical adapter, or the virtual one on it, what the
// registry has for it. before is what the host had on it.
func (m *Machine) bootAdapter(a *adapter, before config) {
	virtual := m.virtualAdapter(a.Index)
	if m.knobs.ChangedGUID {
		old := a.GUID
		a.GUID = api.NewGUID()
		m.stored[a.GUID] = m.stored[old]
	}
	if virtual == nil {
		m.restoreConfig(a.Index, m.atBoot(a, before))
		return
	}
	virtual.Up = true // VirtualDown is over
	if m.knobs.DeadSwitch || m.knobs.ChangedGUID {
		virtual.Up, m.dead[a.Index] = false, true
		m.restoreConfig(a.Index, m.atBoot(a, before))
		return
	}
	if m.knobs.RebootForgets {
		m.stored[virtual.GUID] = hns.Persistent{DHCP: true}
	}
	m.restoreConfig(virtual.Index, m.atBoot(virtual, before))
}

// atBoot returns the configuration that an adapter gets at boot. IPv6 addresses
// and DNS servers are those of before.
func (m *Machine) atBoot(a *adapter, before config) config {
	p := m.stored[a.GUID]
	c := config{dhcp: p.DHCP, dns: before.dns, given: before.given, metric: p.Metric, mtu: a.MTU, booted: true}
	if p.DHCP && len(before.addrs) > 0 {
		c = leased(before)
		c.booted = true
		return c
	}
	for _, prefix := range p.Addrs {
		c.addrs = append(c.addrs, hns.Address{Prefix: prefix, Manual: true, Preferred: true})
	}
	for _, address := range before.addrs {
		if address.Prefix.Addr().Is6() {
			c.addrs = append(c.addrs, address)
		}
	}
	for _, g := range p.Gateways {
		c.routes = append(c.routes, hns.Route{Dst: netip.PrefixFrom(netip.IPv4Unspecified(), 0), NextHop: g.Addr,
			Index: a.Index, Metric: g.Metric, Ours: true})
	}
	if p.MTU != 0 {
		c.mtu = p.MTU
	}
	return c
}

// BootID returns another text after each Reboot.
func (m *Machine) BootID() (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return fmt.Sprintf("boot %d", m.boots), nil
}

// Persistent returns what the registry has for an adapter.
func (m *Machine) Persistent(index int) (p hns.Persistent, err error) {
	_, code := m.call("RegQueryValueEx", []string{m.familyText(index, false)}, false, func() (string, hns.Code) {
		a := m.adapter(index)
		if a == nil {
			return "", hns.ElementNotFound
		}
		var found bool
		if p, found = m.stored[a.GUID]; !found {
			return "", hns.FileNotFound
		}
		return "", 0
	})
	return p, api.Problem("RegQueryValueEx", code)
}

// SetPersistent writes the registry, and tells the DHCP client if that turns
// DHCP on or off. See Knobs.StoredOnly.
func (m *Machine) SetPersistent(index int, p hns.Persistent) error {
	what := fmt.Sprintf("%s DHCP %t %v %v metric %d MTU %d", m.familyText(index, false), p.DHCP, p.Addrs, p.Gateways,
		p.Metric, p.MTU)
	_, code := m.call("DhcpNotifyConfigChange", []string{what}, true, func() (string, hns.Code) {
		a := m.adapter(index)
		if a == nil {
			return "", hns.ElementNotFound
		}
		m.stored[a.GUID] = p
		switch {
		case m.knobs.StoredOnly: // the adapter stays as it is
		case p.DHCP:
			a.DHCP = true // no server answers
		case a.DHCP:
			m.applyPersistent(a, p)
		}
		return "", 0
	})
	return api.Problem("DhcpNotifyConfigChange", code)
}

// applyPersistent turns DHCP off: its leases are gone, and the stored addresses
// and gateways are there.
func (m *Machine) applyPersistent(a *adapter, p hns.Persistent) {
	a.DHCP = false
	for _, ip := range slices.Clone(a.Addrs) {
		if ip.Prefix.Addr().Is4() && !ip.Manual {
			m.removeAddress(a, ip.Prefix)
		}
	}
	for _, r := range slices.Clone(m.routes) {
		if r.Index == a.Index && r.Ours && r.Dst.Bits() == 0 && r.Dst.Addr().Is4() {
			m.deleteRoute(r)
		}
	}
	for _, prefix := range p.Addrs {
		m.addAddress(a, hns.Address{Prefix: prefix, Manual: true, Preferred: true})
	}
	for _, g := range p.Gateways {
		m.createRoute(hns.Route{Dst: netip.PrefixFrom(netip.IPv4Unspecified(), 0), NextHop: g.Addr, Index: a.Index,
			Metric: g.Metric, Ours: true})
	}
	m.notifyStack(InterfaceChange)
}

// Stored returns the registry's configuration of the adapter with that name.
func (h Admin) Stored(name string) (p hns.Persistent) {
	_ = h.adapter(name, func(a *adapter) { p = h.m.stored[a.GUID] })
	return p
}

// Configure configures IPv4 on the adapter with that name as an administrator
// does, in the registry and at once (after Knobs.Outage).
func (h Admin) Configure(name string, p hns.Persistent) error {
	return h.adapter(name, func(a *adapter) {
		c := h.m.takeConfig(a)
		h.m.stored[a.GUID] = p
		h.m.restoreConfig(a.Index, h.m.atBoot(a, c))
	})
}
