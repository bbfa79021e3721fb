package firewall

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"

	"flannel/pkg/firewall/iptsave"
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
			s.declare(table, iptsave.Chain(line))
		case '[', '-': // all others are comments, COMMIT, and what a later version may think of
			if chain, args, ok := iptsave.Rule(line); ok {
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
		leads := iptsave.Target(iptsave.Options(text)) == own.Name
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

// normalise is one text for all spellings of a rule: the variants and versions of iptables differ in the order of
// matches. Options are sorted, each with its "!" and its values; "-m" of the modules that always have options is left
// out.
func normalise(args string) string {
	var options []string
	for _, o := range iptsave.Options(args) {
		for i, v := range o.Values {
			if o.Name == "-s" || o.Name == "-d" {
				o.Values[i] = canonical(v)
			}
		}
		option := strings.Join(append([]string{o.Name}, o.Values...), "\x00")
		if o.Not {
			option = "!\x00" + option
		}
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
