package hnstest

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"flannel/internal/test/hnstest/api"
	"flannel/pkg/windows/hns"
)

// This file has the methods of hns.Stack, except for those of the registry and DHCP
// (boot.go), of DNS (dns.go) and of categories (category.go). The log has them by the names
// of Windows' functions.

// family is one address family on one adapter, by the adapter's index.
type family struct {
	index int
	v6    bool
}

// Adapters returns the machine's adapters.
func (m *Machine) Adapters() ([]hns.Adapter, error) {
	var adapters []hns.Adapter
	_, code := m.call("GetAdaptersAddresses", nil, false, func() (string, hns.Code) {
		for _, a := range m.adapters {
			c := a.Adapter
			if a.physicalKind() {
				if c.Kind = m.knobs.AdapterKind; c.Kind == hns.Team {
					c.Description = "Microsoft Network Adapter Multiplexor Driver"
				}
			}
			c.Addrs, c.DNS = slices.Clone(a.Addrs), slices.Clone(a.DNS)
			adapters = append(adapters, c)
		}
		return "", 0
	})
	return adapters, api.Problem("GetAdaptersAddresses", code)
}

// physicalKind reports whether the knobs say of which kind the adapter is.
func (a *adapter) physicalKind() bool { return !a.Loopback && !a.Virtual() }

// VLAN returns the VLAN of an adapter; 0: none.
func (m *Machine) VLAN(guid string) (vlan int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range m.adapters {
		if a.GUID == guid && a.physicalKind() {
			vlan = m.knobs.VlanLost
		}
	}
	return vlan
}

// Routes returns all routes.
func (m *Machine) Routes() ([]hns.Route, error) {
	var routes []hns.Route
	_, code := m.call("GetIpForwardTable2", nil, false, func() (string, hns.Code) {
		routes = slices.Clone(m.routes)
		return "", 0
	})
	return routes, api.Problem("GetIpForwardTable2", code)
}

// BestRoute returns the route with the longest match, of several the one with
// the lowest metric, and the source address.
func (m *Machine) BestRoute(dst netip.Addr) (hns.Route, netip.Addr, error) {
	var best hns.Route
	var source netip.Addr
	_, code := m.call("GetBestRoute2", []string{dst.String()}, false, func() (string, hns.Code) {
		for _, r := range m.routes {
			if r.Dst.Contains(dst) && (!best.Dst.IsValid() || r.Dst.Bits() > best.Dst.Bits() ||
				r.Dst.Bits() == best.Dst.Bits() && m.metric(r) < m.metric(best)) {
				best = r
			}
		}
		a := m.adapter(best.Index)
		if a == nil { // no route: Index is 0
			return "", api.Unreachable
		}
		source = sourceAddress(a, best, dst)
		if !source.IsValid() {
			return "", api.Unreachable
		}
		return "", 0
	})
	return best, source, api.Problem("GetBestRoute2", code)
}

// metric returns the sum of the route's and its adapter's metric.
func (m *Machine) metric(r hns.Route) int {
	a := m.adapter(r.Index)
	switch {
	case a == nil:
		return r.Metric
	case r.Dst.Addr().Is4():
		return r.Metric + a.V4Metric
	}
	return r.Metric + a.V6Metric
}

// sourceAddress returns the adapter's source address for a route: one in the
// subnet of the next hop, or else the first of the family.
func sourceAddress(a *adapter, r hns.Route, dst netip.Addr) netip.Addr {
	hop := r.NextHop
	if hop.IsUnspecified() {
		hop = dst
	}
	var fallback netip.Addr
	for _, ip := range a.Addrs {
		addr := ip.Prefix.Addr()
		switch {
		case addr.Is4() != dst.Is4():
		case ip.Prefix.Contains(hop):
			return addr
		case !fallback.IsValid():
			fallback = addr
		}
	}
	return fallback
}

// AddRoute adds a route, or sets the metric of an existing one.
func (m *Machine) AddRoute(r hns.Route) error {
	r.Ours = true
	code := m.ChangeRoute("CreateIpForwardEntry2", r)
	if code == hns.ObjectExists {
		code = m.ChangeRoute("SetIpForwardEntry2", r)
	}
	return api.Problem("CreateIpForwardEntry2", code)
}

// DeleteRoute deletes a route. A missing route is not an error.
func (m *Machine) DeleteRoute(r hns.Route) error {
	if code := m.ChangeRoute("DeleteIpForwardEntry2", r); code != hns.ElementNotFound {
		return api.Problem("DeleteIpForwardEntry2", code)
	}
	return nil
}

// ChangeRoute calls CreateIpForwardEntry2, SetIpForwardEntry2 or
// DeleteIpForwardEntry2, for programs in Wine, too.
func (m *Machine) ChangeRoute(function string, r hns.Route) hns.Code {
	_, code := m.call(function, []string{m.routeText(r)}, true, func() (string, hns.Code) {
		switch function {
		case "CreateIpForwardEntry2":
			return "", m.createRoute(r)
		case "SetIpForwardEntry2":
			return "", m.setRoute(r)
		}
		return "", m.deleteRoute(r)
	})
	return code
}

// routeText returns a route as text for the log. The caller does not hold the lock; so for
// changedSettings and familyText.
func (m *Machine) routeText(r hns.Route) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	name := "?"
	if a := m.adapter(r.Index); a != nil {
		name = a.Name
	}
	return fmt.Sprintf("%s via %s on %s metric %d", r.Dst, r.NextHop, name, r.Metric)
}

// routeIndex returns the index in m.routes of the route with the same
// destination, next hop and adapter, or -1.
func (m *Machine) routeIndex(r hns.Route) int {
	return slices.IndexFunc(m.routes, func(o hns.Route) bool {
		return o.Dst == r.Dst && o.NextHop == r.NextHop && o.Index == r.Index
	})
}

// createRoute adds a route. The caller holds the lock; so for setRoute, deleteRoute,
// settings and setMetric.
func (m *Machine) createRoute(r hns.Route) hns.Code {
	switch {
	case m.adapter(r.Index) == nil:
		return hns.ElementNotFound
	case !r.Dst.IsValid() || r.Dst.Masked() != r.Dst || r.NextHop.Is4() != r.Dst.Addr().Is4():
		return api.InvalidArg
	case m.routeIndex(r) >= 0:
		return hns.ObjectExists
	}
	m.routes = append(m.routes, r)
	m.recordError("add route "+r.Dst.String(), m.body.Route(r, true))
	m.notifyStack(RouteChange)
	return 0
}

// setRoute changes the metric of a route.
func (m *Machine) setRoute(r hns.Route) hns.Code {
	at := m.routeIndex(r)
	if at < 0 {
		return hns.ElementNotFound
	}
	if m.routes[at].Metric != r.Metric {
		m.recordError("change a route", m.body.Route(m.routes[at], false)) // delete it with its old metric
		m.routes[at].Metric = r.Metric
		m.recordError("change a route", m.body.Route(m.routes[at], true)) // and add it again
		m.notifyStack(RouteChange)
	}
	return 0
}

func (m *Machine) deleteRoute(r hns.Route) hns.Code {
	at := m.routeIndex(r)
	if at < 0 {
		return hns.ElementNotFound
	}
	gone := m.routes[at]
	m.routes = slices.Delete(slices.Clone(m.routes), at, at+1)
	m.recordError("delete route "+r.Dst.String(), m.body.Route(gone, false))
	m.notifyStack(RouteChange)
	return 0
}

// Interface returns the settings of a family on an adapter.
func (m *Machine) Interface(index int, v6 bool) (i hns.Interface, err error) {
	_, code := m.call("GetIpInterfaceEntry", []string{m.familyText(index, v6)}, false, func() (string, hns.Code) {
		a := m.adapter(index)
		if a == nil {
			return "", hns.ElementNotFound
		}
		i = m.settings(a, v6)
		return "", 0
	})
	return i, api.Problem("GetIpInterfaceEntry", code)
}

func (m *Machine) settings(a *adapter, v6 bool) hns.Interface {
	i := hns.Interface{Forwarding: m.forward[family{a.Index, v6}], Metric: a.metrics[0], MTU: a.MTU}
	if v6 {
		i.Metric = a.metrics[1]
	}
	return i
}

// SetInterface changes the settings of a family on an adapter.
func (m *Machine) SetInterface(index int, v6 bool, to hns.Interface) error {
	_, code := m.call("SetIpInterfaceEntry", []string{m.familyText(index, v6) + m.changedSettings(index, v6, to)}, true, func() (string, hns.Code) {
		a := m.adapter(index)
		if a == nil {
			return "", hns.ElementNotFound
		}
		if m.settings(a, v6).Forwarding != to.Forwarding {
			m.forward[family{index, v6}] = to.Forwarding
			m.recordError("set forwarding", m.body.Forwarding(index, v6, to.Forwarding))
		}
		m.setMetric(a, v6, to.Metric)
		a.MTU = to.MTU
		m.notifyStack(InterfaceChange)
		return "", 0
	})
	return api.Problem("SetIpInterfaceEntry", code)
}

// setMetric sets the fixed interface metric of a family; 0: automatic.
func (m *Machine) setMetric(a *adapter, v6 bool, metric int) {
	if v6 {
		a.metrics[1], a.V6Metric = metric, cmp.Or(metric, UsualMetric)
		return
	}
	a.metrics[0], a.V4Metric = metric, cmp.Or(metric, UsualMetric)
}

// changedSettings returns what SetInterface changes, as text.
func (m *Machine) changedSettings(index int, v6 bool, to hns.Interface) (text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.adapter(index)
	if a == nil {
		return ""
	}
	old := m.settings(a, v6)
	if old.Forwarding != to.Forwarding {
		text += fmt.Sprintf(" forwarding=%t", to.Forwarding)
	}
	if old.Metric != to.Metric {
		text += fmt.Sprintf(" metric=%d", to.Metric)
	}
	if old.MTU != to.MTU {
		text += fmt.Sprintf(" mtu=%d", to.MTU)
	}
	return text
}

func (m *Machine) familyText(index int, v6 bool) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	text := "IPv4"
	if v6 {
		text = "IPv6"
	}
	if a := m.adapter(index); a != nil {
		text += " on " + a.Name
	}
	return text
}

// AddAddress adds a static address to an adapter.
func (m *Machine) AddAddress(index int, address netip.Prefix) error {
	_, code := m.call("CreateUnicastIpAddressEntry", []string{address.String()}, true, func() (string, hns.Code) {
		a := m.adapter(index)
		if a == nil {
			return "", hns.ElementNotFound
		}
		return "", m.addAddress(a, hns.Address{Prefix: address, Manual: true, Preferred: true})
	})
	return api.Problem("CreateUnicastIpAddressEntry", code)
}

// DeleteAddress deletes an address. A missing one is not an error.
func (m *Machine) DeleteAddress(index int, address netip.Addr) error {
	_, code := m.call("DeleteUnicastIpAddressEntry", []string{address.String()}, true, func() (string, hns.Code) {
		a := m.adapter(index)
		if a == nil {
			return "", hns.ElementNotFound
		}
		for _, ip := range a.Addrs {
			if ip.Prefix.Addr() == address {
				m.removeAddress(a, ip.Prefix)
				return "", 0
			}
		}
		return "", hns.ElementNotFound
	})
	if code == hns.ElementNotFound {
		return nil
	}
	return api.Problem("DeleteUnicastIpAddressEntry", code)
}

// Watch calls changed after each change of adapters, addresses or routes, each time in a
// goroutine of its own, until stop is called.
func (m *Machine) Watch(changed func()) (stop func(), err error) {
	_, code := m.call("NotifyRouteChange2", nil, false, func() (string, hns.Code) {
		stop = m.watch(true, changed)
		return "", 0
	})
	return stop, api.Problem("NotifyRouteChange2", code)
}
