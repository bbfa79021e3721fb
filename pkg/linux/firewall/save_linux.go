package firewall

import (
	"net/netip"
	"slices"
	"strings"

	"flannel/pkg/firewall"
)

// savedRules is what concerns us in one place of iptables, as read (read_linux.go) for planChange.
type savedRules struct {
	owner  instance               // only rules of this instance are recorded
	chains map[string]*savedChain // by name
}

// savedChain is one of our chains. The zero savedChain: it does not exist, and nothing refers to it.
type savedChain struct {
	exists       bool          // the kernel has it
	rules        []string      // arguments of its rules, in order; only read if it is wanted
	unprintable  bool          // iptables cannot print its rules, so that rules is empty
	parent       []parentRule  // all rules of its parent, in order
	foreignJumps []foreignJump // only read if it is to be removed
	misplaced    bool          // its jump must be deleted and placed anew, see func misplaced
}

// foreignJump is a jump to our chain in a chain that is not our parent.
type foreignJump struct {
	chain string
	parentRule
}

// chain returns a copy of what is recorded of a chain, which may be nothing.
func (s savedRules) chain(c firewall.Chain) savedChain {
	if h := s.chains[c.Name]; h != nil {
		return *h
	}
	return savedChain{}
}

// entry returns the record of a chain, to be changed. It makes one if there is none.
func (s *savedRules) entry(name string) *savedChain {
	c := s.chains[name]
	if c == nil {
		c = &savedChain{}
		s.chains[name] = c
	}
	return c
}

// normalise returns the same text for all spellings of a rule, since the variants and versions of iptables differ in the
// order of matches. Options are sorted, each with its "!" and its values. "-m comment" and "-m mark" are omitted because
// their options imply them.
func normalise(args string) string {
	var options []string
	for _, o := range firewall.MatchOptions(args) {
		for i, v := range o.Values {
			if o.Name == "-s" || o.Name == "-d" {
				o.Values[i] = canonical(v)
			}
		}
		option := strings.Join(append([]string{o.Name}, o.Values...), "\x00") // which no word of a rule contains
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
