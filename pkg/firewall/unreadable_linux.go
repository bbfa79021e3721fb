//go:build linux

package firewall

import (
	"fmt"
	"slices"
)

// What iptables-save does not tell about the tables of the nft variant, because other programs put rules of nft in them.

// glimpse is what netlink reports about a chain of a table that iptables-save cannot express because of another
// program's rules: enough to know whether the chain is still as we wrote it, and where the jumps to it stand.
func (p *iptablesPlace) glimpse(own Chain, want []Chain) (*savedChain, error) {
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
		// A jump with a condition counts as a rule of others: iptables deletes by arguments, which are not known here.
		known := parentRule{text: fmt.Sprint(r.exprs), blocks: own.Parent == forwardChain && r.blocks && !r.narrow}
		if r.jump == own.Name && !r.narrow {
			known = parentRule{text: r.text, jump: true}
		}
		c.parent = append(c.parent, known)
	}
	if written := p.written[own.Name]; written != "" && written == p.content(own) {
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

// confirm asks the kernel about the rules that are said to let nothing pass. iptables-nft-save leaves out a match that it
// does not understand: it prints "ip saddr @set drop" of nft as "-j DROP".
func (p *iptablesPlace) confirm(own Chain, parent []parentRule) error {
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
		parent[i].blocks = parent[i].blocks && r.blocks && !r.narrow
	}
	return nil
}

// remember keeps, for the next glimpse, how the chains look that were just written.
func (p *iptablesPlace) remember(have saved) {
	p.written = map[string]string{}
	for _, own := range p.owner.chains() {
		if slices.Contains(have.unreadable, own.Table) {
			p.written[own.Name] = p.content(own)
		}
	}
	// Logged at every write, which is seldom: the administrator should know that iptables shows nothing of the table.
	if len(have.unreadable) > 0 {
		p.log.Warn("iptables cannot read this table because it holds rules made with nft; ours are kept there nevertheless",
			"where", p.String(), "tables", have.unreadable)
	}
}

// content is "" if it cannot be read.
func (p *iptablesPlace) content(own Chain) string {
	rules, err := readRules(p.family(), own.Table, own.Name)
	if err != nil && !absent(err) {
		return ""
	}
	return fmt.Sprint(rules, err)
}
