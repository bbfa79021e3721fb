package firewall

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"

	"flannel/pkg/firewall/iptsave"
)

// savedRules is the part of iptables-save's output that concerns us.
type savedRules struct {
	owner  instance               // only rules of this instance are recorded
	chains map[string]*savedChain // by name
	// unreadable are tables that iptables-save omits because they hold rules made with nft that it cannot express.
	unreadable []string
	kubelet    bool // one of kubeletChains exists
	truncated  bool // the output ends within a table
}

// savedChain is one of our chains. The zero savedChain: it does not exist, and nothing refers to it.
type savedChain struct {
	exists       bool
	rules        []string     // arguments of its rules, in order
	parent       []parentRule // all rules of its parent, in order
	foreignJumps []string     // "CHAIN arguments" of rules in other chains that jump to it
	misplaced    bool         // its jump must be deleted and placed anew, see func misplaced
}

func (s savedRules) chain(c Chain) savedChain {
	if h := s.chains[c.Name]; h != nil {
		return *h
	}
	return savedChain{}
}

// parseSave parses the output of iptables-save. Lines that do not concern us are skipped without being split, because a
// host may have tens of thousands.
func parseSave(owner instance, out []byte) savedRules {
	s := savedRules{owner: owner, chains: map[string]*savedChain{}}
	var table string
	for line := range bytes.Lines(out) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		switch line[0] {
		case 'C': // COMMIT
			s.truncated = false
		case '#':
			s.unreadable = append(s.unreadable, incompatible(line)...)
		case '*':
			table, s.truncated = string(line[1:]), true
		case ':':
			s.addChain(table, iptsave.Chain(line))
		case '[', '-':
			if chain, args, ok := iptsave.Rule(line); ok {
				s.addRule(table, chain, args)
			}
		}
	}
	return s
}

// incompatible returns the table named in a line like: # Table `nat' is incompatible, use 'nft' tool.
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

// kubeletChains are chains in the table mangle by which kubelet marks the variant that it uses.
var kubeletChains = []string{"KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"}

// addChain records a line that declares a chain, if it is kubelet's or ours. A chain with the name of one of ours in
// another table is not ours.
func (s *savedRules) addChain(table string, name []byte) {
	s.kubelet = s.kubelet || table == "mangle" && slices.Contains(kubeletChains, string(name))
	for _, own := range s.owner.chains() {
		if own.Table == table && own.Name == string(name) {
			s.entry(own.Name).exists = true
		}
	}
}

func (s *savedRules) entry(name string) *savedChain {
	c := s.chains[name]
	if c == nil {
		c = &savedChain{}
		s.chains[name] = c
	}
	return c
}

// addRule records a rule that stands in a chain of ours or in a parent chain, or that jumps to a chain of ours.
func (s *savedRules) addRule(table string, chain, args []byte) {
	// Nearly all rules of a host end here, before they are split into options.
	if !isParent(chain) && !bytes.Contains(args, []byte("FLANNEL-")) && !bytes.HasPrefix(chain, []byte("FLANNEL-")) {
		return
	}
	for _, own := range s.owner.chains() {
		if own.Table != table {
			continue
		}
		text := string(args)
		jumps := iptsave.Target(iptsave.Options(text)) == own.Name
		switch c := string(chain); {
		case c == own.Name:
			s.entry(c).rules = append(s.entry(c).rules, text)
		case c == own.Parent:
			r := parentRule{text: text, jump: jumps, blocks: own.Parent == forwardChain && blocks(text)}
			s.entry(own.Name).parent = append(s.entry(own.Name).parent, r)
		case jumps:
			s.entry(own.Name).foreignJumps = append(s.entry(own.Name).foreignJumps, c+" "+text)
		}
	}
}

func isParent(chain []byte) bool { return string(chain) == "FORWARD" || string(chain) == "POSTROUTING" }

// normalise returns the same text for all spellings of a rule, since the variants and versions of iptables differ in the
// order of matches. Options are sorted, each with its "!" and its values. "-m comment" and "-m mark" are omitted because
// their options imply them.
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

// canonical returns the same text for all spellings of a prefix: 10.5.0.0/16 for 10.5.0.1/16.
func canonical(address string) string {
	if p, err := netip.ParsePrefix(address); err == nil {
		return p.Masked().String()
	}
	return address
}
