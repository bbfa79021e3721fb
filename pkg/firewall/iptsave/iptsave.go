// Package iptsave reads the lines that iptables-save prints. It is pure: what a rule means is for others to say.
package iptsave

import (
	"bytes"
	"strings"
)

// Option is one option of a rule with its values, such as -s 10.5.0.0/16, or ! --dport 53.
type Option struct {
	Not    bool
	Name   string
	Values []string
}

// Value is the first of its values, "" if it has none.
func (o Option) Value() string {
	if len(o.Values) == 0 {
		return ""
	}
	return o.Values[0]
}

// Chain is the name in a line that declares a chain, ":FORWARD DROP [0:0]".
func Chain(line []byte) []byte { return firstWord(line[1:]) }

// Policy is the verdict for what reaches the end of the chain that a line declares; "-" for a chain that was made.
func Policy(line []byte) string {
	_, rest, _ := bytes.Cut(line, []byte(" "))
	return string(firstWord(rest))
}

// Rule splits "[0:0] -A CHAIN arguments"; the counters are there only if asked for. A line of another kind is
// not ok.
func Rule(line []byte) (chain, args []byte, ok bool) {
	if line[0] == '[' {
		_, line, _ = bytes.Cut(line, []byte("] "))
	}
	rest, ok := bytes.CutPrefix(line, []byte("-A "))
	if !ok {
		return nil, nil, false
	}
	chain = firstWord(rest)
	return chain, bytes.TrimSpace(rest[len(chain):]), len(chain) > 0
}

func firstWord(b []byte) []byte {
	if i := bytes.IndexByte(b, ' '); i >= 0 {
		return b[:i]
	}
	return b
}

// Options takes the arguments of a rule apart.
func Options(args string) (all []Option) {
	w := words(args)
	for i := 0; i < len(w); {
		o := Option{Name: w[i]}
		if i++; o.Name == "!" && i < len(w) {
			o.Not, o.Name = true, w[i]
			i++
		}
		for i < len(w) && w[i] != "!" && (!strings.HasPrefix(w[i], "-") || o.Name == "--comment" && o.Values == nil) {
			o.Values = append(o.Values, w[i])
			i++
		}
		all = append(all, o)
	}
	return all
}

// Target is the chain or verdict that a rule with these options leads to, "" if it leads nowhere.
func Target(options []Option) string {
	for _, o := range options {
		if o.Name == "-j" || o.Name == "-g" || o.Name == "--jump" || o.Name == "--goto" {
			return o.Value()
		}
	}
	return ""
}

// words splits as a shell would, but for variables: blanks part, double quotes hold together, a backslash takes the
// next character as it is.
func words(s string) []string {
	var all []string
	var w strings.Builder
	in, quoted, escaped := false, false, false
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
