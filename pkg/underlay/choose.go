package underlay

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Choose picks the interface on which this node meets the others, with an address of each enabled family. The error
// tells of every interface why it was not picked.
func Choose(s Snapshot, o Options, v4, v6 bool) (Link, error) {
	var whynot []string
	for _, w := range wishes(s, o, v4, v6) {
		if w.iface == nil {
			whynot = append(whynot, w.why+": "+w.problem)
			continue
		}
		l, err := fit(*w.iface, w.source, v4, v6)
		if err == nil {
			return publish(l, o), nil
		}
		whynot = append(whynot, fmt.Sprintf("%s: %s %v", w.why, w.iface.Name, err))
	}
	return Link{}, errors.New("no interface can be the underlay\n  " + strings.Join(append(whynot, verdicts(s, v4, v6)...), "\n  "))
}

// wish is one thing that the user, or else the routing table, asks for.
type wish struct {
	why     string       // "--iface=eth0"
	iface   *Interface   // nil: there is none
	source  []netip.Addr // addresses to prefer; one that was named may be link-local
	problem string       // where iface is nil
}

// wishes lists what to try, the best first: --iface, --iface-regex, and --iface-can-reach if neither matched; without
// any of these the interface that has the public address; else those of the default routes. Someone who names
// interfaces gets one of them or an error, never another.
func wishes(s Snapshot, o Options, v4, v6 bool) []wish {
	var all []wish
	for _, name := range o.Iface {
		all = append(all, named(s, name))
	}
	for _, re := range o.IfaceRegex {
		all = append(all, matching(s, re.String(), re.MatchString)...)
	}
	// An interface that matches is waited for, even if it is down at the moment.
	if o.CanReach.IsValid() && !slices.ContainsFunc(all, func(w wish) bool { return w.iface != nil }) {
		all = append(all, reaching(s, o.CanReach))
	}
	if len(all) > 0 {
		return all
	}
	if all = owning(s, o, v4, v6); len(all) > 0 {
		return all
	}
	return byDefaultRoute(s, v4, v6)
}

// owning finds the interface that has the public address. An address of the loopback interface (which routing
// protocols announce) selects none, and one that no interface has is that of a NAT gateway.
func owning(s Snapshot, o Options, v4, v6 bool) []wish {
	var public []netip.Addr
	var all []wish
	for _, family := range []struct {
		on   bool
		ip   netip.Addr
		flag string
	}{{v4, o.PublicV4, "--public-ip="}, {v6, o.PublicV6, "--public-ipv6="}} {
		if !family.on || !family.ip.IsValid() {
			continue
		}
		public = append(public, family.ip)
		for i := range s.Interfaces {
			in := &s.Interfaces[i]
			if !in.Loopback && !Ours(in.Name) && in.has(family.ip) {
				all = append(all, wish{why: family.flag + family.ip.String(), iface: in})
			}
		}
	}
	for i := range all {
		all[i].source = public
	}
	return all
}

func (in *Interface) has(ip netip.Addr) bool {
	return slices.ContainsFunc(in.Addrs, func(a Addr) bool { return a.IP == ip })
}

func named(s Snapshot, name string) wish {
	w := wish{why: "--iface=" + name, problem: "there is no such interface"}
	ip, err := netip.ParseAddr(name)
	for i := range s.Interfaces {
		in := &s.Interfaces[i]
		if err != nil && (in.Name == name || slices.Contains(in.AltNames, name)) {
			w.iface = in
			return w
		}
		if err == nil && in.has(ip.WithZone("")) && (ip.Zone() == "" || ip.Zone() == in.Name) {
			w.iface, w.source = in, []netip.Addr{ip.WithZone("")}
			return w
		}
	}
	if err == nil {
		w.problem = "no interface has this address"
	}
	return w
}

func matching(s Snapshot, text string, match func(string) bool) []wish {
	why := "--iface-regex=" + text
	var byAddr, byName []wish
	for i := range s.Interfaces {
		in := &s.Interfaces[i]
		for _, a := range in.Addrs {
			if match(a.IP.String()) {
				byAddr = append(byAddr, wish{why: why, iface: in, source: []netip.Addr{a.IP}})
			}
		}
		if match(in.Name) || in.Alias != "" && match(in.Alias) {
			byName = append(byName, wish{why: why, iface: in})
		}
	}
	if all := append(byAddr, byName...); len(all) > 0 {
		return all
	}
	return []wish{{why: why, problem: "no interface has an address or name that matches"}}
}

func reaching(s Snapshot, to netip.Addr) wish {
	w := wish{why: "--iface-can-reach=" + to.String(), source: []netip.Addr{s.Reach.Source}}
	if s.Reach.Index > 0 { // adapters that nothing is bound to have index 0
		w.iface = s.byIndex(s.Reach.Index)
	}
	w.problem = cmp.Or(s.Reach.Problem, "no route leads there")
	return w
}

// byDefaultRoute follows the default routes of IPv4, where that is on, else of IPv6. In dual-stack the IPv6 address
// must be on the same interface; what the IPv6 default route says of that interface's source address counts.
func byDefaultRoute(s Snapshot, v4, v6 bool) []wish {
	family := "IPv4"
	if !v4 {
		family = "IPv6"
	}
	why := "the " + family + " default route"
	defaults := slices.Clone(s.Defaults)
	slices.SortStableFunc(defaults, func(a, b Default) int { return cmp.Compare(a.Metric, b.Metric) })
	var all []wish
	for _, d := range defaults {
		in := s.byIndex(d.Index)
		if d.V6 == v4 || in == nil {
			continue
		}
		w := wish{why: why, iface: in}
		if elsewhere := s.v6Default(defaults); v4 && v6 && elsewhere != "" && elsewhere != in.Name {
			w.why += " (that of IPv6 leads through " + elsewhere + ")"
		}
		for _, other := range defaults {
			if other.Index == d.Index && other.Source.IsValid() {
				w.source = append(w.source, other.Source)
			}
		}
		all = append(all, w)
	}
	if len(all) > 0 {
		return all
	}
	return []wish{{why: why, problem: "there is none; name an interface with --iface"}}
}

// v6Default names the interface of the best IPv6 default route, "" if there is none.
func (s Snapshot) v6Default(sorted []Default) string {
	for _, d := range sorted {
		if in := s.byIndex(d.Index); d.V6 && in != nil {
			return in.Name
		}
	}
	return ""
}

func (s Snapshot) byIndex(index int) *Interface {
	for i := range s.Interfaces {
		if s.Interfaces[i].Index == index {
			return &s.Interfaces[i]
		}
	}
	return nil
}

func publish(l Link, o Options) Link {
	l.PublicV4, l.PublicV6 = l.V4, l.V6
	if l.V4.IsValid() && o.PublicV4.IsValid() {
		l.PublicV4 = o.PublicV4
	}
	if l.V6.IsValid() && o.PublicV6.IsValid() {
		l.PublicV6 = o.PublicV6
	}
	return l
}
