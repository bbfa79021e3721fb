package underlay

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"flannel/pkg/hns"
	"flannel/pkg/mac"
)

// FromStack takes a Snapshot of a Windows machine.
func FromStack(stack hns.Stack, o Options) (Snapshot, error) {
	adapters, err := stack.Adapters()
	if err != nil {
		return Snapshot{}, fmt.Errorf("list adapters: %w", err)
	}
	routes, err := stack.Routes()
	if err != nil {
		return Snapshot{}, fmt.Errorf("list routes: %w", err)
	}
	slices.SortStableFunc(adapters, func(a, b hns.Adapter) int { return cmp.Compare(a.Index, b.Index) })
	s := Snapshot{Interfaces: toInterfaces(adapters)}
	for _, r := range routes {
		s.addAdapterRoute(r, adapters)
	}
	if o.CanReach.IsValid() {
		r, source, err := stack.BestRoute(o.CanReach)
		if err != nil {
			s.Reach.Problem = err.Error()
		} else {
			s.Reach = Reach{Index: r.Index, Source: source}
		}
	}
	return s, nil
}

// toInterfaces joins a physical adapter that gave its addresses to a virtual switch with the adapter that stands for it
// since: for whoever named one of the two, and for all that follows from the name, nothing has changed.
func toInterfaces(adapters []hns.Adapter) []Interface {
	heirs := heirs(adapters)
	inherited := map[int]bool{}
	for _, heir := range heirs {
		inherited[heir] = true
	}
	var all []Interface
	for i, a := range adapters {
		if inherited[i] {
			continue
		}
		in := toWindowsInterface(a)
		if heir, ok := heirs[i]; ok {
			in = toWindowsInterface(adapters[heir])
			in.Alias = in.Name
			in.Name = a.Name
			in.AltNames = append(in.AltNames, in.Alias, a.GUID)
		}
		all = append(all, in)
	}
	slices.SortStableFunc(all, func(a, b Interface) int { return cmp.Compare(a.Index, b.Index) })
	return all
}

// heirs maps physical adapters that have no address any more to the virtual ones that took them over, by positions.
func heirs(adapters []hns.Adapter) map[int]int {
	found := map[int]int{}
	taken := map[int]bool{}
	for _, same := range []func(physical, virtual hns.Adapter) bool{
		func(p, v hns.Adapter) bool { return v.Name == "vEthernet ("+p.Name+")" },
		// A switch that a person made has a name of its own, but its adapter for the host has the physical one's MAC.
		func(p, v hns.Adapter) bool { return v.MAC == p.MAC && v.MAC != (mac.Addr{}) },
	} {
		for i, p := range adapters {
			if _, done := found[i]; done || p.Virtual() || p.Loopback || slices.ContainsFunc(p.Addrs, proper) {
				continue
			}
			for j, v := range adapters {
				if v.Virtual() && !Ours(v.Name) && !taken[j] && same(p, v) {
					found[i], taken[j] = j, true
					break
				}
			}
		}
	}
	return found
}

// proper tells an address that means that the adapter is in use: Windows gives link-local ones to any.
func proper(a hns.Address) bool { return !a.Prefix.Addr().IsLinkLocalUnicast() }

func toWindowsInterface(a hns.Adapter) Interface {
	in := Interface{Name: a.Name, Index: a.Index, MTU: a.MTU, MAC: a.MAC, Up: a.Up, Loopback: a.Loopback}
	if a.GUID != "" {
		in.AltNames = []string{a.GUID}
	}
	for _, w := range a.Addrs {
		ip := w.Prefix.Addr()
		addr := Addr{
			IP: ip, Global: proper(w) && !ip.IsLoopback(), Temporary: w.Temporary, Tentative: w.Tentative,
			Deprecated: !w.Preferred && !w.Tentative,
			MadeUp:     ip.Is4() && ip.IsLinkLocalUnicast() && !w.Manual,
		}
		if w.Prefix.Bits() < ip.BitLen() {
			addr.Net = w.Prefix.Masked()
		}
		in.Addrs = append(in.Addrs, addr)
	}
	return in
}

// addAdapterRoute takes default routes, and those to networks without a gateway; Windows has the latter for each single
// address, its broadcast and multicast, too.
func (s *Snapshot) addAdapterRoute(r hns.Route, adapters []hns.Adapter) {
	direct := !r.NextHop.IsValid() || r.NextHop.IsUnspecified()
	if r.Dst.Bits() > 0 {
		in := s.byIndex(r.Index)
		if in != nil && direct && r.Dst.Bits() < r.Dst.Addr().BitLen() && !r.Dst.Addr().IsMulticast() {
			in.OnLink = append(in.OnLink, r.Dst.Masked())
		}
		return
	}
	d := Default{Index: r.Index, V6: r.Dst.Addr().Is6(), Metric: r.Metric}
	if !direct {
		d.Gateway = r.NextHop
	}
	for _, a := range adapters {
		if a.Index == r.Index && d.V6 {
			d.Metric += a.V6Metric
		} else if a.Index == r.Index {
			d.Metric += a.V4Metric
		}
	}
	s.Defaults = append(s.Defaults, d)
}

// hostEndpoint tells the names that HNS gives the host's adapters on endpoints of pod networks, "vEthernet (cbr0_ep)".
func hostEndpoint(name string) bool {
	return strings.HasPrefix(name, "vEthernet (") && strings.HasSuffix(name, "_ep)")
}
