package windows

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"flannel/pkg/dataplane"
	"flannel/pkg/underlay"
	"flannel/pkg/windows/hns"
)

// UnderlayOf reads a Snapshot from the IP stack of a Windows machine, for the choice
// of package underlay. Adapters and routes are read one after the other, so a route may
// be of an adapter that the Snapshot does not have. Such a route selects nothing. If
// o.CanReach is set (--iface-can-reach), the Snapshot also has the route to that address.
func UnderlayOf(stack hns.Stack, o underlay.Options) (underlay.Snapshot, error) {
	adapters, err := stack.Adapters()
	if err != nil {
		return underlay.Snapshot{}, fmt.Errorf("list adapters: %w", err)
	}
	routes, err := stack.Routes()
	if err != nil {
		return underlay.Snapshot{}, fmt.Errorf("list routes: %w", err)
	}
	slices.SortStableFunc(adapters, func(a, b hns.Adapter) int { return cmp.Compare(a.Index, b.Index) })
	s := underlay.Snapshot{Interfaces: toInterfaces(adapters)}
	for _, r := range routes {
		addRoute(&s, r, adapters)
	}
	if o.CanReach.IsValid() {
		r, source, err := stack.BestRoute(o.CanReach)
		if err != nil {
			s.Reach.Problem = err.Error()
		} else {
			s.Reach = underlay.Reach{Index: r.Index, Source: source}
		}
	}
	return s, nil
}

// watchStack calls changed, which must not block, when the result of UnderlayOf may have
// changed, until ctx ends. No change after the return of watchStack is missed.
func watchStack(ctx context.Context, stack hns.Stack, changed func()) error {
	stop, err := stack.Watch(changed)
	if err != nil {
		return fmt.Errorf("watch adapters: %w", err)
	}
	context.AfterFunc(ctx, stop)
	return nil
}

// toInterfaces converts adapters to interfaces. A physical adapter that gave
// its addresses to a virtual switch, and the virtual adapter that has them
// since, become one Interface: with the index, MAC and addresses of the virtual
// adapter, and the name of the physical one, so that --iface and all that
// depends on the name work as before. Example:
//
//	adapters   7 "Ethernet" (no addresses), 12 "vEthernet (Ethernet)" (10.0.0.5/24)
//	interface  12 "Ethernet" (10.0.0.5/24), Alias "vEthernet (Ethernet)"
func toInterfaces(adapters []hns.Adapter) []underlay.Interface {
	virtualOf, merged := virtualAdapters(adapters)
	var all []underlay.Interface
	for i, a := range adapters {
		if merged[i] { // part of the Interface of its physical adapter
			continue
		}
		in := toInterface(a)
		if j, ok := virtualOf[i]; ok {
			in = toInterface(adapters[j])
			in.Alias = in.Name // a regular expression of --iface matches it, too
			in.Name = a.Name
			in.AltNames = append(in.AltNames, in.Alias, a.GUID) // other names that --iface finds
		}
		all = append(all, in)
	}
	slices.SortStableFunc(all, func(a, b underlay.Interface) int { return cmp.Compare(a.Index, b.Index) })
	return all
}

// virtualAdapters maps each physical adapter that gave its addresses to a
// virtual switch to the virtual adapter that has them, both as indices into
// adapters. taken are the virtual ones in found. The name is compared for all adapters
// before the MAC is, since a name identifies one adapter, but several adapters may
// have the same MAC. A physical adapter that has an address in use has not given it
// to a switch. The host's adapter on a pod network, such as "vEthernet (cbr0_ep)",
// is never the one that has the addresses (underlay.Ours). A virtual adapter counts also
// while it has no address yet.
func virtualAdapters(adapters []hns.Adapter) (found map[int]int, taken map[int]bool) {
	found, taken = map[int]int{}, map[int]bool{}
	for _, same := range []func(physical, virtual hns.Adapter) bool{
		func(p, v hns.Adapter) bool { return v.Name == "vEthernet ("+p.Name+")" },
		// A switch that an administrator created can have any name, but the host's
		// adapter on it has the physical MAC.
		func(p, v hns.Adapter) bool { return v.MAC == p.MAC && v.MAC != (dataplane.MAC{}) },
	} {
		for i, p := range adapters {
			if _, done := found[i]; done || p.Virtual() || p.Loopback || slices.ContainsFunc(p.Addrs, inUse) {
				continue
			}
			for j, v := range adapters {
				if v.Virtual() && !underlay.Ours(v.Name) && !taken[j] && same(p, v) {
					found[i], taken[j] = j, true
					break
				}
			}
		}
	}
	return found, taken
}

// inUse reports whether the address shows that its adapter is in use. Windows
// gives link-local ones to every adapter.
func inUse(a hns.Address) bool { return !a.Prefix.Addr().IsLinkLocalUnicast() }

// toInterface converts one adapter. Global, Deprecated and SelfAssigned, in
// the terms of Linux, follow from the address and its state. Host means that an
// administrator or a program set the address with a prefix of one address (/32 or
// /128), so that it may move between nodes.
func toInterface(a hns.Adapter) underlay.Interface {
	in := underlay.Interface{Name: a.Name, Index: a.Index, MTU: a.MTU, MAC: a.MAC, Up: a.Up, Loopback: a.Loopback}
	if a.GUID != "" {
		in.AltNames = []string{a.GUID}
	}
	for _, own := range a.Addrs {
		ip := own.Prefix.Addr()
		addr := underlay.Addr{
			IP: ip, Global: inUse(own) && !ip.IsLoopback(), Temporary: own.Temporary, Tentative: own.Tentative,
			Deprecated:   !own.Preferred && !own.Tentative,
			SelfAssigned: ip.Is4() && ip.IsLinkLocalUnicast() && !own.Manual,
			Host:         own.Manual && own.Prefix.IsSingleIP(),
		}
		addr.DHCP = ip.Is4() && addr.Global && !own.Manual
		if own.Prefix.Bits() < ip.BitLen() { // /32 and /128 make no network on-link
			addr.Net = own.Prefix.Masked()
		}
		in.Addrs = append(in.Addrs, addr)
	}
	return in
}

// addRoute adds a default route to s.Defaults, and the network of a
// route without a gateway to its interface. Windows also has routes without a
// gateway to each single address, broadcast and multicast, which are ignored.
func addRoute(s *underlay.Snapshot, r hns.Route, adapters []hns.Adapter) {
	direct := !r.NextHop.IsValid() || r.NextHop.IsUnspecified()
	if r.Dst.Bits() > 0 {
		in := s.ByIndex(r.Index)
		if in != nil && direct && r.Dst.Bits() < r.Dst.Addr().BitLen() && !r.Dst.Addr().IsMulticast() {
			in.OnLink = append(in.OnLink, r.Dst.Masked())
		}
		return
	}
	d := underlay.Default{Index: r.Index, V6: r.Dst.Addr().Is6(), Metric: r.Metric}
	if !direct {
		d.Gateway = r.NextHop
	}
	// Windows chooses by the sum of the metrics of the route and its interface.
	for _, a := range adapters {
		if a.Index == r.Index && d.V6 {
			d.Metric += a.V6Metric
		} else if a.Index == r.Index {
			d.Metric += a.V4Metric
		}
	}
	s.Defaults = append(s.Defaults, d)
}
