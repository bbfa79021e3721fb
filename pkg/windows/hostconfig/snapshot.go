package hostconfig

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
	"flannel/pkg/windows/hns"
)

// Snapshot is what the host had on an adapter when nothing was missing. newSnapshot
// takes it, missing compares it with what the adapter has now, and restore.go
// restores the difference. A Snapshot is not changed: without and static4 return
// copies.
type Snapshot struct {
	Written   time.Time     // in whole seconds; with AtBoot, it identifies the snapshot (see holds)
	Adapter   string        // name of the physical adapter
	GUID      string        // of the physical adapter; it stays when the adapter is renamed
	MAC       dataplane.MAC `json:",omitzero"`  // of the physical adapter; it stays when the GUID changes
	AtBoot    bool          `json:",omitempty"` // it is the LastGood of an earlier boot
	DHCP      bool
	V4Metric  int `json:",omitempty"` // of the interface, without that of routes; 0: automatic or unknown
	V6Metric  int `json:",omitempty"`
	MTU       int `json:",omitempty"` // bytes; 0: unknown
	Addresses []SavedAddress
	Routes    []SavedRoute `json:",omitempty"` // made by programs, which include the DHCP client
	DNS       []netip.Addr `json:",omitempty"` // with DHCP, only former versions wrote it, with those that DHCP gave: see servers
	ManualDNS []netip.Addr `json:",omitempty"` // with DHCP: those in use that somebody has set
}

// newSnapshot returns what host has: the adapter with the host's addresses.
// physical is the same adapter, or the one behind it. The error IsUnknown.
func (k *Keeper) newSnapshot(host, physical hns.Adapter, routes []hns.Route) (*Snapshot, error) {
	s := &Snapshot{Written: time.Now().UTC().Truncate(time.Second), Adapter: physical.Name, GUID: physical.GUID, MAC: physical.MAC,
		DHCP: host.DHCP, DNS: host.DNS, MTU: host.MTU}
	if host.DHCP { // SetDNS would make those that DHCP gave manual ones for good
		servers, err := k.stack.ManualDNS(host.Index)
		if err != nil {
			return nil, reconcile.Unknown(fmt.Errorf("read the DNS servers that were set on %s: %w", host.Name, err))
		}
		// One that the host does not use is nothing to restore, such as one of IPv6 while IPv6 is off on the adapter.
		servers = slices.DeleteFunc(servers, func(a netip.Addr) bool { return !slices.Contains(host.DNS, a) })
		s.DNS, s.ManualDNS = nil, servers
	}
	// The list of adapters does not say whether a metric is automatic. An error
	// means that it is unknown.
	v4, _ := k.stack.Interface(host.Index, false)
	v6, _ := k.stack.Interface(host.Index, true)
	s.V4Metric, s.V6Metric = v4.Metric, v6.Metric
	if host.Index != physical.Index {
		// The MTU that Windows chose for a virtual adapter must not be set on the
		// physical one, but one that somebody fixed.
		stored, _ := k.stack.Persistent(host.Index)
		s.MTU = stored.MTU
	}
	for _, a := range Addresses(host) {
		if !a.Temporary {
			s.Addresses = append(s.Addresses, SavedAddress{a.Prefix, a.Manual})
		}
	}
	for _, r := range routes {
		if r.Index == host.Index && r.Ours {
			s.Routes = append(s.Routes, SavedRoute{r.Dst, r.NextHop, r.Metric})
		}
	}
	return s, nil
}

// servers returns the DNS servers that are restored: those that DHCP gave are not.
func (s *Snapshot) servers() []netip.Addr {
	if s.DHCP {
		return s.ManualDNS
	}
	return s.DNS
}

// static returns the manual IPv4 addresses if the adapter had no DHCP; nil: DHCP
// configures it.
func (s *Snapshot) static() (addrs []netip.Prefix) {
	for _, a := range s.Addresses {
		if !s.DHCP && a.Manual && a.Prefix.Addr().Is4() {
			addrs = append(addrs, a.Prefix)
		}
	}
	return addrs
}

// gateways returns the next hops of the IPv4 default routes.
func (s *Snapshot) gateways() (all []hns.Gateway) {
	for _, r := range s.Routes {
		if r.Dst.Bits() == 0 && r.Dst.Addr().Is4() && !r.NextHop.IsUnspecified() {
			all = append(all, hns.Gateway{Addr: r.NextHop, Metric: r.Metric})
		}
	}
	return all
}

// becameDHCP reports whether DHCP configures an adapter that was configured
// manually. That is never somebody's decision while a Snapshot exists: the
// adapter of a new switch may come back so (ovn-kubernetes#2530,
// microsoft/SDN#498), also after each boot (calico#4631).
func (s *Snapshot) becameDHCP(host hns.Adapter) bool { return host.DHCP && len(s.static()) > 0 }

// isLease reports whether an address of the adapter came from DHCP, although the
// adapter was configured manually.
func (s *Snapshot) isLease(a hns.Address) bool {
	return len(s.static()) > 0 && a.Prefix.Addr().Is4() && !a.Manual
}

// without returns a copy that lacks the routes by a gateway into some networks. flanneld makes
// no other routes into the pod networks, so on-link ones are of other programs, and stay.
func (s *Snapshot) without(networks []netip.Prefix) *Snapshot {
	c := *s
	c.Routes = slices.DeleteFunc(slices.Clone(s.Routes), func(r SavedRoute) bool {
		return !r.NextHop.IsUnspecified() && dataplane.Inside(r.Dst, networks)
	})
	return &c
}

// equal reports whether two snapshots hold the same settings, whenever they
// were taken. MAC and AtBoot do not count. A nil Snapshot equals none.
func (s *Snapshot) equal(o *Snapshot) bool {
	return s != nil && o != nil && s.Adapter == o.Adapter && s.GUID == o.GUID && s.DHCP == o.DHCP &&
		s.V4Metric == o.V4Metric && s.V6Metric == o.V6Metric && s.MTU == o.MTU && slices.Equal(s.Addresses, o.Addresses) && slices.Equal(s.Routes, o.Routes) &&
		slices.Equal(s.DNS, o.DNS) && slices.Equal(s.ManualDNS, o.ManualDNS)
}

// physical returns the physical adapter of the snapshot. The GUID counts before the
// name, which another adapter may have by now. If none has the GUID or the name, a
// driver was installed again, and the MAC address leads to the adapter.
func (s *Snapshot) physical(adapters []hns.Adapter) (a hns.Adapter, found bool) {
	for _, matches := range []func(hns.Adapter) bool{
		func(a hns.Adapter) bool { return a.GUID == s.GUID && a.GUID != "" },
		func(a hns.Adapter) bool { return a.Name == s.Adapter && !a.Virtual() },
		func(a hns.Adapter) bool {
			return a.MAC == s.MAC && a.MAC != (dataplane.MAC{}) && !a.Virtual() && !a.Loopback
		},
	} {
		if a, found = find(adapters, matches); found {
			break
		}
	}
	return a, found
}

// isOf reports whether the snapshot is of a physical adapter, one of adapters; s may be
// nil.
func (s *Snapshot) isOf(physical hns.Adapter, adapters []hns.Adapter) bool {
	if s == nil {
		return false
	}
	a, found := s.physical(adapters)
	return found && a.Index == physical.Index
}

// hostAdapter returns the adapter that has, or will get, the saved settings. Its
// error is a dataplane.WaitError.
func (s *Snapshot) hostAdapter(adapters []hns.Adapter, networks []hns.Network) (hns.Adapter, error) {
	physical, found := s.physical(adapters)
	if !found {
		return hns.Adapter{}, dataplane.Waiting(CauseNoAdapter, "the adapter %s to appear", s.Adapter)
	}
	host, found := HostAdapter(adapters, physical, IsBound(networks, physical, adapters))
	if !found {
		return hns.Adapter{}, dataplane.Waiting(CauseNoAdapter, "the virtual adapter that replaces %s", s.Adapter)
	}
	return host, nil
}

// losses are the settings of a Snapshot that the adapter does not have.
type losses struct {
	manual []netip.Prefix // addresses set by hand: nobody else restores them
	leased []netip.Prefix // IPv4 addresses from DHCP
	routes []SavedRoute
	dns    []netip.Addr
	// settings says that DHCP is on and was off, that a lease remains, or that
	// the interface's metric or MTU differs.
	settings bool
}

// addresses returns all addresses that are missing.
func (l losses) addresses() []netip.Prefix { return slices.Concat(l.manual, l.leased) }

// beyondAddresses reports whether something else than addresses is missing.
func (l losses) beyondAddresses() bool { return len(l.routes)+len(l.dns) > 0 || l.settings }

// none reports whether nothing is missing.
func (l losses) none() bool { return len(l.addresses()) == 0 && !l.beyondAddresses() }

// has reports whether the snapshot has an address of an adapter.
func (s *Snapshot) has(a hns.Address) bool {
	return slices.ContainsFunc(s.Addresses, func(saved SavedAddress) bool { return saved.Prefix.Addr() == a.Prefix.Addr() })
}

// hasManual reports whether an address was set by hand; s may be nil.
func (s *Snapshot) hasManual() bool {
	return s != nil && slices.ContainsFunc(s.Addresses, func(a SavedAddress) bool { return a.Manual })
}

// missing returns what host does not have of the snapshot. An address family in
// which the adapter has addresses, but none of the saved ones, was reconfigured
// by somebody: nothing is missing in it. A lease in the place of a static address
// is nobody's decision. IPv6 addresses that routers announce return by
// themselves.
//
// Example: 10.99.0.2/24 was saved. If the adapter has 10.99.0.2 and 10.99.0.7,
// nothing is missing; with 10.99.0.7 alone, nothing either, nor any IPv4 route;
// without an IPv4 address, with 169.254.3.4 alone, or with the lease 10.99.0.150
// although 10.99.0.2 was static, 10.99.0.2/24 is missing.
func (s *Snapshot) missing(host hns.Adapter, routes []hns.Route) (l losses) {
	var hasSaved, hasOther [2]bool // IPv4, IPv6
	hasLease := false
	for _, a := range Addresses(host) {
		family := familyIndex(a.Prefix.Addr())
		switch {
		case s.has(a):
			hasSaved[family] = true
		case s.isLease(a):
			hasLease = true
		default:
			hasOther[family] = true
		}
	}
	replaced := func(a netip.Addr) bool { family := familyIndex(a); return hasOther[family] && !hasSaved[family] }
	for _, a := range s.Addresses {
		switch ip := a.Prefix.Addr(); {
		case replaced(ip) || HasAddress(host, ip): // not missing
		case a.Manual:
			l.manual = append(l.manual, a.Prefix)
		case ip.Is4():
			l.leased = append(l.leased, a.Prefix)
		}
	}
	for _, r := range s.Routes {
		exists := slices.ContainsFunc(routes, func(o hns.Route) bool {
			return o.Index == host.Index && o.Dst == r.Dst && o.NextHop == r.NextHop && o.Metric == r.Metric
		})
		if !exists && !replaced(r.Dst.Addr()) {
			l.routes = append(l.routes, r)
		}
	}
	// DNS servers and DHCP count to IPv4.
	v4 := netip.IPv4Unspecified()
	if lacksAny(host.DNS, s.servers()) && !replaced(v4) {
		l.dns = s.servers()
	}
	l.settings = !replaced(v4) && (s.becameDHCP(host) || hasLease) || s.lacksSettings(host)
	return l
}

// lacksAny reports whether one of the wanted addresses is not among those that are there.
func lacksAny(have, want []netip.Addr) bool {
	return slices.ContainsFunc(want, func(a netip.Addr) bool { return !slices.Contains(have, a) })
}

// lacksSettings reports whether the interface has another metric or MTU.
func (s *Snapshot) lacksSettings(host hns.Adapter) bool {
	return s.V4Metric != 0 && s.V4Metric != host.V4Metric || s.V6Metric != 0 && s.V6Metric != host.V6Metric ||
		s.MTU != 0 && s.MTU != host.MTU
}

// familyIndex returns 0 for IPv4 and 1 for IPv6.
func familyIndex(a netip.Addr) int {
	if a.Is6() {
		return 1
	}
	return 0
}
