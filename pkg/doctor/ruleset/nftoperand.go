package ruleset

import (
	"fmt"
	"slices"
	"strings"
)

// nftOperands are operands of nft by their identity, the text that the function identity
// makes of an expression in nft's JSON (libnftables-json(5)). An operand reads a field:
// the values that a part of the packets has (operand.go). The packets are those of a
// walk, which a Packet describes (ruleset.go): the first of their connections. What
// Packet does not determine is free:
//
//	free(yes)    every packet has the part, with any value
//	free(some)   some packets have it, with any value
//	free(no)     no packet has it, so that no condition on it holds
//	opaque       this package cannot evaluate it, so that the result is unknown
//	tracked(o)   o, for packets whose connection is tracked; others do not have it
//	fixed(d, n)  every packet has the value n of the domain d
var nftOperands = map[string]operand{
	"payload ip saddr": ofFamily(true, source), "payload ip6 saddr": ofFamily(false, source),
	"payload ip daddr": ofFamily(true, destination), "payload ip6 daddr": ofFamily(false, destination),
	"payload ip protocol": ofFamily(true, protocol), "payload ip6 nexthdr": ofFamily(false, protocol),
	"payload th sport": anySourcePort, "payload th dport": anyDestinationPort,
	"payload th 0 16": anySourcePort, "payload th 16 16": anyDestinationPort,
	"tcp option": ofProtocol(6), "osf": ofProtocol(6), "sctp chunk": ofProtocol(132),
	"numgen": free(yes), "jhash": free(yes), "symhash": free(yes),
	// The host has a route back, so the value is 1 ("exists"). Some versions of nft from 2025
	// call the result "check".
	"fib oif": fixed(booleans, 1), "fib check": fixed(booleans, 1),

	"meta l4proto": protocol, "meta nfproto": family, "meta protocol": etherType, "meta iif": inDevice, "meta iifname": inDevice,
	"meta oif": outDevice, "meta oifname": outDevice, "meta mark": packetMark, "meta pkttype": packetType,

	"ct state": conntrack, "ct status": connStatus, "ct mark": connMark, "ct direction": connDirected,
	// The "original" addresses are the packet's own: it is the first of its connection,
	// and has not been translated (NAT).
	"ct original saddr": tracked(source), "ct original ip saddr": tracked(source), "ct original ip6 saddr": tracked(source),
	"ct original daddr": tracked(destination), "ct original ip daddr": tracked(destination), "ct original ip6 daddr": tracked(destination),
	"ct original protocol": tracked(protocol), "ct original proto-src": tracked(anySourcePort),
	"ct original proto-dst": tracked(anyDestinationPort),
}

// selectors are the arguments of an expression that belong to its identity, in order.
var selectors = map[string][]string{"payload": {"tunnel", "protocol", "field", "base", "offset", "len"}, "meta": {"key"},
	"ct": {"dir", "key"}, "fib": {"result"}}

// openMeta and openConnection are keys of meta and ct: what the kernel knows about a
// packet and about its connection, and Packet leaves open, so that a condition on it
// holds for some packets.
var (
	openMeta = []string{"length", "priority", "skuid", "skgid", "cgroup", "cpu", "random", "time", "day", "hour", "rtclassid", "iifgroup",
		"oifgroup", "iiftype", "oiftype"}
	openConnection = []string{"bytes", "packets", "avgpkt", "expiration", "id"}
)

// transports are the protocols whose header a payload expression can name.
var transports = map[string]int{"icmp": 1, "igmp": 2, "tcp": 6, "udp": 17, "dccp": 33, "gre": 47, "esp": 50, "ah": 51, "icmpv6": 58,
	"comp": 108, "sctp": 132, "udplite": 136}

// member returns the name and the value of a statement or an expression, which is a JSON
// object with one member: {"drop": null}. name is "" for anything else.
func member(of any) (name string, value any) {
	o, _ := of.(object)
	if len(o) != 1 {
		return "", nil
	}
	for name, value = range o {
	}
	return name, value
}

// identity returns which operand an expression is: its name and the parts that select the
// operand, "ct original saddr".
func identity(expr any) string {
	name, value := member(expr)
	args, _ := value.(object)
	words := []string{name}
	for _, selector := range selectors[name] {
		if part, ok := args[selector]; ok {
			words = append(words, fmt.Sprint(part))
		}
	}
	return strings.Join(words, " ")
}

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

// nftOperand returns the operand of an expression; opaque: it is not known here.
func nftOperand(expr any) operand {
	if known, ok := nftOperands[identity(expr)]; ok {
		return known
	}
	name, value := member(expr)
	args, _ := value.(object)
	parts, _ := value.([]any)
	key, _ := args["key"].(string)
	flags := fmt.Sprint(args["flags"]) // one or a list
	text := expression(expr)
	switch {
	case name == "&" && len(parts) == 2:
		of := nftOperand(parts[0])
		return masked(of, parseValue(of.domain, parts[1]), text)
	case name == "payload":
		return payload(args, text)
	case name == "meta" && slices.Contains(openMeta, key):
		return free(yes)
	case name == "ct" && slices.Contains(openConnection, key):
		return tracked(free(yes))
	case name == "fib" && args["result"] == "type" && strings.Contains(flags, "saddr"):
		return sourceType
	case name == "fib" && args["result"] == "type" && strings.Contains(flags, "daddr"):
		return destinationType
	}
	return opaque(text)
}

// payload returns a field of a header that nftOperands does not have.
func payload(args object, text string) operand {
	header, _ := args["protocol"].(string)
	transport, isTransport := transports[header]
	hasPorts := slices.Contains(withPorts, transport)
	switch {
	case args["tunnel"] != nil: // a header inside of a tunnel's packet, which some have
		return free(some)
	case args["base"] != nil: // raw bytes, by offset and length
		return opaque(text)
	case hasPorts && args["field"] == "sport":
		return port(sourcePort, transport)
	case hasPorts && args["field"] == "dport":
		return port(destinationPort, transport)
	case isTransport:
		return ofProtocol(transport)
	case header == "ip", header == "ip6":
		return ofFamily(header == "ip", free(yes))
	case header == "ether":
		return free(some)
	case header == "arp":
		return free(no)
	}
	return opaque(text)
}
