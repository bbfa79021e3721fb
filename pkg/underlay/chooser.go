package underlay

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// How long an interface must have no other address of the family before an address is
// used that may float. Programs that change a node's address, such as a DHCP client, need
// seconds. At a start, when no address is in use, the node has no network yet, and the
// address is more likely to be its own one.
const (
	adoptAtStart = 10 * time.Second
	adoptLater   = time.Minute
)

// leaveAfter is how long the interface in use must have been unable to be the underlay, or not selected
// any more, before another one is used. Programs that set up a network take addresses, routes and
// interfaces away for some seconds, DHCP for longer. A node whose interface has failed for good should
// not wait as long as for a floating address. At a start, the time is adoptAtStart: see Decision.awaited.
const leaveAfter = 30 * time.Second

// Chooser chooses the underlay of a running daemon, again whenever something may have
// changed. It does not leave an interface that still can be the underlay, or that is away only for a moment,
// and does not take an address that may float while the node's own address is away for a moment. Only
// the daemon's loop uses it: see daemon.Underlay. The candidates and their order are those
// of candidates in choose.go; a Chooser only changes the order of default routes and of the interfaces
// that a pattern matches (byRoute), and adds the candidates of byDHCP and those that byReach keeps.
//
//	what happens                                        what is chosen
//	a start                                             the first candidate, as Choose
//	a start, and a better candidate is still being      no choice for adoptAtStart, then the first
//	  set up (mayFitSoon)                                 candidate that can be the underlay
//	another default route has a better metric           the interface in use
//	the route of --iface-can-reach leads elsewhere      the interface in use
//	another interface comes to match the pattern of     the interface in use
//	  --iface-regex
//	the interface in use is gone, is down, has no       no choice for leaveAfter, then the first candidate
//	  address of an enabled family, has no default        that can be the underlay; at once after a change of
//	  route, if that has selected it, or does not match   the operator's public addresses
//	  the flag that has selected it
//	an address in use has moved to another candidate,   this candidate
//	  as to a bridge
//	an interface that an earlier flag selects can be    this interface
//	  the underlay
//	the interface of the start can be the underlay      the interface of the start
//	  again, with a metric that is not worse than before
//	  or is better than all others (a pattern and
//	  --iface-can-reach have no metric)
//	the address in use is gone, others are there        the best of the others
//	only an address is left that may float, or a        no choice for adoptAtStart or adoptLater (unless
//	  pattern matches no other                            there is another candidate), then this address
//	another address appears beside one that may float   the other address
//	no interface has the address of --iface any more,   the other address
//	  and its interface has another one by DHCP
type Chooser struct {
	home, last place                    // of the first choice that had one, and of the last choice; zero: none (see candidate.place)
	dhcp       string                   // candidate.dhcp of the last choice
	link       string                   // the interface of the last choice; "": none
	order      int                      // candidate.order of the last choice
	public     [2]netip.Addr            // Options.PublicV4 and PublicV6 of the last choice
	since      time.Time                // since when await waits, also while nothing can be chosen or read; zero: it does not
	inUse      []netip.Addr             // addresses of the last choice (zero: the family is off); nil: there was none
	alone      map[netip.Addr]time.Time // addresses that may float and that no other address replaces, and since when
}

// Choose is the function Choose, after the earlier choices of c. The loop calls it at changes and
// resyncs. After an error, such as that an address has to wait, the loop also calls it in its
// retries, and so finds the end of the wait. decide asks wait only about addresses of the
// candidates up to the first usable one; those of later candidates wait from the beginning when
// their turn comes. An error leaves the choices of c as they are.
func (c *Chooser) Choose(now time.Time, s Snapshot, o Options, v4, v6 bool) (Decision, error) {
	alone := map[netip.Addr]time.Time{}
	patience := adoptLater
	if c.inUse == nil {
		patience = adoptAtStart
	}
	adopts := false // whether an address that may float has waited for long enough
	p := past{home: c.home, last: c.last, dhcp: c.dhcp, inUse: c.inUse, patience: patience, wait: func(a netip.Addr) bool {
		since, known := c.alone[a]
		if !known {
			since = now
		}
		alone[a] = since
		waits := now.Sub(since) < patience
		adopts = adopts || !waits
		return waits
	}}
	d, err := decide(s, o, v4, v6, p)
	c.alone = alone           // addresses that decide did not ask about are forgotten
	if err == nil && adopts { // another candidate comes before an address that may float
		p.wait = func(netip.Addr) bool { return true }
		if other, err := decide(s, o, v4, v6, p); err == nil {
			d = other
		}
	}
	if err == nil {
		err = c.await(now, o, d)
	}
	if err != nil {
		return Decision{}, err
	}
	if c.home.name == "" || c.home.name == d.by.place.name { // there with another metric, which counts from now on
		c.home = d.by.place
	}
	c.last, c.order, c.dhcp = d.by.place, d.by.order, d.by.dhcp
	c.link, c.inUse, c.public = d.Link.Name, []netip.Addr{d.Link.V4, d.Link.V6}, [2]netip.Addr{o.PublicV4, o.PublicV6}
	// AtStart is for the log, the status and the doctor (FL111). The zero past: as at a start.
	if fresh, err := decide(s, o, v4, v6, past{}); err == nil && fresh.Link.Name != d.Link.Name {
		d.Link.AtStart = fresh.Link.Name
	}
	return d, nil
}

// await returns an error while d must not be chosen yet, because another interface may soon be able
// to be the underlay: at a start Decision.awaited, later the one in use. A running daemon does not wait:
//   - if the interface is the one in use;
//   - if an earlier flag selects the interface, or it is the one of the start and comes first (candidate.first);
//   - if an address in use has moved to the interface, as from a network card to its bridge or bond, or by a rename;
//   - if the operator has changed a public address.
func (c *Chooser) await(now time.Time, o Options, d Decision) error {
	awaited, patience := d.awaited, adoptAtStart
	if c.link != "" {
		awaited, patience = c.link, leaveAfter
		better := d.by.order < c.order || d.by.order == c.order && d.by.first
		moved := slices.ContainsFunc(c.inUse, func(a netip.Addr) bool { return a.IsValid() && (a == d.Link.V4 || a == d.Link.V6) })
		if d.Link.Name == c.link || better || moved || c.public != [2]netip.Addr{o.PublicV4, o.PublicV6} {
			awaited = ""
		}
	}
	since := cmp.Or(c.since, now)
	if awaited == "" || now.Sub(since) >= patience {
		c.since = time.Time{}
		return nil
	}
	c.since = since
	state := "is not selected at the moment (no default route, or no flag matches it)"
	if slices.ContainsFunc(d.Rejected, func(r string) bool { return strings.Contains(r, ": "+awaited+" ") }) {
		state = "cannot be the underlay at the moment"
	}
	// Without the time that is left, so that the text is the same each time.
	return errors.New(strings.Join(append([]string{fmt.Sprintf("%s %s; %s (%s) is used if this lasts %v",
		awaited, state, d.Link.Name, d.Why, patience)}, d.Rejected...), "\n  "))
}

// place is an interface that has a default route, with the route's metric, or one that --iface-regex or
// --iface-can-reach has selected, with the metric 0.
type place struct {
	name   string
	metric int
}

// past is what earlier choices mean for the next one. With the zero past, decide chooses as
// at a start, and no address has to wait.
type past struct {
	home, last place
	dhcp       string // candidate.dhcp of the last choice
	inUse      []netip.Addr
	patience   time.Duration // how long wait makes an address wait; only the text of the error has it
	// wait reports whether an address that may float, and is the best one of its family on
	// an interface, must not be used yet; nil: it may be used at once.
	wait func(netip.Addr) bool
}

// uses reports whether the last choice has an address.
func (p past) uses(a netip.Addr) bool { return slices.Contains(p.inUse, a) }

// of returns the addresses of the last choice that are of the same family as a.
func (p past) of(a netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(p.inUse), func(b netip.Addr) bool { return b.Is6() != a.Is6() })
}

// waits reports whether an address that may float must not be used yet.
func (p past) waits(a netip.Addr) bool { return p.wait != nil && !p.uses(a) && p.wait(a) }

// isHome reports whether a place is home, with a metric that is not worse than Snapshot.homeMetric.
func (p past) isHome(r place) bool {
	return r.name != "" && r.name == p.home.name && r.metric <= p.home.metric
}

// byRoute compares two places, for sorting: home (see isHome) is before last, and last before all
// others. Those are ordered by their metric.
func (p past) byRoute(a, b place) int {
	class := func(r place) int {
		switch {
		case p.isHome(r):
			return 0
		case r.name != "" && r.name == p.last.name:
			return 1
		}
		return 2
	}
	return cmp.Or(cmp.Compare(class(a), class(b)), cmp.Compare(a.metric, b.metric))
}

// floats reports whether an address of the candidate's interface may be one that moves
// between nodes, such as one of keepalived or kube-vip: it is permanent, and its prefix
// has no other address (Addr.Host). An address that a flag or a default route names
// (candidate.named, preferred) never floats. Clouds give a node such an address as its only one, too. Then
// the default route or another route shows that the address belongs here:
//
//	address         routes through eth0                               floats
//	10.128.0.2/32   default via 10.128.0.1 src 10.128.0.2             no: a route names it
//	10.128.0.2/32   10.128.0.1 scope link; default via 10.128.0.1     no: the gateway is on the link
//	10.128.0.2/32   default via 10.128.0.1 onlink; or: default        no: likewise
//	10.10.0.1/32    10.10.0.0/24 scope link                           no: it is in a network of the link
//	192.168.1.50/32 default via 192.168.1.1                           yes: the network of the gateway has left
//	                                                                    with the node's own address
//	any             any, and the interface has 192.168.1.5/24, too    yes
//
// The gateway of IPv6 is on the link in all cases, and router advertisements can keep
// the network there. Therefore, for IPv6, only the source of a default route counts,
// which byDefaultRoute has put into candidate.preferred.
func (s Snapshot) floats(c candidate, a Addr) bool {
	if !a.Host || c.named && slices.Contains(c.preferred, a.IP) {
		return false
	}
	other := func(b Addr) bool {
		return !b.Host && b.IP.Is6() == a.IP.Is6() && unusable(b, c.preferred) == ""
	}
	if a.IP.Is6() || slices.ContainsFunc(c.iface.Addrs, other) {
		return true
	}
	onLink := func(ip netip.Addr) bool {
		return slices.ContainsFunc(c.iface.OnLink, func(n netip.Prefix) bool { return n.Contains(ip) })
	}
	return !onLink(a.IP) && !slices.ContainsFunc(s.Defaults, func(d Default) bool {
		return d.Index == c.iface.Index && !d.V6 && (d.OnLink || !d.Gateway.IsValid() || onLink(d.Gateway))
	})
}
