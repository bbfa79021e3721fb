package ruleset

import (
	"slices"
	"strings"

	"flannel/pkg/firewall"
)

// modules are the extensions of iptables (-m NAME) that match nothing by themselves: their
// options do (iptables-extensions(8)).
var modules = []string{"tcp", "udp", "udplite", "sctp", "dccp", "icmp", "icmp6", "ipv6-icmp", "multiport", "comment", "conntrack", "state",
	"addrtype", "mark", "connmark", "limit", "hashlimit", "iprange", "pkttype", "physdev", "statistic", "length", "ttl", "hl", "dscp",
	"tos", "time", "connlimit", "connbytes", "mac", "owner", "set", "recent", "string", "bpf", "u32", "cgroup", "quota"}

// varying are options that hold for some packets, depending on what Packet leaves open.
// parameters are options that belong to another option, and are no condition of their own.
var (
	varying = []string{"--limit", "--hashlimit", "--hashlimit-upto", "--hashlimit-above", "--probability", "--every", "--length",
		"--connlimit-above", "--connlimit-upto", "--connbytes", "--quota", "--ttl-eq", "--ttl-lt", "--ttl-gt", "--hl-eq", "--hl-lt", "--hl-gt",
		"--dscp", "--dscp-class", "--tos", "--mac-source", "--uid-owner", "--gid-owner", "--socket-exists", "--icmp-type", "--icmpv6-type",
		"--tcp-flags", "--syn", "--tcp-option", "--timestart", "--timestop", "--weekdays", "--monthdays", "--datestart", "--datestop"}
	parameters = []string{"--comment", "--limit-burst", "--hashlimit-name", "--hashlimit-mode", "--hashlimit-burst", "--hashlimit-srcmask",
		"--hashlimit-dstmask", "--hashlimit-htable-size", "--hashlimit-htable-max", "--hashlimit-htable-expire",
		"--hashlimit-htable-gcinterval", "--mode", "--packet", "--connlimit-mask", "--connlimit-saddr", "--connlimit-daddr",
		"--connbytes-dir", "--connbytes-mode", "--kerneltz", "--utc", "--loose", "--validmark", "--accept-local", "--invert"}
)

// setsOfServices are the sets of kube-proxy's IPVS mode in the table filter. For IPv6, the names begin with KUBE-6-. Their
// elements are addresses of Services, some with a port, and ports for health checks of load balancers. kube-router has
// sets with other names that begin with KUBE-.
var setsOfServices = []string{"KUBE-CLUSTER-IP", "KUBE-EXTERNAL-IP", "KUBE-EXTERNAL-IP-LOCAL", "KUBE-LOAD-BALANCER", "KUBE-LOAD-BALANCER-FW",
	"KUBE-LOAD-BALANCER-SOURCE-CIDR", "KUBE-LOAD-BALANCER-SOURCE-IP", "KUBE-HEALTH-CHECK-NODE-PORT", "KUBE-IPVS-IPS"}

// moduleStep returns the step of -m module. options are those behind it, text is what a
// Result shows.
func moduleStep(module string, options []firewall.MatchOption, text string) step {
	switch {
	case slices.Contains(modules, module):
		return always(yes, text)
	case module == "rpfilter": // a route leads back to where the packet came from: Packet says so
		inverted := slices.ContainsFunc(options, func(o firewall.MatchOption) bool { return o.Name == "--invert" })
		return always(answerOf(!inverted), text)
	}
	return always(unknown, text)
}

// compared are the options that compare a part of the packet with a list of values.
var compared = map[string]operand{
	"-p": protocol, "-i": inDevice, "-o": outDevice, "-s": source, "--src-range": source, "-d": destination, "--dst-range": destination,
	"--sport": anySourcePort, "--sports": anySourcePort, "--dport": anyDestinationPort, "--dports": anyDestinationPort,
	"--ctstate": conntrack, "--state": conntrack, "--ctdir": connDirected,
	"--src-type": sourceType, "--dst-type": destinationType, "--pkt-type": packetType,
}

// option returns the step of an option, such as --dport 53. o.Name is "--dport", o.Value() is
// "53", and o.Not tells that "!" stands before it. module is the extension (-m) before it;
// "": none.
func option(module string, o firewall.MatchOption, text string) step {
	if of, ok := compared[o.Name]; ok {
		return condition(text, []operand{of}, words(of.domain, o.Value()), o.Not)
	}
	switch {
	case o.Name == "-f" || o.Name == "--physdev-is-bridged":
		// Never: conntrack reassembles fragments, tunnels send none, and what is routed
		// is not bridged.
		return always(answerOf(o.Not), text)
	case o.Name == "--ports":
		return eitherPort(text, words(numbers, o.Value()), o.Not)
	case o.Name == "--mark":
		return markOption(module, o.Value(), o.Not, text)
	case o.Name == "--match-set" && slices.Contains(setsOfServices, strings.Replace(o.Value(), "KUBE-6-", "KUBE-", 1)):
		return ofService(o.Not, text)
	case slices.Contains(varying, o.Name):
		return always(some, text)
	case slices.Contains(parameters, o.Name):
		return always(yes, text)
	}
	return always(unknown, text)
}

// ofService is the condition on a set of kube-proxy. Its elements are not known, but a packet that goes to no
// Service is not in the set.
func ofService(negated bool, text string) step {
	return func(w *walk, _ answer) (answer, []branch) {
		if w.packet.MayBeService {
			return w.unknown("%s", text), nil
		}
		return answerOf(negated), nil
	}
}

// words parses a list that is separated by commas, or the name of a device, which can have
// commas. "+" at its end stands for any end.
func words(d domain, text string) set {
	if d == devices { // iptables has + as wildcard, parseWord has *
		if start, pattern := strings.CutSuffix(text, "+"); pattern {
			text = start + "*"
		}
		return setOf(parseWord(d, text))
	}
	var values []value
	for word := range strings.SplitSeq(text, ",") {
		if d == states && (word == "SNAT" || word == "DNAT") { // bits of the status, which the first packet of a connection has not
			values = append(values, value{}) // 0, a state that no packet has
			continue
		}
		values = append(values, parseWord(d, word))
	}
	return setOf(values...)
}

// eitherPort is the condition on the source port or the destination port. Conditions have no
// verdicts, so that there are no branches to combine.
func eitherPort(text string, s set, negated bool) step {
	src := condition(text, []operand{anySourcePort}, s, false)
	dst := condition(text, []operand{anyDestinationPort}, s, false)
	return func(w *walk, reached answer) (answer, []branch) {
		a, _ := src(w, reached)
		b, _ := dst(w, reached)
		if negated {
			return not(or(a, b)), nil
		}
		return or(a, b), nil
	}
}

// markOption is the condition --mark of the extensions mark and connmark. text is what a
// Result shows.
func markOption(module, wanted string, negated bool, text string) step {
	v, mask, ok := maskedNumber(wanted)
	field := packetMark
	if module == "connmark" {
		field = connMark
	}
	if !ok || module != "mark" && module != "connmark" {
		return always(unknown, text)
	}
	return condition(text, []operand{masked(field, numeral(mask), text)}, setOf(numeral(v)), negated)
}

// numeral returns the value of one number.
func numeral(n uint64) value { return value{span: point(number(n))} }
