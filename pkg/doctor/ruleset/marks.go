package ruleset

// This file has the steps of rules that set or copy the mark of a packet (meta
// mark, MARK) or of its connection (ct mark, CONNMARK). Later rules may have
// conditions on these marks.

// formula is a new mark, computed from the old one: (old & keep) ^ xor.
type formula struct{ keep, xor uint64 }

// mangle follows the marks of packets and connections: {"key": …, "value": …}.
func (t nftTable) mangle(args object, text string) step {
	const ofPacket, ofConnection = "meta mark", "ct mark"
	target, source := identity(args["key"]), identity(args["value"])
	switch {
	case target == ofPacket && source == ofConnection, target == ofConnection && source == ofPacket:
		return copyMark(target == ofPacket)
	case target == ofPacket, target == ofConnection:
		f, known := parseFormula(target, args["value"])
		return setMark(target == ofPacket, f, known)
	}
	if key, _ := args["key"].(object); key["payload"] != nil {
		return leave(text) // it changes the packet, so what follows cannot be evaluated: Undecided
	}
	return always(yes, text)
}

// parseFormula parses an expression of numbers and the mark with this identity
// ("meta mark"). known is false if the expression has anything else.
func parseFormula(name string, expr any) (f formula, known bool) {
	if identity(expr) == name {
		return formula{keep: allBits}, true
	}
	o, ok := expr.(object)
	if !ok {
		v := parseValue(numbers, expr) // a span of one number, of which low.low() returns the 64 bits
		return formula{xor: v.low.low()}, !v.bad
	}
	for operator, value := range o { // an object of nft has one member
		parts, _ := value.([]any)
		if len(parts) != 2 {
			return f, false
		}
		f, known = parseFormula(name, parts[0])
		v := parseValue(numbers, parts[1])
		n := v.low.low()
		switch operator { // of (old & keep) ^ xor, and n
		case "&":
			f.keep, f.xor = f.keep&n, f.xor&n
		case "|":
			f.keep, f.xor = f.keep&^n, f.xor|n
		case "^":
			f.xor ^= n
		default:
			known = false
		}
		known = known && !v.bad
	}
	return f, known
}

// setMark is a step that changes the mark of the packet, or that of the connection.
// If the formula is not known, the mark is not known afterwards: mark.set with unknown,
// in place of reached, makes all of its 32 bits open.
func setMark(ofPacket bool, f formula, known bool) step {
	return func(w *walk, reached answer) (answer, []branch) {
		m := &w.ctMark
		if ofPacket {
			m = &w.mark
		}
		if known {
			m.set(reached, allBits&^f.keep, f.xor)
		} else {
			m.set(unknown, allBits, 0)
		}
		return yes, nil
	}
}

// copyMark is a step that copies the connection's mark to the packet, or the
// packet's to the connection.
func copyMark(toPacket bool) step {
	return func(w *walk, reached answer) (answer, []branch) {
		from, to := &w.mark, &w.ctMark
		if toPacket {
			from, to = to, from
		}
		switch {
		case reached == yes:
			*to = *from
		case *to != *from: // else the copy changes nothing
			to.set(unknown, allBits, 0)
		}
		return yes, nil
	}
}
