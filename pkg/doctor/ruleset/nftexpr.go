package ruleset

import (
	"encoding/json"
	"fmt"
	"strings"
)

// match returns the step of a condition: {"op": …, "left": …, "right": …}. "<"
// is made as not in the set of values from right on, and ">" as not in the set
// up to right.
func (t nftTable) match(args object, text string) step {
	operands := operandsOf(args["left"]) // at least one
	operator, _ := args["op"].(string)
	right := args["right"]
	negated := operator == "!=" || operator == "<" || operator == ">"
	var s set
	switch operator {
	case "in", "!": // "in": one of these bits is set, so the masked operand is not 0. "!": none is.
		if len(operands) > 1 {
			return always(unknown, text)
		}
		bits := masked(operands[0], parseValue(operands[0].domain, right), text)
		return condition(text, []operand{bits}, setOf(value{}), operator == "in")
	case "==", "!=":
		s = t.set(operands, right)
	case "<", ">=":
		v := parseValue(operands[0].domain, right)
		s = setOf(value{span: span{v.low, highest}, bad: v.bad || operands[0].domain == devices})
	case ">", "<=":
		v := parseValue(operands[0].domain, right)
		s = setOf(value{span: span{high: v.high}, bad: v.bad || operands[0].domain == devices})
	default:
		return always(unknown, text)
	}
	return condition(text, operands, s, negated)
}

// verdictMap returns the step of {"key": …, "data": …}.
func (t nftTable) verdictMap(args object, text string) step {
	operands := operandsOf(args["key"])
	return verdictMap(text, operands, t.set(operands, args["data"]))
}

// set returns the elements on the right side of an operator: those of a named or
// an anonymous set or map, or one value.
func (t nftTable) set(operands []operand, right any) set {
	list := []any{right}
	switch r := right.(type) {
	case []any: // exactly these bits
		list = []any{object{"|": r}}
	case string:
		if name, named := strings.CutPrefix(r, "@"); named {
			elements, known := t.sets[key(t.family, t.table, name)]
			if !known {
				return setOf(value{bad: true})
			}
			list = elements
		}
	case object:
		if anonymous, ok := r["set"].([]any); ok {
			list = anonymous
		}
	}
	var elements []element
	for _, item := range list {
		elements = append(elements, t.element(operands, item))
	}
	return newSet(elements)
}

// element parses an element, which is in a map a list of key and value.
func (t nftTable) element(operands []operand, item any) element {
	var e element // its verdict stays zero (elsewhere) if the expression is not known here
	if pair, ok := item.([]any); ok && len(pair) == 2 {
		item = pair[0]
		name, value := member(pair[1])
		args, _ := value.(object)
		if v, ok := t.verdict(name, args); ok {
			e.verdict = v
		}
	}
	item = unwrap(item)
	parts := []any{item}
	if o, ok := item.(object); ok {
		if concat, ok := o["concat"].([]any); ok {
			parts = concat
		}
	}
	for i, part := range parts {
		d := numbers
		if i < len(operands) { // else the numbers of parts differ, and element.matches says unknown
			d = operands[i].domain
		}
		e.parts = append(e.parts, parseValue(d, part))
	}
	return e
}

// unwrap returns the value of an element with a timeout, a counter or a comment.
func unwrap(item any) any {
	if o, ok := item.(object); ok {
		if elem, ok := o["elem"].(object); ok {
			return elem["val"]
		}
	}
	return item
}

// parseValue parses a value: a word, a number, a prefix or a range.
func parseValue(d domain, v any) value {
	switch v := unwrap(v).(type) {
	case string:
		if v == "*" { // an element for all others; which these are depends on the rest
			return value{bad: true}
		}
		return parseWord(d, v)
	case json.Number:
		n, ok := parseNumber(v.String())
		if d == etherTypes { // some versions of nft -n print the other byte order
			n = number(hostOrder(n.low()))
		}
		return value{span: point(n), bad: !ok}
	case bool:
		if v {
			return value{span: point(number(1))}
		}
		return value{}
	case []any: // bits
		return union(d, v)
	case object:
		if bits, ok := v["|"].([]any); ok {
			return union(d, bits)
		}
		if p, ok := v["prefix"].(object); ok {
			return parseWord(d, fmt.Sprintf("%v/%v", p["addr"], p["len"]))
		}
		if ends, ok := v["range"].([]any); ok && len(ends) == 2 {
			low, high := parseValue(d, ends[0]), parseValue(d, ends[1])
			return value{span: span{low.low, high.high}, bad: low.bad || high.bad || d == devices}
		}
	}
	return value{bad: true}
}

// union returns the value with all bits of a list.
func union(d domain, list []any) value {
	var mask uint64
	for _, item := range list {
		v := parseValue(d, item)
		if v.bad {
			return v
		}
		mask |= v.low.low()
	}
	return value{span: point(number(mask))}
}

// hostOrder returns an ether type in the usual order. Real ones are above 0x600.
func hostOrder(n uint64) uint64 {
	if swapped := n>>8&0xff | n&0xff<<8; n == 0x0008 || n == 0xdd86 || n == 0x0608 {
		return swapped
	}
	return n
}
