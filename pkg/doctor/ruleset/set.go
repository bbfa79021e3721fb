package ruleset

import "slices"

// set is what a condition compares operands with, or a map of verdicts.
type set struct {
	elements []element
	spans    []span // of all elements, sorted, if each is one span; else nil
	points   bool   // each of the spans has one value
}

// element has one value for each operand.
type element struct {
	parts   []value
	verdict verdict // only in a map of verdicts
}

// newSet returns a set of elements, which it keeps.
func newSet(elements []element) set {
	var spans []span
	for _, e := range elements {
		if len(e.parts) != 1 || e.parts[0].bad || e.parts[0].device != "" {
			return set{elements: elements}
		}
		spans = append(spans, e.parts[0].span)
	}
	sortSpans(spans)
	return set{elements, spans, !slices.ContainsFunc(spans, func(s span) bool { return s.low != s.high })}
}

// setOf returns a set of single values.
func setOf(values ...value) set {
	var elements []element
	for _, v := range values {
		elements = append(elements, element{parts: []value{v}})
	}
	return newSet(elements)
}

// matches tells which of the packets, whose fields are given, are in the element.
func (e element) matches(fields []field) answer {
	if len(e.parts) != len(fields) {
		return unknown
	}
	match := yes
	for i, v := range e.parts {
		match = and(match, v.matches(fields[i]))
	}
	return match
}

// read returns the fields of the operands, and which packets have all of them.
func (w *walk) read(operands []operand) (fields []field, has answer) {
	has = yes
	for _, o := range operands {
		f := o.read(w)
		fields, has = append(fields, f), and(has, f.has)
	}
	return fields, has
}

// contains tells which of the packets are in the set.
func (s set) contains(w *walk, fields []field) answer {
	w.budget -= len(s.elements) // walk.chain ends the evaluation when the budget is spent
	// A condition has at least one operand, and so one field.
	if f := fields[0]; len(fields) == 1 && s.spans != nil && !f.free && !f.isDevice && f.open == 0 {
		return f.within(s.spans)
	}
	found := no
	for _, e := range s.elements {
		if found = or(found, e.matches(fields)); found == yes {
			break
		}
	}
	return found
}

// condition is a step that holds for packets whose operands are in the set;
// negated, for those that have the operands, but not in the set. It ignores which packets
// reach it, since walk.rule combines its answer with that.
func condition(text string, operands []operand, s set, negated bool) step {
	return func(w *walk, _ answer) (answer, []branch) {
		fields, has := w.read(operands)
		if has == no {
			return no, nil
		}
		found := s.contains(w, fields)
		if negated {
			found = not(found)
		}
		match := and(has, found)
		// Of all addresses (0.0.0.0/0), a single one may be that of all packets: the node's own, if it is not known.
		switch isAddress := len(operands) == 1 && operands[0].domain == addresses && !fields[0].free && fields[0].low != (num{}); {
		case match == unknown:
			w.unknown("%s", text)
		case match == some && isAddress && s.points && !negated:
			return part, nil
		}
		return match, nil
	}
}

// verdictMap is a step that applies the verdict of the element in which the
// operands are.
func verdictMap(text string, operands []operand, s set) step {
	return func(w *walk, _ answer) (answer, []branch) {
		fields, has := w.read(operands)
		if has == no {
			return no, nil
		}
		w.budget -= len(s.elements)
		matched := no
		var branches []branch
		for _, e := range s.elements {
			match := and(has, e.matches(fields))
			if match == no {
				continue
			}
			if match == unknown {
				w.unknown("%s", text)
			}
			matched, branches = or(matched, match), append(branches, branch{match, e.verdict})
		}
		return matched, branches
	}
}

// always is a step with the same answer for all packets.
func always(a answer, text string) step {
	return func(w *walk, _ answer) (answer, []branch) {
		if a == unknown {
			w.unknown("%s", text)
		}
		return a, nil
	}
}

// final is a step with one verdict for all packets.
func final(v verdict) step {
	return func(*walk, answer) (answer, []branch) { return yes, []branch{{yes, v}} }
}

// leave is a step behind which the packets may be anywhere, for the given reason.
func leave(text string) step {
	return func(w *walk, _ answer) (answer, []branch) {
		w.unknown("%s", text)
		return yes, []branch{{match: yes}} // the zero verdict: elsewhere
	}
}
