package hostconfig

import (
	"net/netip"
	"slices"
	"time"

	"flannel/pkg/dataplane/driver"
	"flannel/pkg/hns"
)

// Snapshot is what the host had on an adapter when nothing was missing.
type Snapshot struct {
	Written   time.Time
	Adapter   string // name of the physical adapter
	GUID      string // of the physical adapter; it stays when the adapter is renamed
	DHCP      bool
	Addresses []SavedAddress
	Routes    []SavedRoute `json:",omitempty"` // made by programs, which include the DHCP client
	DNS       []netip.Addr `json:",omitempty"`
}

// newSnapshot returns what host has: the adapter with the host's addresses.
// physical is the same adapter, or the one behind it.
func newSnapshot(host, physical hns.Adapter, routes []hns.Route) *Snapshot {
	s := &Snapshot{Written: time.Now().UTC().Truncate(time.Second), Adapter: physical.Name, GUID: physical.GUID, DHCP: host.DHCP, DNS: host.DNS}
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
	return s
}

// without returns a copy that lacks the routes into some networks.
func (s *Snapshot) without(networks []netip.Prefix) *Snapshot {
	c := *s
	c.Routes = slices.DeleteFunc(slices.Clone(s.Routes), func(r SavedRoute) bool { return driver.Inside(r.Dst, networks) })
	return &c
}

// equal reports whether two snapshots hold the same settings, whenever they
// were taken.
func (s *Snapshot) equal(o *Snapshot) bool {
	return s != nil && o != nil && s.Adapter == o.Adapter && s.GUID == o.GUID && s.DHCP == o.DHCP &&
		slices.Equal(s.Addresses, o.Addresses) && slices.Equal(s.Routes, o.Routes) && slices.Equal(s.DNS, o.DNS)
}

// hostAdapter returns the adapter that has, or will get, the saved settings. Its
// error is a driver.WaitError.
func (s *Snapshot) hostAdapter(adapters []hns.Adapter, networks []hns.Network) (hns.Adapter, error) {
	physical, found := find(adapters, func(a hns.Adapter) bool {
		return a.GUID == s.GUID && a.GUID != "" || a.Name == s.Adapter && !a.Virtual()
	})
	if !found {
		return hns.Adapter{}, driver.Waiting(CauseNoAdapter, "the adapter %s to appear", s.Adapter)
	}
	host, found := HostAdapter(adapters, physical, IsBound(networks, physical, adapters))
	if !found {
		return hns.Adapter{}, driver.Waiting(CauseNoAdapter, "the virtual adapter that replaces %s", s.Adapter)
	}
	return host, nil
}

// losses are the settings of a Snapshot that the adapter does not have.
type losses struct {
	manual []netip.Prefix // addresses set by hand: nobody else restores them
	leased []netip.Prefix // IPv4 addresses from DHCP
	routes []SavedRoute
	dns    []netip.Addr
}

func (l losses) addresses() []netip.Prefix { return slices.Concat(l.manual, l.leased) }

func (l losses) none() bool {
	return len(l.manual)+len(l.leased)+len(l.routes)+len(l.dns) == 0
}

// missing returns what host does not have of the snapshot. An address family in
// which the adapter has addresses, but none of the saved ones, was reconfigured
// by somebody: nothing is missing in it. IPv6 addresses that routers
// announce return by themselves.
//
// Example: 10.99.0.2/24 was saved. If the adapter has 10.99.0.2 and 10.99.0.7,
// nothing is missing; with 10.99.0.7 alone, nothing either, nor any IPv4 route;
// without an IPv4 address, or with 169.254.3.4 alone, 10.99.0.2/24 is missing.
func (s *Snapshot) missing(host hns.Adapter, routes []hns.Route) (l losses) {
	var hasSaved, hasOther [2]bool // IPv4, IPv6
	for _, a := range Addresses(host) {
		family := familyIndex(a.Prefix.Addr())
		if slices.ContainsFunc(s.Addresses, func(saved SavedAddress) bool { return saved.Prefix.Addr() == a.Prefix.Addr() }) {
			hasSaved[family] = true
		} else {
			hasOther[family] = true
		}
	}
	replaced := func(a netip.Addr) bool { family := familyIndex(a); return hasOther[family] && !hasSaved[family] }
	for _, a := range s.Addresses {
		switch ip := a.Prefix.Addr(); {
		case replaced(ip) || HasAddress(host, ip):
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
	lacksServer := slices.ContainsFunc(s.DNS, func(a netip.Addr) bool { return !slices.Contains(host.DNS, a) })
	if lacksServer && !replaced(netip.IPv4Unspecified()) && (!s.DHCP || len(host.DNS) == 0) {
		l.dns = s.DNS
	}
	return l
}

func familyIndex(a netip.Addr) int {
	if a.Is6() {
		return 1
	}
	return 0
}
