package ruleset

import (
	"fmt"
	"strings"

	"flannel/pkg/firewall"
)

// Variants of iptables, as its program names them in --version.
const (
	VariantNFT    = "nf_tables"
	VariantLegacy = "legacy"
)

// priorities are those of the base chains of iptables (linux/netfilter_ipv4.h). nat
// has others in POSTROUTING and INPUT.
var priorities = map[string]int{"raw": -300, "mangle": -150, "nat": -100, "filter": 0, "security": 50}

// sourceNAT is the priority of nat in POSTROUTING and INPUT.
const sourceNAT = 100

// builtin maps the builtin chains of iptables to hooks.
var builtin = map[string]string{"PREROUTING": "prerouting", "INPUT": "input", "FORWARD": "forward", "OUTPUT": "output",
	"POSTROUTING": "postrouting"}

// saved is one table in the output of iptables-save.
type saved struct {
	ruleset         *Ruleset // gets the base chains
	program, family string   // "iptables" and "ip", or "ip6tables" and "ip6"
	name            string   // "filter"
	chains          map[string]*chain
}

// AddIPTables adds the output of iptables-save, or with ipv6 of ip6tables-save, in
// lines, of one variant. Lines of chains whose name starts with KUBE- may be left
// out of the table nat: kube-proxy translates only addresses of Services there.
func (r *Ruleset) AddIPTables(ipv6 bool, variant string, lines []string) {
	t := saved{ruleset: r, program: "iptables", family: "ip"}
	if ipv6 {
		t.program, t.family = "ip6tables", "ip6"
	}
	if r.iptables == nil {
		r.iptables = map[string]map[string]*chain{}
	}
	for len(lines) > 0 {
		end := 1
		for end < len(lines) && !strings.HasPrefix(lines[end], "*") {
			end++
		}
		if name, isTable := strings.CutPrefix(lines[0], "*"); isTable {
			t.name, t.chains = name, map[string]*chain{}
			if variant == VariantNFT { // nft lists these tables, too: AddNFT looks here
				r.iptables[t.family+" "+name] = t.chains
			}
			t.read(lines[1:end])
		}
		lines = lines[end:]
	}
}

// read reads the chains of the table, and then the rules, which refer to them.
func (t saved) read(lines []string) {
	for _, text := range lines {
		if line := []byte(strings.TrimSpace(text)); len(line) > 0 && line[0] == ':' {
			t.addChain(string(firewall.SavedChain(line)), firewall.SavedPolicy(line))
		}
	}
	for _, text := range lines {
		name, args, isRule := firewall.SavedRule([]byte(strings.TrimSpace(text)))
		if c := t.chains[string(name)]; isRule && c != nil {
			c.rules = append(c.rules, rule{fmt.Sprintf("%q", "-A "+string(name)+" "+string(args)), t.steps(firewall.MatchOptions(string(args)))})
		}
	}
}

// addChain adds a chain with its policy; "-": it is one that a user made, and no base chain.
func (t saved) addChain(name, policy string) {
	c := &chain{place: fmt.Sprintf("%s table %s, chain %s", t.program, t.name, name), family: t.family, drops: policy == "DROP"}
	t.chains[name] = c
	if policy == "-" || builtin[name] == "" {
		return
	}
	c.hook, c.priority = builtin[name], priorities[t.name]
	if t.name == "nat" && (name == "POSTROUTING" || name == "INPUT") {
		c.priority = sourceNAT
	}
	t.ruleset.base = append(t.ruleset.base, c)
}

// steps returns the steps of a rule: its conditions, and then its target. A MatchOption is
// an option ("-s", "-m", "-j") with its values and whether "!" stands before it.
func (t saved) steps(options []firewall.MatchOption) (steps []step) {
	module := ""
	for i, o := range options {
		text := optionText(o)
		switch o.Name {
		case "-j", "-g":
			return append(steps, t.target(o, options[i+1:]))
		case "-m":
			module = o.Value()
			steps = append(steps, moduleStep(module, options[i+1:], text))
		default:
			steps = append(steps, option(module, o, text))
		}
	}
	return steps
}

// optionText returns an option as it is in the rule.
func optionText(o firewall.MatchOption) string {
	text := strings.Join(append([]string{o.Name}, o.Values...), " ")
	if o.Not {
		return "! " + text
	}
	return text
}

// target returns the step of -j or -g. options are those behind it, which belong to
// the target.
func (t saved) target(o firewall.MatchOption, options []firewall.MatchOption) step {
	name := o.Value()
	if to := t.chains[name]; to != nil {
		if o.Name == "-g" {
			return final(verdict{goTo, to})
		}
		return final(verdict{jump, to})
	}
	switch name {
	case "ACCEPT", "SNAT", "MASQUERADE":
		return final(verdict{kind: accept})
	case "DROP", "REJECT":
		return final(verdict{kind: drop})
	case "RETURN":
		return final(verdict{kind: goBack})
	case "LOG", "NFLOG", "ULOG", "TRACE", "AUDIT", "TCPMSS", "CHECKSUM", "CLASSIFY", "DSCP", "TOS", "TTL", "HL", "SET", "TEE",
		"RATEEST", "IDLETIMER", "LED", "SECMARK", "CONNSECMARK":
		return always(yes, name)
	case "NOTRACK":
		return untrack
	case "CT":
		for _, option := range options {
			if option.Name == "--notrack" {
				return untrack
			}
		}
		return always(yes, name)
	case "MARK", "CONNMARK":
		return markTarget(name == "MARK", options)
	}
	if ofKubeProxy(t.name, name) {
		return always(yes, name)
	}
	return leave("-j " + name) // QUEUE, TPROXY, an unknown one: the packets may go anywhere
}

// ofKubeProxy reports whether a chain is kube-proxy's, and only translates
// addresses of Services, to which no Packet goes.
func ofKubeProxy(table, chain string) bool {
	return table == "nat" && strings.HasPrefix(chain, "KUBE-")
}

// untrack is the step of a rule that exempts packets from connection tracking.
func untrack(w *walk, reached answer) (answer, []branch) {
	w.untracked = or(w.untracked, reached)
	return yes, nil
}

// markTarget returns the step of the targets MARK and CONNMARK, in the form of
// iptables-save.
func markTarget(ofPacket bool, options []firewall.MatchOption) step {
	for _, o := range options {
		switch o.Name {
		case "--set-xmark":
			value, mask, ok := maskedNumber(o.Value())
			return setMark(ofPacket, formula{keep: allBits &^ mask, xor: value}, ok)
		case "--restore-mark", "--save-mark":
			if len(options) == 1 || allOnes(options) {
				return copyMark(o.Name == "--restore-mark")
			}
			return setMark(o.Name == "--restore-mark", formula{}, false)
		}
	}
	return setMark(ofPacket, formula{}, false)
}

// allOnes reports whether all masks among the options are those of a whole mark.
func allOnes(options []firewall.MatchOption) bool {
	for _, o := range options {
		if strings.HasSuffix(o.Name, "mask") && o.Value() != "0xffffffff" {
			return false
		}
	}
	return true
}

// maskedNumber parses a value with its mask, "0x4000/0x4000". Without "/", the mask has all bits of a mark.
func maskedNumber(text string) (value, mask uint64, ok bool) {
	first, second, hasMask := strings.Cut(text, "/")
	v, ok := parseNumber(first)
	mask = allBits
	if hasMask {
		m, maskOK := parseNumber(second)
		mask, ok = m.low(), ok && maskOK
	}
	return v.low(), mask, ok
}
