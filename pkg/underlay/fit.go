// This file says whether an interface can be the underlay, and which of its
// addresses is used. choose.go decides in which order interfaces are tried.

package underlay

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// maxDescribed limits how many interfaces an error lists, because a node may
// have a device for each pod.
const maxDescribed = 40

// toLink returns the candidate's interface as a Link with an address of each
// enabled family. c.iface is not nil. The error, which continues a sentence that begins with
// the interface's name, says why it cannot be the underlay; decide then tries the next candidate.
func toLink(s Snapshot, c candidate, v4, v6 bool, p past) (Link, error) {
	in := *c.iface
	switch {
	case in.Loopback:
		return Link{}, errors.New("is the loopback interface")
	case Ours(in.Name):
		return Link{}, errors.New("is a device of the pod network")
	case !in.Up:
		return Link{}, errors.New("is down")
	}
	l := Link{Name: in.Name, Index: in.Index, MTU: in.MTU, MAC: in.MAC}
	var v4Err, v6Err error
	if v4 {
		l.V4, v4Err = address(s, c, false, p) // false: IPv4
	}
	if v6 {
		l.V6, v6Err = address(s, c, true, p)
	}
	if v4Err != nil && v6Err != nil { // "has no IPv4 address and has no IPv6 address"
		return Link{}, fmt.Errorf("%w and %w", v4Err, v6Err)
	}
	if err := cmp.Or(v4Err, v6Err); err != nil {
		return Link{}, err
	}
	l.OnLink = onLink(in, l)
	return l, nil
}

// mayFitSoon reports whether the candidate's interface, which cannot be the underlay, is up and
// lacks an address of one of two families only (one that may float counts as missing), or has a tentative
// address, as while it is being set up: router advertisements or DHCPv6 come after the IPv4 address, and
// duplicate address detection takes a second. With IPv6 alone, a link-local address is the first one that it has.
func mayFitSoon(s Snapshot, c candidate, v4, v6 bool) bool {
	fits := func(v4, v6 bool) bool {
		_, err := toLink(s, c, v4, v6, past{})
		return err == nil
	}
	early := func(a Addr) bool {
		return a.Tentative && (v4 && a.IP.Is4() || v6 && a.IP.Is6()) || !v4 && a.IP.Is6() && a.IP.IsLinkLocalUnicast()
	}
	return v4 && v6 && (fits(true, false) || fits(false, true)) || fits(false, false) && slices.ContainsFunc(c.iface.Addrs, early)
}

// Ours reports whether the name is that of a device of the pod network, created
// by flanneld, flannel or the CNI plugin. It cannot be the underlay, which
// carries the pod network. Examples are flannel.1, flannel-v6.1, flannel-wg and
// flannel0; flannelnet is an interface of somebody else.
func Ours(name string) bool {
	if name == "cni0" || hostEndpoint(name) || strings.HasPrefix(name, "flannel.") || strings.HasPrefix(name, "flannel-") {
		return true
	}
	number, ok := strings.CutPrefix(name, "flannel") // flannel0, a TUN device of the udp backend
	return ok && number != "" && strings.Trim(number, "0123456789") == ""
}

// hostEndpoint reports whether HNS gave this name to the host's adapter on a
// pod network, as "vEthernet (cbr0_ep)".
func hostEndpoint(name string) bool {
	return strings.HasPrefix(name, "vEthernet (") && strings.HasSuffix(name, "_ep)")
}

// address returns the best address of a family: one of the preferred ones if the
// interface has it, else the one that is likely to exist for the longest time
// (see rank). An address that may float waits while past says so.
func address(s Snapshot, c candidate, v6 bool, p past) (netip.Addr, error) {
	family := "IPv4"
	if v6 {
		family = "IPv6"
	}
	var best Addr // zero: none yet
	lowest := 0   // rank of best
	reason := ""  // of the last unusable address, for the error
	for _, a := range c.iface.Addrs {
		if a.IP.Is6() != v6 {
			continue
		}
		if why := unusable(a, c.preferred); why != "" {
			reason = fmt.Sprintf(" that is usable: %s is %s", a.IP, why)
			continue
		}
		if r := rank(a, c.preferred, s.floats(c, a), p.uses(a.IP)); !best.IP.IsValid() || r < lowest {
			best, lowest = a, r
		}
	}
	if best.IP.IsValid() && s.floats(c, best) && p.waits(best.IP) {
		// Without the time that is left, so that the text is the same each time.
		return netip.Addr{}, fmt.Errorf("has no better %s address than %s/%d, which may be a floating one; it is used if no better one appears within %v",
			family, best.IP, best.IP.BitLen(), p.patience)
	}
	if !best.IP.IsValid() {
		return netip.Addr{}, fmt.Errorf("has no %s address%s", family, reason)
	}
	return best.IP, nil
}

// unusable returns why an address cannot be used, as the end of a sentence; "": it
// can. A link-local address is used only if a flag or a route prefers it, because
// peers behind a router cannot reach it.
func unusable(a Addr, preferred []netip.Addr) string {
	switch {
	case a.Tentative:
		return "tentative (duplicate address detection has not succeeded)"
	case a.IP.IsLoopback():
		return "a loopback address"
	case a.SelfAssigned:
		return "self-assigned because there is no DHCP server (APIPA)"
	case a.IP.IsLinkLocalUnicast() && !slices.Contains(preferred, a.IP):
		return "link-local"
	}
	return ""
}

// rank returns a lower number for a better address. Each property weighs more
// than all before it. Of addresses with the same rank the oldest is used. Example,
// without preferred addresses, and at a start, when no address is in use:
//
//	address                          rank
//	2001:db8::1                      66   not preferred and not in use, as all others
//	2001:db8::5c1f (privacy)         70   and temporary
//	fec0::1 (site scope)             74   and not global
//	2001:db8:1::1 (deprecated)       82   and deprecated
//	2001:db8::50/128                 98   and may float
func rank(a Addr, preferred []netip.Addr, floats, inUse bool) int {
	r := 0 // bit i is set if property i is bad; not to be preferred is the worst
	for i, bad := range []bool{a.Secondary, !inUse, a.Temporary, !a.Global, a.Deprecated, floats, !slices.Contains(preferred, a.IP)} {
		if bad {
			r |= 1 << i
		}
	}
	return r
}

// onLink returns the networks that the link reaches without a gateway, from
// routes and also from addresses, because an interface that is down for a
// moment has no routes. Link-local networks count only if l uses a link-local
// address.
func onLink(in Interface, l Link) []netip.Prefix {
	all := slices.Clone(in.OnLink)
	for _, a := range in.Addrs {
		if a.Net.IsValid() {
			all = append(all, a.Net)
		}
	}
	all = slices.DeleteFunc(all, func(p netip.Prefix) bool {
		return p.Addr().IsMulticast() || p.Addr().IsLinkLocalUnicast() && !p.Contains(l.V4) && !p.Contains(l.V6)
	})
	slices.SortFunc(all, netip.Prefix.Compare)
	return slices.Compact(all)
}

// describeAll describes the interfaces for an error, each with the reason why
// it cannot be the underlay, if any. It omits veth devices without an address other than link-local ones, as pods have
// them, so that the error does not change, and is not logged again, with each pod.
func describeAll(s Snapshot, v4, v6 bool) []string {
	all := []string{"interfaces of this node:"}
	described := slices.DeleteFunc(slices.Clone(s.Interfaces), func(in Interface) bool {
		return in.Veth && !slices.ContainsFunc(in.Addrs, func(a Addr) bool { return !a.IP.IsLinkLocalUnicast() })
	})
	for i, in := range described {
		if i == maxDescribed {
			return append(all, fmt.Sprintf("  and %d more", len(described)-i))
		}
		text := "can be chosen with --iface=" + in.Name
		if _, err := toLink(s, candidate{iface: &in}, v4, v6, past{}); err != nil {
			text = err.Error()
		}
		all = append(all, fmt.Sprintf("  %s%s %s", in.Name, addrList(in), text))
	}
	return all
}

// addrList returns the interface's addresses in parentheses after a blank, the first
// four at most; "" if it has none.
func addrList(in Interface) string {
	var all []string
	for _, a := range in.Addrs {
		all = append(all, a.IP.String())
	}
	if len(all) > 4 {
		all = append(all[:4], "…")
	}
	if len(all) == 0 {
		return ""
	}
	return " (" + strings.Join(all, ", ") + ")"
}
