package underlay

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
)

// Choose returns the first candidate that can be the underlay, with an address
// of each enabled family (v4, v6), as at a start. A Chooser, in a running daemon, also
// considers its earlier choices. The error lists why each candidate cannot be the underlay,
// and which other interfaces there are.
//
// For example, with --iface=eth1 on a node on which eth1 is down:
//
//	no interface can be the underlay
//	  --iface=eth1: eth1 is down
//	  interfaces of this node:
//	    lo (127.0.0.1, ::1) is the loopback interface
//	    eth0 (192.168.1.10) can be chosen with --iface=eth0
//	    eth1 is down
func Choose(s Snapshot, o Options, v4, v6 bool) (Link, error) {
	d, err := decide(s, o, v4, v6, past{})
	return d.Link, err
}

// Decision is the chosen link with the reasons, which are for the log.
type Decision struct {
	Link     Link
	Why      string    // what selects it: "--iface=eth0"
	Rejected []string  // the candidates before it, each with what selects it and why it cannot be the underlay
	Untried  int       // how many candidates are after it
	awaited  string    // the first interface of Rejected that a start waits for, see mayFitSoon; "": none
	by       candidate // the one that was chosen, for Chooser
}

// decide is Choose with the reasons. p is what a Chooser has chosen before; the zero
// past: nothing.
func decide(s Snapshot, o Options, v4, v6 bool, p past) (Decision, error) {
	var problems []string
	awaited := ""
	all := candidates(s, o, v4, v6, p)
	for i, c := range all {
		if c.iface == nil {
			problems = append(problems, c.why+": "+c.problem)
			continue
		}
		l, err := toLink(s, c, v4, v6, p)
		if err == nil {
			return Decision{Link: setPublic(l, o), Why: c.why, Rejected: problems, Untried: len(all) - i - 1, awaited: awaited, by: c}, nil
		}
		if awaited == "" && mayFitSoon(s, c, v4, v6) {
			awaited = c.iface.Name
		}
		problems = append(problems, fmt.Sprintf("%s: %s %v", c.why, c.iface.Name, err))
	}
	return Decision{}, errors.New("no interface can be the underlay\n  " + strings.Join(append(problems, describeAll(s, v4, v6)...), "\n  "))
}

// candidate is an interface that a flag or a default route selects, or the
// reason why the flag or the routes select none.
type candidate struct {
	why       string       // what selects it: "--iface=eth0"
	iface     *Interface   // nil: no interface is selected, see problem
	preferred []netip.Addr // addresses on iface to prefer, if it has them; only these may be link-local
	named     bool         // a flag or a default route names each of preferred, so that none of them floats (Snapshot.floats)
	order     int          // of what selects it, among the flags and the default routes: the lowest comes first; candidates sets it
	first     bool         // place is past.home and comes before all others of this order, see past.isHome; candidates sets it
	place     place        // iface, if it stays after another one has become the first: byReach, byRegex, byDefaultRoute; zero: it does not
	dhcp      string       // name of iface, if an address of --iface selects it that is by DHCP, or byDHCP does; else ""
	problem   string       // set if iface is nil
}

// candidates returns the interfaces to try, in this order:
//
//	flags that are set                   candidates
//	--iface, --iface-regex               the interfaces that they name or match, in the order of the flags
//	                                       (of a pattern, those of earlier choices first, see past.byRoute)
//	  and --iface-can-reach              the interfaces of earlier choices and that of the route there, if
//	                                       the others match no interface
//	                                     the interface of past.dhcp, if none of them matches one
//	only --public-ip or --public-ipv6    the interface that has this address
//	none, or nobody has the address      the interfaces of the default routes, see past.byRoute
//
// If the user selects interfaces with the first three flags, no other interface
// is ever chosen, even if none of them can be the underlay at the moment.
func candidates(s Snapshot, o Options, v4, v6 bool, p past) []candidate {
	var all []candidate
	order := 0
	p.home.metric = s.homeMetric(v4, p)
	add := func(some ...candidate) {
		for i := range some {
			some[i].order, some[i].first = order, p.isHome(some[i].place)
		}
		all = append(all, some...)
		order++
	}
	for _, name := range o.Iface {
		add(byName(s, name))
	}
	for _, re := range o.IfaceRegex {
		add(byRegex(s, re.String(), re.MatchString, p)...)
	}
	// An interface that matches but is down is a candidate, too: the daemon waits until it is up
	// (decide returns an error) instead of using the one of --iface-can-reach.
	if o.CanReach.IsValid() && !slices.ContainsFunc(all, func(c candidate) bool { return c.iface != nil }) {
		add(byReach(s, o.CanReach, p)...)
	}
	if len(all) > 0 {
		add(byDHCP(s, all, p)...)
		return all
	}
	var public []netip.Addr
	if v4 && o.PublicV4.IsValid() {
		public = append(public, o.PublicV4)
	}
	if v6 && o.PublicV6.IsValid() {
		public = append(public, o.PublicV6)
	}
	for _, ip := range public {
		add(withPublicAddress(s, ip, public)...)
	}
	if len(all) == 0 {
		add(byDefaultRoute(s, v4, v6, p)...)
	}
	return all
}

// withPublicAddress returns the interfaces that have ip, a public address given by
// a flag. There are none if it is the address of a NAT gateway, or an address
// of the loopback interface that a routing protocol announces. The addresses
// of all flags are preferred, since one interface may have both.
func withPublicAddress(s Snapshot, ip netip.Addr, public []netip.Addr) (all []candidate) {
	flag := "--public-ip="
	if ip.Is6() {
		flag = "--public-ipv6="
	}
	for i := range s.Interfaces {
		in := &s.Interfaces[i]
		if !in.Loopback && !Ours(in.Name) && in.has(ip) {
			all = append(all, candidate{why: flag + ip.String(), iface: in, preferred: public, named: true})
		}
	}
	return all
}

// has reports whether the interface has an address.
func (in *Interface) has(ip netip.Addr) bool {
	return slices.ContainsFunc(in.Addrs, func(a Addr) bool { return a.IP == ip })
}

// dhcpAddrs returns the usable addresses by DHCP.
func (in *Interface) dhcpAddrs() (all []netip.Addr) {
	for _, a := range in.Addrs {
		if a.DHCP && unusable(a, nil) == "" {
			all = append(all, a.IP)
		}
	}
	return all
}

// byName returns the interface with this name, or with this address if name is one.
// An address with a zone, as in fe80::1%eth0, must be on that interface: different
// interfaces can have the same link-local address.
func byName(s Snapshot, name string) candidate {
	c := candidate{why: "--iface=" + name, problem: "no such interface"}
	ip, err := netip.ParseAddr(name) // an error: it is the name of an interface
	for i := range s.Interfaces {
		in := &s.Interfaces[i]
		if err != nil && (in.Name == name || slices.Contains(in.AltNames, name)) {
			c.iface = in
			return c
		}
		if err == nil && in.has(ip.WithZone("")) && (ip.Zone() == "" || ip.Zone() == in.Name) {
			c.iface, c.preferred, c.named = in, []netip.Addr{ip.WithZone("")}, true
			if slices.Contains(in.dhcpAddrs(), ip) {
				c.dhcp = in.Name
			}
			return c
		}
	}
	if err == nil {
		c.problem = "no interface has this address"
	}
	return c
}

// byDHCP returns past.dhcp, the interface that an address of --iface has selected, if DHCP has
// given it another address: no interface matches the flags any more (all). The manifest for
// Windows sets --iface to the address that the node has when the container starts.
func byDHCP(s Snapshot, all []candidate, p past) []candidate {
	if p.dhcp == "" || slices.ContainsFunc(all, func(c candidate) bool { return c.iface != nil }) {
		return nil
	}
	for i := range s.Interfaces {
		in := &s.Interfaces[i]
		if addrs := in.dhcpAddrs(); in.Name == p.dhcp && len(addrs) > 0 {
			return []candidate{{why: "the address by DHCP that replaced the one of --iface", iface: in, preferred: addrs, dhcp: in.Name}}
		}
	}
	return nil
}

// byRegex returns the interfaces with a matching address, of which one becomes the
// preferred one, and after them those with a matching name. Interfaces of earlier choices are before
// all others.
func byRegex(s Snapshot, text string, match func(string) bool, p past) []candidate {
	why := "--iface-regex=" + text
	var byAddr, byName []candidate
	for i := range s.Interfaces {
		in := &s.Interfaces[i]
		var matching []netip.Addr
		for _, a := range in.Addrs {
			if match(a.IP.String()) {
				matching = append(matching, a.IP)
			}
		}
		if len(matching) > 0 {
			byAddr = append(byAddr, candidate{why: why, iface: in, preferred: matching, place: place{name: in.Name}})
		}
		if match(in.Name) || in.Alias != "" && match(in.Alias) {
			byName = append(byName, candidate{why: why, iface: in, place: place{name: in.Name}})
		}
	}
	if all := append(byAddr, byName...); len(all) > 0 {
		slices.SortStableFunc(all, func(a, b candidate) int { return p.byRoute(a.place, b.place) })
		return all
	}
	return []candidate{{why: why, problem: "no interface has a matching address or name"}}
}

// byReach returns the interface of the route to an address, with the source address
// that the system would use for it. The reader of the Snapshot has looked up the route. If the route
// has left an interface of an earlier choice, as with a VPN, that interface comes first, with the address
// in use.
func byReach(s Snapshot, to netip.Addr, p past) []candidate {
	// Without a source, preferred has the zero Addr, which equals no address.
	c := candidate{why: "--iface-can-reach=" + to.String(), preferred: []netip.Addr{s.Reach.Source}}
	if s.Reach.Index > 0 { // on Windows, unused adapters have index 0
		c.iface = s.ByIndex(s.Reach.Index)
	}
	c.problem = cmp.Or(s.Reach.Problem, "no route to this address")
	if c.iface != nil {
		c.place.name = c.iface.Name
		c.preferred = append(c.preferred, c.iface.besideTemporary(s.Reach.Source)...)
	}
	var all []candidate
	for _, name := range slices.Compact([]string{p.home.name, p.last.name}) {
		if name == c.place.name {
			break // the route leads there
		}
		for i := range s.Interfaces {
			if in := &s.Interfaces[i]; in.Name == name {
				all = append(all, candidate{why: "an earlier choice by " + c.why, iface: in, preferred: p.of(to), place: place{name: name}})
			}
		}
	}
	return append(all, c)
}

// besideTemporary returns the addresses of the network of a, if a is a temporary (privacy) address. The kernel prefers
// those as a source, but they are replaced after hours or days. Their networks always have 64 bits.
func (in *Interface) besideTemporary(a netip.Addr) (all []netip.Addr) {
	if slices.ContainsFunc(in.Addrs, func(b Addr) bool { return b.IP == a && b.Temporary }) {
		for _, b := range in.Addrs {
			if netip.PrefixFrom(a, 64).Contains(b.IP) {
				all = append(all, b.IP)
			}
		}
	}
	return all
}

// byDefaultRoute returns the interfaces of the default routes, in the order of
// past.byRoute: interfaces of earlier choices first, then by metric. With IPv4
// enabled these are IPv4's routes. In dual-stack the IPv6 address must be on the
// same interface, and is the preferred source address of that interface's IPv6 default route, if it has one.
func byDefaultRoute(s Snapshot, v4, v6 bool, p past) []candidate {
	family := "IPv4"
	if !v4 {
		family = "IPv6"
	}
	why := "the " + family + " default route"
	defaults := slices.Clone(s.Defaults)
	slices.SortStableFunc(defaults, func(a, b Default) int { return p.byRoute(s.placeOf(a), s.placeOf(b)) })
	var all []candidate
	for _, d := range defaults {
		in := s.ByIndex(d.Index)
		if d.V6 == v4 || in == nil { // the other family, or an interface that is gone
			continue
		}
		c := candidate{why: why, iface: in, named: true, place: s.placeOf(d)}
		if elsewhere := s.v6Default(defaults); v4 && v6 && elsewhere != "" && elsewhere != in.Name { // a hint for the log
			c.why += " (the IPv6 default route uses " + elsewhere + ")"
		}
		for _, other := range defaults { // of both families
			if other.Index == d.Index && other.Source.IsValid() {
				c.preferred = append(c.preferred, other.Source)
			}
		}
		all = append(all, c)
	}
	if len(all) > 0 {
		return all
	}
	return []candidate{{why: why, problem: "not found; select an interface with --iface"}}
}

// homeMetric returns the largest metric with which home comes first: the one that it had, or if that is larger, one below
// those of all other default routes, because home may have been made anew, and be the best one all the same. The route of
// the interface in use counts while it is away, too.
func (s Snapshot) homeMetric(v4 bool, p past) int {
	best := math.MaxInt
	if p.last.name != "" && p.last.name != p.home.name {
		best = p.last.metric
	}
	for _, d := range s.Defaults {
		if at := s.placeOf(d); d.V6 != v4 && at.name != "" && at.name != p.home.name {
			best = min(best, at.metric)
		}
	}
	return max(p.home.metric, best-1)
}

// placeOf returns the interface and the metric of a default route; the zero place, if
// the interface is gone.
func (s Snapshot) placeOf(d Default) place {
	if in := s.ByIndex(d.Index); in != nil {
		return place{in.Name, d.Metric}
	}
	return place{}
}

// v6Default returns the name of the interface of the first IPv6 default route,
// "" if there is none.
func (s Snapshot) v6Default(sorted []Default) string {
	for _, d := range sorted {
		if in := s.ByIndex(d.Index); d.V6 && in != nil {
			return in.Name
		}
	}
	return ""
}

// ByIndex returns the interface with an index, nil if there is none. The result
// points into s.Interfaces.
func (s Snapshot) ByIndex(index int) *Interface {
	for i := range s.Interfaces {
		if s.Interfaces[i].Index == index {
			return &s.Interfaces[i]
		}
	}
	return nil
}

// setPublic sets the public addresses of the enabled families: those of the flags,
// which may be the addresses of a NAT gateway, else the link's own.
func setPublic(l Link, o Options) Link {
	if l.V4.IsValid() {
		l.PublicV4 = cmp.Or(o.PublicV4, l.V4)
	}
	if l.V6.IsValid() {
		l.PublicV6 = cmp.Or(o.PublicV6, l.V6)
	}
	return l
}
