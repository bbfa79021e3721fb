package firewall

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
)

// saved is what iptables-save said about us.
type saved struct {
	owner  instance               // whose rules are noted
	chains map[string]*savedChain // by name
	// unreadable are tables that hold rules of nft which iptables-save cannot express. It leaves them out whole.
	unreadable []string
	kubelet    bool // the chains are there by which kubelet marks the variant that it uses
	torn       bool // the output ends within a table
}

type savedChain struct {
	exists  bool
	rules   []string // arguments of its rules, in order
	parent  []parentRule
	foreign []string // "CHAIN arguments" of rules elsewhere that lead here
	anew    bool     // the jump is to be placed as a new one, wherever it stands
}

// jumps are the arguments of those rules of the parent that lead here.
func (h savedChain) jumps() (all []string) {
	for _, r := range h.parent {
		if r.jump {
			all = append(all, r.text)
		}
	}
	return all
}

func (s saved) chain(c Chain) savedChain {
	if h := s.chains[c.Name]; h != nil {
		return *h
	}
	return savedChain{}
}

// parseSave reads the output of iptables-save. Lines that do not concern us are skipped without being taken apart:
// a host may have tens of thousands.
func parseSave(owner instance, out []byte) saved {
	s := saved{owner: owner, chains: map[string]*savedChain{}}
	var table string
	for line := range bytes.Lines(out) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		switch line[0] {
		case 'C': // COMMIT
			s.torn = false
		case '#':
			s.unreadable = append(s.unreadable, incompatible(line)...)
		case '*':
			table, s.torn = string(line[1:]), true
		case ':':
			s.declare(table, firstWord(line[1:]))
		case '[', '-': // all others are comments, COMMIT, and what a later version may think of
			if chain, args, ok := ruleLine(line); ok {
				s.rule(table, chain, args)
			}
		}
	}
	return s
}

// incompatible finds the table in: # Table `nat' is incompatible, use 'nft' tool.
func incompatible(line []byte) []string {
	if !bytes.Contains(line, []byte("is incompatible")) {
		return nil
	}
	_, rest, _ := bytes.Cut(line, []byte("`"))
	name, _, ok := bytes.Cut(rest, []byte("'"))
	if !ok {
		return nil
	}
	return []string{string(name)}
}

// ruleLine splits "[0:0] -A CHAIN arguments"; the counters are there only if asked for.
func ruleLine(line []byte) (chain, args []byte, ok bool) {
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

// declare notes a line that makes a chain. Names count only in the table where we would use them.
func (s *saved) declare(table string, name []byte) {
	if table == "mangle" && (string(name) == "KUBE-IPTABLES-HINT" || string(name) == "KUBE-KUBELET-CANARY") {
		s.kubelet = true
	}
	for _, own := range s.owner.chains() {
		if own.Table == table && own.Name == string(name) {
			s.of(own.Name).exists = true
		}
	}
}

func (s *saved) of(name string) *savedChain {
	c := s.chains[name]
	if c == nil {
		c = &savedChain{}
		s.chains[name] = c
	}
	return c
}

// rule notes a rule if it stands in a chain of ours or in a parent, or leads to one of ours.
func (s *saved) rule(table string, chain, args []byte) {
	// Nearly all rules end here, before anything is taken apart.
	if !isParent(chain) && !bytes.Contains(args, []byte("FLANNEL-")) && !bytes.HasPrefix(chain, []byte("FLANNEL-")) {
		return
	}
	for _, own := range s.owner.chains() {
		if own.Table != table {
			continue
		}
		text := string(args)
		leads := target(text) == own.Name
		switch c := string(chain); {
		case c == own.Name:
			s.of(c).rules = append(s.of(c).rules, text)
		case c == own.Parent:
			r := parentRule{text: text, jump: leads, blocks: own.Parent == forwardChain && blocks(text)}
			s.of(own.Name).parent = append(s.of(own.Name).parent, r)
		case leads:
			s.of(own.Name).foreign = append(s.of(own.Name).foreign, c+" "+text)
		}
	}
}

func isParent(chain []byte) bool { return string(chain) == "FORWARD" || string(chain) == "POSTROUTING" }

// target is the chain or verdict that a rule leads to. A comment that says "-j FLANNEL-FWD" is one word, not two.
func target(args string) string {
	w := words(args)
	for i := 0; i+1 < len(w); i++ {
		if w[i] == "-j" || w[i] == "-g" || w[i] == "--jump" || w[i] == "--goto" {
			return w[i+1]
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

// normalise is one text for all spellings of a rule: the variants and versions of iptables differ in the order of
// matches. Options are sorted, each with its "!" and its values; "-m" of the modules that always have options is left
// out.
func normalise(args string) string {
	w := words(args)
	var options []string
	for i := 0; i < len(w); {
		start := i
		if w[i] == "!" && i+1 < len(w) {
			i++
		}
		name := w[i]
		for i++; i < len(w) && w[i] != "!" && !strings.HasPrefix(w[i], "-"); i++ {
			if name == "-s" || name == "-d" {
				w[i] = canonical(w[i])
			}
		}
		option := strings.Join(w[start:i], "\x00")
		if option != "-m\x00comment" && option != "-m\x00mark" {
			options = append(options, option)
		}
	}
	slices.Sort(options)
	return strings.Join(options, "\x01")
}

// canonical gives one text to all spellings of a prefix, e.g. those with host bits.
func canonical(address string) string {
	if p, err := netip.ParsePrefix(address); err == nil {
		return p.Masked().String()
	}
	return address
}
