package firewall

// This file parses the lines that iptables-save prints. It is pure, and knows nothing about our own rules.

import (
	"bytes"
	"strings"
)

// MatchOption is one option of a rule with its values, such as "-s 10.5.0.0/16" or "! --dport 53" (Not, "--dport", "53").
type MatchOption struct {
	Not    bool
	Name   string
	Values []string
}

// Value returns the first value, "" if there is none.
func (o MatchOption) Value() string {
	if len(o.Values) == 0 {
		return ""
	}
	return o.Values[0]
}

// SavedChain returns the name in a line that declares a chain: FORWARD in ":FORWARD DROP [0:0]". The line must begin with
// ":", else the result means nothing.
func SavedChain(line []byte) []byte { return firstWord(bytes.TrimPrefix(line, []byte(":"))) }

// SavedPolicy returns the policy in such a line: DROP in the example. It is "-" for a chain that is not builtin.
func SavedPolicy(line []byte) string {
	_, rest, _ := bytes.Cut(line, []byte(" "))
	return string(firstWord(rest))
}

// SavedRule splits "[0:0] -A CHAIN arguments"; the counters are only there with iptables-save -c. ok is false for a line
// that is no rule, such as an empty one.
func SavedRule(line []byte) (chain, args []byte, ok bool) {
	if bytes.HasPrefix(line, []byte("[")) {
		_, line, _ = bytes.Cut(line, []byte("] "))
	}
	rest, ok := bytes.CutPrefix(line, []byte("-A "))
	if !ok {
		return nil, nil, false
	}
	chain = firstWord(rest)
	return chain, bytes.TrimSpace(rest[len(chain):]), len(chain) > 0
}

// SavedRules returns the arguments of the rules of one chain, in the output of iptables-save or of iptables -S.
func SavedRules(out []byte, chain string) (rules []string) {
	for line := range bytes.Lines(out) {
		if name, args, ok := SavedRule(bytes.TrimSpace(line)); ok && string(name) == chain {
			rules = append(rules, string(args))
		}
	}
	return rules
}

// firstWord returns what is before the first blank.
func firstWord(b []byte) []byte {
	if i := bytes.IndexByte(b, ' '); i >= 0 {
		return b[:i]
	}
	return b
}

// MatchOptions parses the arguments of a rule. A word that starts with "-" begins the next option.
func MatchOptions(args string) (all []MatchOption) {
	w := words(args)
	for i := 0; i < len(w); {
		o := MatchOption{Name: w[i]}
		if i++; o.Name == "!" && i < len(w) {
			o.Not, o.Name = true, w[i]
			i++
		}
		// A comment may begin with "-".
		for i < len(w) && w[i] != "!" && (!strings.HasPrefix(w[i], "-") || o.Name == "--comment" && o.Values == nil) {
			o.Values = append(o.Values, w[i])
			i++
		}
		all = append(all, o)
	}
	return all
}

// words splits s at blanks, as a shell does without expanding anything. Double quotes keep blanks, and a backslash
// keeps the next character.
func words(s string) []string {
	var all []string
	var w strings.Builder
	in, quoted, escaped := false, false, false // in: a word, which may be empty
	for _, c := range []byte(s) {
		switch {
		case escaped:
			w.WriteByte(c)
			escaped = false
		case c == '\\':
			escaped, in = true, true
		case c == '"':
			quoted, in = !quoted, true
		case c == ' ' && !quoted:
			if in {
				all = append(all, w.String())
				w.Reset()
			}
			in = false
		default:
			w.WriteByte(c)
			in = true
		}
	}
	if in {
		all = append(all, w.String())
	}
	return all
}
