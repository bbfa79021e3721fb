//go:build linux

package firewall

import (
	"fmt"
	"slices"
)

// Other programs may put rules into iptables' tables with nft that iptables cannot express. iptables-nft-save then
// either omits the whole table ("Table `nat' is incompatible, use 'nft' tool.") or prints a rule without the matches
// that it does not know. This file asks the kernel by netlink instead.

// readByNetlink reads one of our chains, and the jumps to it, from a table that iptables-save omits. The rules are not
// translated back into iptables' arguments. They are reported as want if the kernel still returns the same expressions
// as after our last write (recordWritten), else as none, which makes the caller rewrite the chain.
func (p *iptablesPlace) readByNetlink(own Chain, want []Chain) (*savedChain, error) {
	exists, err := hasChain(p.family(), own.Table, own.Name)
	if err != nil {
		return nil, err
	}
	c := &savedChain{exists: exists}
	rules, err := readRules(p.family(), own.Table, own.Parent)
	if err != nil && !absent(err) {
		return nil, fmt.Errorf("read chain %s %s: %w", own.Table, own.Parent, err)
	}
	for _, r := range rules {
		// A jump with a condition counts as a rule of others: to delete it, iptables needs its arguments, which are
		// unknown here.
		known := parentRule{text: fmt.Sprint(r.exprs), blocks: own.Parent == forwardChain && r.blocks && !r.conditional}
		if r.jump == own.Name && !r.conditional {
			known = parentRule{text: r.text, jump: true}
		}
		c.parent = append(c.parent, known)
	}
	if written := p.written[own.Name]; written != "" && written == p.chainText(own) {
		for _, w := range want {
			if w.Name != own.Name {
				continue
			}
			for _, r := range w.Rules {
				c.rules = append(c.rules, r.spec(w.Comment))
			}
		}
	}
	return c, nil
}

// confirmBlocking clears parentRule.blocks where the kernel has a condition that iptables-nft-save did not print:
// it prints nft's "ip saddr @set drop" as "-j DROP". It returns errChanging if the chain changed since iptables-save.
func (p *iptablesPlace) confirmBlocking(own Chain, parent []parentRule) error {
	if !slices.ContainsFunc(parent, func(r parentRule) bool { return r.blocks }) {
		return nil
	}
	rules, err := readRules(p.family(), own.Table, own.Parent)
	if err != nil && !absent(err) {
		return fmt.Errorf("read chain %s %s: %w", own.Table, own.Parent, err)
	}
	if len(rules) != len(parent) {
		return errChanging
	}
	for i, r := range rules {
		parent[i].blocks = parent[i].blocks && r.blocks && !r.conditional
	}
	return nil
}

// recordWritten stores the chains just written as the kernel returns them, for the next readByNetlink.
func (p *iptablesPlace) recordWritten(have savedRules) {
	p.written = map[string]string{}
	for _, own := range p.owner.chains() {
		if slices.Contains(have.unreadable, own.Table) {
			p.written[own.Name] = p.chainText(own)
		}
	}
	// Logged at every write, which is rare: the administrator should know that iptables does not show this table.
	if len(have.unreadable) > 0 {
		p.log.Warn("iptables cannot read a table because it holds rules made with nft, our rules are kept there nevertheless",
			"where", p.String(), "tables", have.unreadable)
	}
}

// chainText returns the rules of our chain as text that is only compared; "" if they cannot be read.
func (p *iptablesPlace) chainText(own Chain) string {
	rules, err := readRules(p.family(), own.Table, own.Name)
	if err != nil && !absent(err) {
		return ""
	}
	return fmt.Sprint(rules, err)
}
