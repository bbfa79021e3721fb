package firewall

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"

	"github.com/google/nftables"

	"flannel/pkg/firewall"
)

// Our rules are read chain by chain, and nothing else is read: one rule that iptables cannot print (made with nft, or by
// an extension that is not installed here) makes iptables-save fail for all tables.
//
//	what                       read from
//	a chain exists             the kernel
//	rules of a parent chain    the kernel: which of them is our jump, and which block every packet
//	rules of our own chain     iptables -S CHAIN, after the kernel showed a change
//	jumps in other chains      the kernel, only if our chain is to be removed
//
// The kernel is asked by netlink in the nft variant (nftread_linux.go), and by getsockopt in the legacy variant
// (legacyread_linux.go). Both return kernelRules. What is read becomes savedRules (save_linux.go), for planChange.

// translation is a chain of ours, as the kernel returns it (chainText) and as arguments of iptables. While the kernel returns
// the same text, the arguments are the same, so that iptables need not be started.
type translation struct {
	kernel string
	rules  []string // arguments without "-A CHAIN"
}

// read returns what there is of our chains, and of the chains that jump to them. want are the chains to be written: of
// the others, all jumps are read, since they are to be removed. It is repeated if another program changes the rules
// meanwhile; after three tries, the error is errChanging, and Firewall tries again after a pause.
func (p *iptablesPlace) read(ctx context.Context, want []firewall.Chain) (s savedRules, err error) {
	for range 3 {
		if s, err = p.readOnce(ctx, want); !errors.Is(err, errChanging) {
			break
		}
	}
	return s, err
}

// readOnce is one try of read.
func (p *iptablesPlace) readOnce(ctx context.Context, want []firewall.Chain) (savedRules, error) {
	s := savedRules{owner: p.owner, chains: map[string]*savedChain{}}
	for _, own := range p.chains() {
		c := s.entry(own.Name)
		i := slices.IndexFunc(want, func(w firewall.Chain) bool { return w.Name == own.Name }) // -1: it is to be removed
		var err error
		if c.exists, err = p.hasChain(own.Table, own.Name); err != nil {
			return savedRules{}, err
		}
		switch {
		case i >= 0:
			// want[i] and not own, because its comment may be omitted: the jump is compared with that of want[i].
			if c.parent, err = p.readJumps(ctx, want[i], own.Parent); err == nil && c.exists {
				err = p.readOwn(ctx, own, c)
			}
		case c.exists: // to be removed; if it does not exist, there is nothing to do
			err = p.readReferences(ctx, own, c)
		}
		if err != nil {
			return savedRules{}, fmt.Errorf("read rules: %w", err)
		}
	}
	return s, nil
}

// readOwn sets the rules of our own chain as iptables prints them, which it only asks for after the kernel showed
// another chain than that of the last translation. If iptables cannot print them, a program other than iptables wrote
// into our chain: the chain then counts as empty, which makes the caller rewrite it.
func (p *iptablesPlace) readOwn(ctx context.Context, own firewall.Chain, c *savedChain) error {
	kernel, err := p.chainText(own)
	if err != nil {
		return err
	}
	if t := p.translations[own.Name]; t.kernel == kernel {
		c.rules = t.rules
		return nil
	}
	rules, err := p.printed(ctx, own.Table, own.Name)
	if p.cannotPrint(err) {
		c.unprintable = true
		return nil
	}
	if err != nil {
		return err
	}
	if again, err := p.chainText(own); err != nil || again != kernel { // iptables may have printed the one or the other
		return errors.Join(err, errChanging)
	}
	c.rules = rules
	p.translations[own.Name] = translation{kernel, rules}
	return nil
}

// recordWritten stores the translation of the chains just written that iptables could not print before the write: it may
// still be unable to, because iptables before 1.8.5 prints no chain of a table in which it cannot read one rule. Without
// the translation, the chains would be written again each time that they are read.
func (p *iptablesPlace) recordWritten(have savedRules, want []firewall.Chain) {
	for _, w := range want {
		if !have.chain(w).unprintable {
			continue
		}
		var rules []string
		for _, r := range w.Rules {
			rules = append(rules, spec(r, w.Comment))
		}
		if kernel, err := p.chainText(w); err == nil {
			p.translations[w.Name] = translation{kernel, rules}
		}
	}
}

// chainText returns the rules of our chain as text that is only compared.
func (p *iptablesPlace) chainText(own firewall.Chain) (string, error) {
	rules, err := p.chainRules(own.Table, own.Name)
	return fmt.Sprint(rules), err
}

// readReferences sets the jumps to our chain in all chains of its table (parent and foreignJumps of c), so that the chain can
// be deleted.
func (p *iptablesPlace) readReferences(ctx context.Context, own firewall.Chain, c *savedChain) (err error) {
	if c.parent, err = p.readJumps(ctx, own, own.Parent); err != nil {
		return err
	}
	all, err := p.chainRules(own.Table, "")
	if err != nil {
		return err
	}
	var seen []string // chains whose jumps are in foreignJumps
	for _, r := range all {
		if r.jump != own.Name || r.chain == own.Parent || r.chain == own.Name || slices.Contains(seen, r.chain) {
			continue
		}
		seen = append(seen, r.chain)
		rules, err := p.readJumps(ctx, own, r.chain)
		if err != nil {
			return err
		}
		for _, jump := range jumps(rules) {
			c.foreignJumps = append(c.foreignJumps, foreignJump{r.chain, jump})
		}
	}
	return nil
}

// readJumps returns the rules of a chain that may jump to one of ours (own), for planJump. A jump of another form than ours
// is printed by iptables, because the legacy variant deletes it by its text. If iptables cannot print the chain either, such
// a jump counts as a rule of others, unless it has a handle or no condition.
func (p *iptablesPlace) readJumps(ctx context.Context, own firewall.Chain, chain string) ([]parentRule, error) {
	rules, err := p.chainRules(own.Table, chain)
	if err != nil {
		return nil, err
	}
	otherForm := func(r kernelRule) bool { // a jump to our chain, but not as we write it
		return r.jump == own.Name && (r.conditional || normalise(r.text) != normalise(jumpTo(own)))
	}
	var printed []string
	if slices.ContainsFunc(rules, otherForm) {
		printed, err = p.printed(ctx, own.Table, chain)
		if err != nil && !p.cannotPrint(err) {
			return nil, err
		} else if err == nil && len(printed) != len(rules) { // else rule i of the one is rule i of the other
			return nil, errChanging
		}
	}
	var all []parentRule
	for i, r := range rules {
		// As a rule of others, it is only compared and, in FORWARD, looked at for whether it blocks.
		rule := parentRule{text: fmt.Sprint(r.exprs), blocks: chain == forwardChain && r.blocks && !r.conditional}
		if r.jump == own.Name && (r.handle != 0 || !r.conditional || len(printed) > i) {
			rule = parentRule{text: r.text, handle: r.handle, jump: true}
			switch {
			case otherForm(r) && len(printed) > i:
				rule.text = printed[i]
			case r.conditional: // r.text is not the whole rule, and could be that of our jump
				rule.text = fmt.Sprint(r.exprs)
			}
		}
		all = append(all, rule)
	}
	return all, nil
}

// printed returns the arguments of a chain's rules as iptables -S prints them.
func (p *iptablesPlace) printed(ctx context.Context, table, chain string) ([]string, error) {
	args := []string{"-t", table, "-S", chain}
	if p.variant == variantLegacy {
		args = append(args, "--wait=5") // for the lock, in seconds
	}
	out, err := run(ctx, nil, p.command+p.suffix, args...)
	if err != nil {
		return nil, err // what it printed until the error is not used
	}
	return firewall.SavedRules(out, chain), nil
}

// cannotPrint reports whether an error of printed says that iptables cannot read a rule of the chain, or
// crashes at it. Such an error would come again, unlike one of a program that could not be started or was killed.
func (p *iptablesPlace) cannotPrint(err error) bool {
	_, failed := errors.AsType[*exec.ExitError](err)
	return failed && !p.isInterrupted(err)
}

// chainRules returns the rules of a chain, or with chain "" those of all chains of the table. A chain that does not exist
// has none.
func (p *iptablesPlace) chainRules(table, chain string) ([]kernelRule, error) {
	if p.variant == variantLegacy {
		t, err := p.legacyTable(table)
		return t.rules(chain), err
	}
	rules, err := readRules(p.family(), table, chain)
	if err != nil && !absent(err) {
		return nil, fmt.Errorf("chain %s %s: %w", table, chain, err)
	}
	return rules, nil
}

// deleteRules deletes rules of the nft variant. A rule that is gone by then is no error.
func (p *iptablesPlace) deleteRules(handles []ruleHandle) error {
	for _, h := range handles {
		conn, err := nftables.New()
		if err != nil {
			return fmt.Errorf("open nftables: %w", err)
		}
		table := &nftables.Table{Family: p.family(), Name: h.table}
		if err := conn.DelRule(&nftables.Rule{Table: table, Chain: &nftables.Chain{Name: h.chain, Table: table}, Handle: h.handle}); err != nil {
			return fmt.Errorf("delete a jump in %s %s: %w", h.table, h.chain, err)
		}
		if err := conn.Flush(); err != nil && !absent(err) {
			return fmt.Errorf("delete a jump in %s %s: %w", h.table, h.chain, err)
		}
	}
	return nil
}

// hasChain reports whether the chain exists, without starting a program. An error means that the kernel could not answer
// for want of resources. A kernel that cannot answer the question at all has no chain of ours.
func (p *iptablesPlace) hasChain(table, chain string) (bool, error) {
	if p.variant == variantLegacy {
		t, err := p.legacyTable(table)
		if !isTransient(err) {
			err = nil
		}
		return slices.Contains(t.chains, chain), err
	}
	return hasChain(p.family(), table, chain)
}

func (p *iptablesPlace) family() nftables.TableFamily {
	if p.command == "iptables" {
		return nftables.TableFamilyIPv4
	}
	return nftables.TableFamilyIPv6
}
