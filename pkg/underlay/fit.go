package underlay

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// maxVerdicts bounds the interfaces told of in an error; a node may have a device per pod.
const maxVerdicts = 40

// fit makes a Link of the interface, with an address of each enabled family, or says why it cannot be one.
func fit(in Interface, source []netip.Addr, v4, v6 bool) (Link, error) {
	switch {
	case in.Loopback:
		return Link{}, errors.New("is the loopback interface")
	case Ours(in.Name):
		return Link{}, errors.New("belongs to the pod network itself")
	case !in.Up:
		return Link{}, errors.New("is down")
	}
	l := Link{Name: in.Name, Index: in.Index, MTU: in.MTU, MAC: in.MAC}
	var errs [2]error
	if v4 {
		l.V4, errs[0] = address(in, source, false)
	}
	if v6 {
		l.V6, errs[1] = address(in, source, true)
	}
	switch {
	case errs[0] != nil && errs[1] != nil:
		return Link{}, fmt.Errorf("%w and %w", errs[0], errs[1])
	case errs[0] != nil || errs[1] != nil:
		return Link{}, errors.Join(errs[0], errs[1])
	}
	l.OnLink = onLink(in, l)
	return l, nil
}

// Ours tells by its name whether an interface is one that the pod network made, flannel's or the CNI plugin's.
func Ours(name string) bool {
	if name == "cni0" || hostEndpoint(name) || strings.HasPrefix(name, "flannel.") || strings.HasPrefix(name, "flannel-") {
		return true
	}
	number, ok := strings.CutPrefix(name, "flannel") // a TUN device of the udp backend
	return ok && number != "" && strings.Trim(number, "0123456789") == ""
}

// address picks the best address of a family: one of source if it is there, else the one that will live longest.
func address(in Interface, source []netip.Addr, v6 bool) (netip.Addr, error) {
	family := "IPv4"
	if v6 {
		family = "IPv6"
	}
	var best Addr
	reason := ""
	for _, a := range in.Addrs {
		if a.IP.Is6() != v6 {
			continue
		}
		switch why := unusable(a, source); {
		case why != "":
			reason = fmt.Sprintf(" that can be used: %s is %s", a.IP, why)
		case !best.IP.IsValid() || rank(a, source) < rank(best, source):
			best = a
		}
	}
	if !best.IP.IsValid() {
		return netip.Addr{}, fmt.Errorf("has no %s address%s", family, reason)
	}
	return best.IP, nil
}

func unusable(a Addr, source []netip.Addr) string {
	switch {
	case a.Tentative:
		return "not yet checked for duplicates (tentative)"
	case a.IP.IsLoopback():
		return "a loopback address"
	case a.MadeUp:
		return "made up by the system, which was given no other (APIPA)"
	case a.IP.IsLinkLocalUnicast() && !slices.Contains(source, a.IP):
		return "link-local"
	}
	return ""
}

// rank is lower for the better address; equal ones are taken in the order of their age, so that a new address does
// not move a node.
func rank(a Addr, source []netip.Addr) int {
	r := 0
	for i, bad := range []bool{a.Secondary, a.Temporary, !a.Global, a.Deprecated, !slices.Contains(source, a.IP)} {
		if bad {
			r |= 1 << i
		}
	}
	return r
}

// onLink lists what the link reaches without a gateway, from addresses and from routes: a device that is down for a
// moment has no routes. Link-local networks count only for somebody who uses one.
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

// verdicts says of every interface whether it could be the underlay.
func verdicts(s Snapshot, v4, v6 bool) []string {
	all := []string{"the interfaces are:"}
	for i, in := range s.Interfaces {
		if i == maxVerdicts {
			return append(all, fmt.Sprintf("  and %d more", len(s.Interfaces)-i))
		}
		text := "can be chosen with --iface=" + in.Name
		if _, err := fit(in, nil, v4, v6); err != nil {
			text = err.Error()
		}
		all = append(all, fmt.Sprintf("  %s%s %s", in.Name, addrList(in), text))
	}
	return all
}

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
