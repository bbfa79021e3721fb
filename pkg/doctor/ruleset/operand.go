package ruleset

// operand is a part of a packet that rules compare. read returns its values for the
// packets of a walk, and domain says how rules write such values.
type operand struct {
	domain domain
	read   func(*walk) field
}

// field is what an operand reads: the values that it has for the packets of a walk.
// It is a span, a device, or free. For example, the field of the destination port
// has the span 53-53 if Packet.DstPort is 53, and 1-65535 if that is 0.
type field struct {
	has      answer // which packets have it; a condition never holds for the others
	span            // its values
	open     uint64 // bits that are not known, of a mark
	device   string // with isDevice: its name, AnyDevice, or "" where the hook has none
	isDevice bool
	free     bool // any value is possible: conditions hold for some
}

// spanField and numberField return a field of the packet that is known.
func spanField(s span) field { return field{has: yes, span: s} }

func numberField(n uint64) field { return spanField(point(number(n))) }

// free is an operand that Packet leaves open. Its domain does not matter, since
// value.matches looks at field.free before the value.
func free(has answer) operand {
	return operand{read: func(*walk) field { return field{has: has, free: true} }}
}

// opaque is an operand that this package cannot evaluate.
func opaque(text string) operand {
	return operand{read: func(w *walk) field { return field{has: w.unknown("%s", text), free: true} }}
}

// fixed is an operand with the same value for all packets.
func fixed(d domain, n uint64) operand {
	return operand{d, func(*walk) field { return numberField(n) }}
}

// Operands of both nftables and iptables.
var (
	source       = operand{addresses, func(w *walk) field { return spanField(prefix(w.packet.Src)) }}
	destination  = operand{addresses, func(w *walk) field { return spanField(prefix(w.packet.Dst)) }}
	inDevice     = operand{devices, func(w *walk) field { return field{has: yes, device: w.in, isDevice: true} }}
	outDevice    = operand{devices, func(w *walk) field { return field{has: yes, device: w.out, isDevice: true} }}
	packetMark   = operand{numbers, func(w *walk) field { return w.mark.field() }}
	conntrack    = operand{states, readState}
	connMark     = tracked(operand{numbers, func(w *walk) field { return w.ctMark.field() }})
	connStatus   = tracked(fixed(statuses, 0))   // the first packet of a connection has no bit of it
	connDirected = tracked(fixed(directions, 0)) // and is in the original direction

	protocol = operand{protocols, func(w *walk) field {
		if w.packet.Protocol == 0 {
			return spanField(span{number(1), number(255)})
		}
		return numberField(uint64(w.packet.Protocol))
	}}
	family    = byFamily(families, "ipv4", "ipv6")
	etherType = byFamily(etherTypes, "ip", "ip6")
	// packetType is that of the link layer; what leaves the host has none yet.
	packetType = operand{packetTypes, func(w *walk) field {
		if w.in == "" {
			return field{has: yes, free: true}
		}
		return numberField(names[packetTypes]["host"])
	}}
	// anySourcePort and anyDestinationPort are ports of any protocol that has them.
	anySourcePort      = port(sourcePort, withPorts...)
	anyDestinationPort = port(destinationPort, withPorts...)
	// sourceType and destinationType are the types of the routes to the addresses.
	sourceType      = routeType(Outgoing)
	destinationType = routeType(Incoming)
)

// field returns the mark as a field, with the bits that are not known in open.
func (m mark) field() field {
	f := numberField(m.value)
	f.open = m.open
	return f
}

// byFamily is an operand with one value for IPv4, and another one for IPv6.
func byFamily(d domain, v4, v6 string) operand {
	return operand{d, func(w *walk) field {
		if w.v4() {
			return numberField(names[d][v4])
		}
		return numberField(names[d][v6])
	}}
}

// routeType is the type of the route to an address: "local" (the host's own) on the
// path given, else "unicast".
func routeType(local Path) operand {
	return operand{routeTypes, func(w *walk) field {
		if w.packet.Path == local {
			return numberField(names[routeTypes]["local"])
		}
		return numberField(names[routeTypes]["unicast"])
	}}
}

// readState returns the state of the connection.
func readState(w *walk) field {
	switch w.untracked {
	case no:
		return numberField(stateNew)
	case yes:
		return numberField(stateUntracked)
	}
	return field{has: w.unknown("which packets are tracked"), free: true}
}

// tracked limits an operand of connection tracking to the packets that are tracked.
func tracked(o operand) operand {
	return operand{o.domain, func(w *walk) field {
		f := o.read(w)
		f.has = and(f.has, not(w.untracked))
		return f
	}}
}

// port is an operand of packets with one of the protocols.
func port(read func(Packet) int, protocols ...int) operand {
	return operand{numbers, func(w *walk) field {
		f := spanField(ports(read(w.packet)))
		f.has = w.packet.isOf(protocols...)
		return f
	}}
}

func sourcePort(p Packet) int      { return p.SrcPort }
func destinationPort(p Packet) int { return p.DstPort }

// isOf tells which packets have one of the protocols.
func (p Packet) isOf(protocols ...int) answer {
	if p.Protocol == 0 {
		return some
	}
	for _, number := range protocols {
		if p.Protocol == number {
			return yes
		}
	}
	return no
}

// withPorts are the protocols with ports at the start of their header: TCP, UDP,
// DCCP, SCTP, UDP-Lite.
var withPorts = []int{6, 17, 33, 132, 136}

// ofProtocol is a field of a protocol's header that Packet leaves open, such as a
// TCP flag.
func ofProtocol(number int) operand {
	return operand{numbers, func(w *walk) field { return field{has: w.packet.isOf(number), free: true} }}
}

// ofFamily limits an operand to packets of a family.
func ofFamily(v4 bool, o operand) operand {
	return operand{o.domain, func(w *walk) field {
		f := o.read(w)
		f.has = and(f.has, answerOf(w.v4() == v4))
		return f
	}}
}

// masked is an operand with a bit mask. text is how the rule names it, for
// Result.Reason.
func masked(o operand, mask value, text string) operand {
	return operand{o.domain, func(w *walk) field {
		f := o.read(w)
		switch {
		case f.has == no: // the mask changes nothing: there is no value
		case f.free: // nor here: it may have any value
		case f.isDevice || mask.bad:
			return field{has: w.unknown("%s", text), free: true}
		case f.low != f.high:
			f.free = true // some bits vary
		default:
			f.span, f.open = point(f.low.mask(mask.low)), f.open&mask.low.low()
		}
		return f
	}}
}
