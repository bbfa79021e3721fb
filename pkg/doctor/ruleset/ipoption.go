package ruleset

import (
	"net/netip"
	"slices"
	"strings"

	"flannel/pkg/firewall/iptsave"
)

// modules are the extensions of iptables that match nothing by themselves: their
// options do (iptables-extensions(8)).
var modules = []string{"tcp", "udp", "udplite", "sctp", "dccp", "icmp", "icmp6", "ipv6-icmp", "multiport", "comment", "conntrack", "state",
	"addrtype", "mark", "connmark", "limit", "hashlimit", "iprange", "pkttype", "physdev", "statistic", "length", "ttl", "hl", "dscp",
	"tos", "time", "connlimit", "connbytes", "mac", "owner", "set", "recent", "string", "bpf", "u32", "cgroup", "quota"}

// varying are options that hold for some packets, depending on what Packet leaves
// open, and parameters those that only belong to one of them.
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

// moduleStep returns the step of -m. options are those behind it.
func moduleStep(module string, options []iptsave.Option, text string) step {
	switch {
	case slices.Contains(modules, module):
		return always(yes, text)
	case module == "rpfilter": // holds if a route leads back to where the packet came from
		inverted := slices.ContainsFunc(options, func(o iptsave.Option) bool { return o.Name == "--invert" })
		return always(answerOf(!inverted), text)
	}
	return always(unknown, text)
}

// option returns the condition of an option. module is the extension before it.
func option(module string, o iptsave.Option, text string) step {
	compare := func(field operand, s set) step { return condition(text, []operand{field}, s, o.Not) }
	first := o.Value()
	switch o.Name {
	case "-p":
		if first == "all" || first == "0" {
			return always(answerOf(!o.Not), text)
		}
		return compare(protocol, setOf(parseWord(protocols, first)))
	case "-s":
		return compare(source, words(addresses, first))
	case "-d":
		return compare(destination, words(addresses, first))
	case "--src-range":
		return compare(source, addressRange(first))
	case "--dst-range":
		return compare(destination, addressRange(first))
	case "-i":
		return compare(inDevice, device(first))
	case "-o":
		return compare(outDevice, device(first))
	case "-f": // never: conntrack reassembles fragments, and tunnels send none
		return always(answerOf(o.Not), text)
	case "--sport", "--sports":
		return compare(port(sourcePort, withPorts...), portList(first))
	case "--dport", "--dports":
		return compare(port(destinationPort, withPorts...), portList(first))
	case "--ports":
		return eitherPort(text, portList(first), o.Not)
	case "--ctstate", "--state":
		return bits(text, conntrack, words(states, first), o.Not)
	case "--ctdir":
		return compare(connDirected, words(directions, first))
	case "--src-type":
		return compare(sourceType, words(routeTypes, first))
	case "--dst-type":
		return compare(destinationType, words(routeTypes, first))
	case "--pkt-type":
		return compare(packetType, words(packetTypes, first))
	case "--mark":
		return markOption(module, first, o.Not, text)
	case "--physdev-is-bridged": // routed packets are not
		return always(answerOf(o.Not), text)
	}
	switch {
	case slices.Contains(varying, o.Name):
		return always(some, text)
	case slices.Contains(parameters, o.Name):
		return always(yes, text)
	}
	return always(unknown, text)
}

// words parses a list that is separated by commas.
func words(d domain, text string) set {
	var values []value
	for word := range strings.SplitSeq(text, ",") {
		switch v := parseWord(d, word); {
		case d == states && (word == "SNAT" || word == "DNAT"): // bits of the status; the packet is not translated
			values = append(values, value{})
		default:
			values = append(values, v)
		}
	}
	return setOf(values...)
}

// portList parses "53,8000:9000".
func portList(text string) set {
	var values []value
	for item := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(item, ":")
		if !isRange {
			last = first
		}
		low, high := parseWord(numbers, first), parseWord(numbers, last)
		values = append(values, value{span: span{low.low, high.low}, bad: low.bad || high.bad})
	}
	return setOf(values...)
}

// eitherPort is the condition on the source port or the destination port.
func eitherPort(text string, s set, negated bool) step {
	of := func(read func(Packet) int) step {
		return condition(text, []operand{port(read, withPorts...)}, s, false)
	}
	src, dst := of(sourcePort), of(destinationPort)
	return func(w *walk, reached answer) (answer, []branch) {
		a, _ := src(w, reached)
		b, _ := dst(w, reached)
		if match := or(a, b); !negated {
			return match, nil
		}
		return not(or(a, b)), nil
	}
}

// device parses a device's name, where "+" at the end stands for any end.
func device(name string) set {
	if start, pattern := strings.CutSuffix(name, "+"); pattern {
		name = start + "*"
	}
	return setOf(value{device: name})
}

// addressRange parses "10.0.0.1-10.0.0.9".
func addressRange(text string) set {
	first, last, _ := strings.Cut(text, "-")
	low, err1 := netip.ParseAddr(first)
	high, err2 := netip.ParseAddr(last)
	if err1 != nil || err2 != nil {
		return setOf(value{bad: true})
	}
	return setOf(value{span: span{address(low), address(high)}})
}

// markOption is the condition --mark of the extensions mark and connmark.
func markOption(module, text string, negated bool, rule string) step {
	value, mask, ok := maskedNumber(text)
	field := packetMark
	if module == "connmark" {
		field = connMark
	}
	if !ok || module != "mark" && module != "connmark" {
		return always(unknown, rule)
	}
	return condition(rule, []operand{masked(field, number(mask))}, setOf(numeral(value)), negated)
}

func numeral(n uint64) value { return value{span: point(number(n))} }
