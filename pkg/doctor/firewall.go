package doctor

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"flannel/pkg/doctor/ruleset"
)

// forwardAccepts is the check FL203 (its row is in linux.go): it evaluates the
// host's rules for packets between pods of this node and of others. It is ok
// although some of them are dropped or queued as by a network policy.
func forwardAccepts(s Snapshot) Finding {
	var sources []string
	for _, n := range s.podNetworks() {
		sources = append(sources, firewallCmd("trusted", "--add-source="+n.String()))
	}
	fix := "Delete the rule, or move it to the end of its chain, or accept the pod network before it: flanneld does not " +
		"insert its rules before those of others, and a rule in another table cannot prevent the drop. If the rule is firewalld's: " +
		strings.Join(sources, " && ") + " (it accepts all packets from these addresses, also to this node's own ports). If the chain FORWARD has no " +
		"jump to FLANNEL-FWD, leave --iptables-forward-rules on (the default), and see in flanneld status whether the part firewall has errors. " +
		`If the rule is Docker's and names the address of a container: upgrade Docker to 28.2 or later, set "allow-direct-routing": true ` +
		"in /etc/docker/daemon.json (former versions do not start with it), and accept the pod network in DOCKER-USER."
	partly, undecided := "", Finding{} // the first rule that drops or queues some, and why the result is not known
	finding := s.evaluate(s.podFlows(), func(f flow, r ruleset.Result) Finding {
		switch r.Verdict {
		case ruleset.Dropped:
			return fail(fix, "%s are dropped by %s", f.what, r.Rule)
		case ruleset.Mostly:
			if f.packet.In != ruleset.AnyDevice && f.packet.Out != ruleset.AnyDevice {
				return warn(fix, "many of the %s may be dropped by %s", f.what, r.Rule)
			} // the exceptions may be the devices of all pods
			undecided = firstReason(undecided, undecidable("the devices of %s are not known, and some may be dropped by %s", f.what, r.Rule))
		case ruleset.Partly:
			partly = cmp.Or(partly, r.Rule)
		}
		return Finding{}
	})
	if finding.Verdict == OK {
		if partly != "" {
			finding.Seen += "; some of them may be dropped or queued, as by a network policy: " + partly
		}
		return firstReason(podDevicesKnown(s), undecided, finding)
	}
	return finding
}

// podDevicesKnown returns why podFlows may lack a device, or have AnyDevice for one. A rule that drops only what
// passes this device is not found then.
func podDevicesKnown(s Snapshot) Finding {
	devices, bridge := devicesKnown(s), bridgeExists(s)
	switch n := s.node(); {
	case devices.Verdict != "":
		return devices
	case n == nil:
		return undecidable("%s", because("it is not known which devices lead to other nodes", leaseKnown(s)))
	case bridge.Verdict == Undecided:
		return bridge
	case len(s.bridges()) == 0 && !s.Interfaces.Known: // see podBridges
		return interfacesKnown(s)
	case len(n.Devices) > 1: // with a tunnel, only the paths say whether some peers are reached directly
		return s.Linux.Paths.missing()
	}
	return Finding{}
}

// tunnelAccepted is the check FL204: it evaluates the host's rules for the packets
// that the tunnel devices send and receive.
func tunnelAccepted(s Snapshot) Finding {
	return s.evaluate(s.tunnelFlows(), func(f flow, r ruleset.Result) Finding {
		switch {
		case r.Verdict == ruleset.Dropped && f.peers == "":
			return fail(f.fix, "%s are dropped by %s", f.what, r.Rule)
		case r.Verdict == ruleset.Dropped:
			return fail(f.fix, "%s are dropped %s by %s", f.what, f.peers, r.Rule)
		case r.Verdict == ruleset.Partly || r.Verdict == ruleset.Mostly:
			return warn(f.fix, "some of the %s may be dropped by %s", f.what, r.Rule)
		}
		return Finding{}
	})
}

// flow is a kind of packets that must pass the host's rules.
type flow struct {
	what   string // "packets to UDP port 8472 (IPv4, incoming)"
	packet ruleset.Packet
	// Of a tunnel: the peers' addresses, of which each is evaluated if the packet's
	// own prefix does not decide.
	others []netip.Addr
	peers  string // of a result that is about some peers: "for 1 of 3 peers (192.168.0.4)"
	fix    string // if a rule drops the packets
}

// evaluate returns the first failure that judge finds in the results of the flows, or else
// the first warning. judge returns a zero Finding if a result is no problem. If there is no
// problem, but a part of the rules is not known or cannot be evaluated, the Finding is
// Undecided. The first of several such reasons counts.
func (s Snapshot) evaluate(flows []flow, judge func(flow, ruleset.Result) Finding) Finding {
	rules, missing := s.hostRules(flows)
	undecided, warning, whats := missing, Finding{}, []string{}
	for _, f := range flows {
		f, result := f.evaluate(rules)
		finding := judge(f, result)
		if finding.Verdict == Fail {
			return finding
		}
		warning = firstReason(warning, finding)
		if result.Verdict == ruleset.Undecided && undecided.Verdict == "" {
			undecided = undecidable("%s may be dropped by %s, which cannot be evaluated: %s", f.what, result.Rule, result.Reason)
		}
		whats = append(whats, f.what)
	}
	return firstReason(warning, undecided, ok("no rule drops %s", strings.Join(whats, ", ")))
}

// hostRules parses the host's rules. missing is a Finding if a part of them is not known,
// otherwise zero. The part that is known is in rules anyway, since it may have a rule that
// drops. NFTables is not known if nft is missing or fails; on a host without rules, its output
// still is a document, with an empty list.
func (s Snapshot) hostRules(flows []flow) (rules *ruleset.Ruleset, missing Finding) {
	rules = &ruleset.Ruleset{}
	for _, ipv6 := range []bool{false, true} {
		fact := s.Linux.IPTables
		if ipv6 {
			fact = s.Linux.IP6Tables
		}
		for _, l := range fact.Value {
			rules.AddIPTables(ipv6, l.Variant, l.Lines)
		}
		if slices.ContainsFunc(flows, func(f flow) bool { return f.packet.Dst.Addr().Is6() == ipv6 }) && missing.Verdict == "" {
			missing = fact.missing()
		}
	}
	// After AddIPTables, on which AddNFT relies.
	if nft := s.Linux.NFTables; !nft.Known {
		missing = nft.missing()
	} else if err := rules.AddNFT([]byte(nft.Value)); err != nil {
		missing = undecidable("%v", err)
	}
	return rules, missing
}

// evaluate evaluates the packets from or to any peer, and if that does not decide,
// those of each peer. It returns the worst result (in the order of ruleset's Verdicts: Passes,
// Partly, Mostly, Undecided, Dropped), and the flow with the peers that have it, if not all have.
func (f flow) evaluate(rules *ruleset.Ruleset) (flow, ruleset.Result) {
	all := rules.Evaluate(f.packet)
	if all.Verdict == ruleset.Passes || all.Verdict == ruleset.Dropped || len(f.others) == 0 { // the same for each
		return f, all
	}
	var worst ruleset.Result // zero: Passes
	var affected []netip.Addr
	for _, a := range f.others {
		p := f.packet
		if p.Path == ruleset.Outgoing {
			p.Dst = netip.PrefixFrom(a, a.BitLen())
		} else {
			p.Src = netip.PrefixFrom(a, a.BitLen())
		}
		switch result := rules.Evaluate(p); {
		case result.Verdict > worst.Verdict:
			worst, affected = result, []netip.Addr{a}
		case result.Verdict == worst.Verdict:
			affected = append(affected, a)
		}
	}
	if len(affected) < len(f.others) {
		f.peers = fmt.Sprintf("for %d of %d peers (%s)", len(affected), len(f.others), addresses(affected))
	}
	return f, worst
}

// addresses returns addresses for a text.
func addresses(list []netip.Addr) string {
	var texts []string
	for _, a := range list {
		texts = append(texts, a.String())
	}
	return several(texts)
}

// anyAddress returns the prefix of all addresses of a family.
func anyAddress(ipv6 bool) netip.Prefix {
	if ipv6 {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

// familyName returns the name of an address family for a text.
func familyName(ipv6 bool) string {
	if ipv6 {
		return "IPv6"
	}
	return "IPv4"
}

// podFlows returns the packets between pods of this node and of others.
func (s Snapshot) podFlows() (flows []flow) {
	for _, n := range s.networks() {
		if !n.Subnet.IsValid() || !n.Network.IsValid() {
			continue
		}
		inside := s.podBridges(n.Subnet)
		if len(inside) == 0 { // other CNI plugins use no bridge
			inside = []string{ruleset.AnyDevice}
		}
		for _, bridge := range inside {
			for _, tunnel := range s.podDevices(n.Subnet.Addr().Is6()) {
				to := ruleset.Packet{Path: ruleset.Forwarded, Src: n.Network, Dst: n.Subnet, In: tunnel, Out: bridge}
				from := ruleset.Packet{Path: ruleset.Forwarded, Src: n.Subnet, Dst: n.Network, In: bridge, Out: tunnel}
				in, out := "", ""
				if tunnel != ruleset.AnyDevice {
					in, out = " that arrive on "+tunnel, " that leave through "+tunnel
				}
				flows = append(flows, flow{what: fmt.Sprintf("packets to pods of this node in %s%s", n.Subnet, in), packet: to},
					flow{what: fmt.Sprintf("packets from pods of this node in %s%s", n.Subnet, out), packet: from})
			}
		}
	}
	return flows
}

// podBridges returns the names of the pods' bridge or, if it does not exist, of all bridges with an address of the
// subnet: Docker and others that read no CNI configuration may have been given the subnet. nil: pods use no bridge,
// or it does not exist.
func (s Snapshot) podBridges(subnet netip.Prefix) (names []string) {
	for _, b := range s.bridges() {
		names = append(names, b.Name)
	}
	if own, _ := s.ownPlugin(); len(names) > 0 || own.otherDelegate() != "" {
		return names
	}
	for _, d := range s.Linux.Devices.Value {
		if d.Type == "bridge" && s.hasAddress(d.Name, subnet.Contains) {
			names = append(names, d.Name)
		}
	}
	return names
}

// podDevices returns the devices that lead to the pods of other nodes: the tunnel
// of the family, or the underlay if there is none. With DirectRouting, the device of each
// tested peer that is reached directly is added.
func (s Snapshot) podDevices(ipv6 bool) (names []string) {
	n := s.node()
	if n == nil {
		for _, d := range s.tunnels() {
			if (d.OuterIsIPv6 || isForIPv6(d.Name)) == ipv6 {
				names = append(names, d.Name)
			}
		}
	} else {
		for _, d := range n.Devices {
			// Of two devices, the other one is the tunnel for all families.
			if d.Name != n.Underlay.Name && (isForIPv6(d.Name) == ipv6 || len(n.Devices) <= 2) {
				names = append(names, d.Name)
			}
		}
	}
	if len(names) == 0 {
		names = []string{s.underlayName()}
	}
	for _, p := range s.Linux.Paths.Value {
		if p.Kind == PathDirect && p.Subnet.Addr().Is6() == ipv6 {
			names = appendOnce(names, p.Device)
		}
	}
	return names
}

// underlayName returns the device that leads to the other nodes.
func (s Snapshot) underlayName() string {
	if n := s.node(); n != nil && n.Underlay.Name != "" {
		return n.Underlay.Name
	}
	for _, d := range s.tunnels() {
		if parent := s.device(d.Parent); parent.Name != "" {
			return parent.Name
		}
	}
	return ruleset.AnyDevice
}
