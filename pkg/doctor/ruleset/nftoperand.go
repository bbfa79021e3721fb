package ruleset

import (
	"fmt"
	"slices"
)

// operands returns the operands on the left side of an operator: several of a
// concatenation, otherwise one.
func (t nftTable) operands(left any) []operand {
	if o, ok := left.(object); ok {
		if parts, ok := o["concat"].([]any); ok && len(parts) > 0 {
			var operands []operand
			for _, part := range parts {
				operands = append(operands, t.operand(part))
			}
			return operands
		}
	}
	return []operand{t.operand(left)}
}

func (t nftTable) operand(left any) operand {
	text := expression(left)
	o, _ := left.(object)
	for name, value := range o { // one
		args, _ := value.(object)
		key, _ := args["key"].(string)
		switch name {
		case "payload":
			return payload(args, text)
		case "meta":
			return meta(key, text)
		case "ct":
			return connection(key, args, text)
		case "fib":
			return route(args, text)
		case "tcp option", "osf":
			return ofProtocol(6)
		case "sctp chunk":
			return ofProtocol(132)
		case "numgen", "jhash", "symhash":
			return free(yes)
		case "&":
			return t.masked(value, text)
		}
	}
	return opaque(text)
}

// masked returns the operand of {"&": [operand, mask]}.
func (t nftTable) masked(value any, text string) operand {
	parts, _ := value.([]any)
	if len(parts) != 2 {
		return opaque(text)
	}
	o := t.operand(parts[0])
	mask := parseValue(o.domain, parts[1])
	if list, ok := parts[1].([]any); ok {
		mask = union(o.domain, list)
	}
	if mask.bad || mask.device != "" { // the names of TCP's flags, for example
		return operand{o.domain, func(w *walk) field {
			f := o.read(w)
			if f.has != no && !f.free {
				f.has = w.unknown("%s", text)
			}
			f.free = true
			return f
		}}
	}
	return masked(o, mask.low)
}

// transports are the protocols whose header a payload expression can name.
var transports = map[string]int{"icmp": 1, "igmp": 2, "tcp": 6, "udp": 17, "dccp": 33, "gre": 47, "esp": 50, "ah": 51, "icmpv6": 58,
	"comp": 108, "sctp": 132, "udplite": 136}

// payload returns a field of a header.
func payload(args object, text string) operand {
	protocolName, _ := args["protocol"].(string)
	fieldName, _ := args["field"].(string)
	transport, isTransport := transports[protocolName]
	switch {
	case args["tunnel"] != nil: // a header in the tunnel's payload
		return free(some)
	case args["base"] != nil:
		return raw(args, text)
	case protocolName == "th" && fieldName == "sport":
		return port(sourcePort, withPorts...)
	case protocolName == "th" && fieldName == "dport":
		return port(destinationPort, withPorts...)
	case slices.Contains(withPorts, transport) && fieldName == "sport":
		return port(sourcePort, transport)
	case slices.Contains(withPorts, transport) && fieldName == "dport":
		return port(destinationPort, transport)
	case isTransport:
		return ofProtocol(transport)
	}
	switch protocolName {
	case "ip":
		return ofFamily(true, network(fieldName, "protocol"))
	case "ip6":
		return ofFamily(false, network(fieldName, "nexthdr"))
	case "ether":
		return free(some)
	case "arp":
		return free(no)
	}
	return opaque(text)
}

// network returns a field of the IP header.
func network(name, next string) operand {
	switch name {
	case "saddr":
		return source
	case "daddr":
		return destination
	case next:
		return protocol
	}
	return free(yes)
}

// raw returns a field by its place: {"base": "th", "offset": 16, "len": 16}, in bits.
func raw(args object, text string) operand {
	switch fmt.Sprintf("%v,%v,%v", args["base"], args["offset"], args["len"]) {
	case "th,0,16":
		return port(sourcePort, withPorts...)
	case "th,16,16":
		return port(destinationPort, withPorts...)
	}
	return opaque(text)
}

// meta returns what the kernel knows about the packet.
func meta(key, text string) operand {
	switch key {
	case "l4proto":
		return protocol
	case "nfproto":
		return family
	case "protocol":
		return etherType
	case "iif", "iifname":
		return inDevice
	case "oif", "oifname":
		return outDevice
	case "mark":
		return packetMark
	case "pkttype":
		return packetType
	case "length", "priority", "skuid", "skgid", "cgroup", "cpu", "random", "time", "day", "hour", "rtclassid", "iifgroup",
		"oifgroup", "iiftype", "oiftype":
		return free(yes)
	}
	return opaque(text)
}

// connection returns what connection tracking knows about the packet.
func connection(key string, args object, text string) operand {
	switch key {
	case "state":
		return conntrack
	case "status":
		return connStatus
	case "mark":
		return connMark
	case "direction":
		return connDirected
	}
	if args["dir"] == "original" { // the packet is the first, and has not been translated
		switch key {
		case "saddr", "ip saddr", "ip6 saddr":
			return tracked(source)
		case "daddr", "ip daddr", "ip6 daddr":
			return tracked(destination)
		case "protocol":
			return tracked(protocol)
		case "proto-src":
			return tracked(port(sourcePort, withPorts...))
		case "proto-dst":
			return tracked(port(destinationPort, withPorts...))
		}
	}
	switch key {
	case "bytes", "packets", "avgpkt", "expiration", "id":
		return tracked(free(yes))
	}
	return opaque(text)
}

// route returns what the routing table has for the packet's address.
func route(args object, text string) operand {
	flags, _ := args["flags"].([]any)
	if one, ok := args["flags"].(string); ok {
		flags = []any{one}
	}
	switch {
	case args["result"] == "oif": // only compared with "missing" and "exists"
		return fixed(booleans, 1)
	case args["result"] != "type":
	case slices.Contains(flags, any("saddr")):
		return sourceType
	case slices.Contains(flags, any("daddr")):
		return destinationType
	}
	return opaque(text)
}
