package ruleset

import (
	"slices"
	"strings"
)

// nftOperands are operands of nft by what expression returns of them.
var nftOperands = map[string]operand{
	"ip saddr": ofFamily(true, source), "ip daddr": ofFamily(true, destination), "ip protocol": ofFamily(true, protocol),
	"ip6 saddr": ofFamily(false, source), "ip6 daddr": ofFamily(false, destination), "ip6 nexthdr": ofFamily(false, protocol),
	"th sport": port(sourcePort, withPorts...), "th dport": port(destinationPort, withPorts...),
	"@th,0,16": port(sourcePort, withPorts...), "@th,16,16": port(destinationPort, withPorts...),
	"tcp option": ofProtocol(6), "osf": ofProtocol(6), "sctp chunk": ofProtocol(132),
	"numgen": free(yes), "jhash": free(yes), "symhash": free(yes),

	"meta l4proto": protocol, "meta nfproto": family, "meta protocol": etherType, "meta iif": inDevice, "meta iifname": inDevice,
	"meta oif": outDevice, "meta oifname": outDevice, "meta mark": packetMark, "meta pkttype": packetType,

	"ct state": conntrack, "ct status": connStatus, "ct mark": connMark, "ct direction": connDirected,
	// The packet is the first of its connection, and has not been translated.
	"ct original saddr": tracked(source), "ct original ip saddr": tracked(source), "ct original ip6 saddr": tracked(source),
	"ct original daddr": tracked(destination), "ct original ip daddr": tracked(destination), "ct original ip6 daddr": tracked(destination),
	"ct original protocol": tracked(protocol), "ct original proto-src": tracked(port(sourcePort, withPorts...)),
	"ct original proto-dst": tracked(port(destinationPort, withPorts...)),
}

// openMeta and openConnection are what the kernel knows about a packet and about its
// connection, and Packet leaves open.
var (
	openMeta = []string{"length", "priority", "skuid", "skgid", "cgroup", "cpu", "random", "time", "day", "hour", "rtclassid", "iifgroup",
		"oifgroup", "iiftype", "oiftype"}
	openConnection = []string{"bytes", "packets", "avgpkt", "expiration", "id"}
)

// transports are the protocols whose header a payload expression can name.
var transports = map[string]int{"icmp": 1, "igmp": 2, "tcp": 6, "udp": 17, "dccp": 33, "gre": 47, "esp": 50, "ah": 51, "icmpv6": 58,
	"comp": 108, "sctp": 132, "udplite": 136}

// operandsOf returns the operands on the left side of an operator: several of a
// concatenation, otherwise one.
func operandsOf(left any) (all []operand) {
	o, _ := left.(object)
	parts, _ := o["concat"].([]any)
	if len(parts) == 0 {
		parts = []any{left}
	}
	for _, part := range parts {
		all = append(all, nftOperand(part))
	}
	return all
}

func nftOperand(expr any) operand {
	o, _ := expr.(object)
	text := expression(expr)
	if parts, ok := o["&"].([]any); ok && len(parts) == 2 {
		of := nftOperand(parts[0])
		return masked(of, parseValue(of.domain, parts[1]), text)
	}
	if header, ok := o["payload"].(object); ok && header["tunnel"] != nil { // in the tunnel's payload
		return free(some)
	}
	if known, ok := nftOperands[text]; ok {
		return known
	}
	kind, key, _ := strings.Cut(text, " ")
	key = key[strings.LastIndex(key, " ")+1:] // without a direction or flags
	transport, isTransport := transports[kind]
	switch {
	case isTransport && key == "sport" && slices.Contains(withPorts, transport):
		return port(sourcePort, transport)
	case isTransport && key == "dport" && slices.Contains(withPorts, transport):
		return port(destinationPort, transport)
	case isTransport && key != "":
		return ofProtocol(transport)
	case kind == "ip" && key != "", kind == "ip6" && key != "":
		return ofFamily(kind == "ip", free(yes))
	case kind == "ether" && key != "":
		return free(some)
	case kind == "arp" && key != "":
		return free(no)
	case kind == "meta" && slices.Contains(openMeta, key):
		return free(yes)
	case kind == "ct" && slices.Contains(openConnection, key):
		return tracked(free(yes))
	case kind == "fib" && key == "oif": // only compared with "missing" and "exists"
		return fixed(booleans, 1)
	case kind == "fib" && key == "type" && strings.Contains(text, "saddr"):
		return sourceType
	case kind == "fib" && key == "type" && strings.Contains(text, "daddr"):
		return destinationType
	}
	return opaque(text)
}
