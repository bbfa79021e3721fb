package firewall

import (
	"fmt"
	"slices"
	"strings"

	"flannel/pkg/firewall"
)

// change is the difference between the rules of a place of iptables and the wanted ones. iptablesPlace.sync makes it by
// planChange, which is pure, and writes it.
type change struct {
	script string // for iptables-restore; "" if nothing differs
	chains int    // number of chains that it writes or removes; 0: nothing differs
	// numbered holds, for each chain whose jump is inserted at a position, the rules that must follow the jump.
	numbered map[string][]string
	// before and after are jumps to delete by their handle, before the script (of a chain that it deletes) or after it (of
	// one whose jump it replaces).
	before, after []ruleHandle
}

// ruleHandle identifies a rule in the nft variant.
type ruleHandle struct {
	table, chain string
	handle       uint64 // unique in the table
}

// planChange compares have, what read has read, with want. Each table is one transaction of iptables-restore, therefore
// packets never meet a half-written chain.
func planChange(have savedRules, want []firewall.Chain) change {
	var b strings.Builder
	c := change{numbered: map[string][]string{}}
	for _, own := range have.owner.chains() { // of all tables: those of other places do not exist in have, nor in want
		h := have.chain(own)
		i := slices.IndexFunc(want, func(c firewall.Chain) bool { return c.Name == own.Name })
		if i < 0 {
			if h.exists { // without a chain, no rule can jump to it
				c.chains++
				c.before = append(c.before, writeRemove(&b, own, h)...)
			}
			continue
		}
		plan := h.plan(want[i])
		if h.exists && !plan.insert && len(plan.remove) == 0 && sameRules(h, want[i]) {
			continue
		}
		c.chains++
		c.after = append(c.after, writeReplace(&b, want[i], plan)...)
		if plan.at > 0 {
			c.numbered[own.Name] = plan.behind
		}
	}
	c.script = b.String()
	return c
}

// plan returns the changes that the jump to a chain needs, which may be none.
func (h savedChain) plan(want firewall.Chain) jumpPlan {
	if h.misplaced {
		return placeJump(h.parent)
	}
	return planJump(h.parent, jumpTo(want))
}

// sameRules reports whether the chain holds exactly the wanted rules, in their order. A foreign rule in our chain is a
// difference like a missing one.
func sameRules(have savedChain, want firewall.Chain) bool {
	return !have.unprintable && slices.EqualFunc(have.rules, want.Rules, func(line string, r firewall.Rule) bool {
		return normalise(line) == normalise(spec(r, want.Comment))
	})
}

// writeReplace writes the commands that rewrite a chain and execute the plan for its jump. A jump without a handle is
// deleted by its text: if somebody has deleted it since, the transaction fails, and sync tries again. The caller deletes the
// jumps that writeReplace returns after the script.
func writeReplace(b *strings.Builder, want firewall.Chain, plan jumpPlan) (handles []ruleHandle) {
	fmt.Fprintf(b, "*%s\n:%s - [0:0]\n", want.Table, want.Name) // creates or flushes the chain
	for _, jump := range plan.remove {
		handles = append(handles, writeDelete(b, want.Table, want.Parent, jump)...)
	}
	for _, r := range want.Rules {
		fmt.Fprintf(b, "-A %s %s\n", want.Name, spec(r, want.Comment))
	}
	switch {
	case plan.at > 0:
		fmt.Fprintf(b, "-I %s %d %s\n", want.Parent, plan.at, jumpTo(want))
	case plan.insert:
		fmt.Fprintf(b, "-A %s %s\n", want.Parent, jumpTo(want))
	}
	b.WriteString("COMMIT\n")
	return handles
}

// writeRemove writes the commands that delete a chain and every rule that jumps to it, including rules of others,
// because a chain that is still referred to cannot be deleted. The caller deletes the jumps that writeRemove returns before
// the script.
func writeRemove(b *strings.Builder, own firewall.Chain, have savedChain) (handles []ruleHandle) {
	fmt.Fprintf(b, "*%s\n:%s - [0:0]\n", own.Table, own.Name)
	for _, jump := range jumps(have.parent) {
		handles = append(handles, writeDelete(b, own.Table, own.Parent, jump)...)
	}
	// These rules stand in chains of other programs. This is the only place where we delete such rules.
	for _, f := range have.foreignJumps {
		handles = append(handles, writeDelete(b, own.Table, f.chain, f.parentRule)...)
	}
	fmt.Fprintf(b, "-X %s\nCOMMIT\n", own.Name)
	return handles
}

// writeDelete writes the command that deletes a jump, or returns the jump's handle if it has one: to find a rule by its
// text, iptables-nft must be able to read every rule before it.
func writeDelete(b *strings.Builder, table, chain string, jump parentRule) []ruleHandle {
	if jump.handle != 0 {
		return []ruleHandle{{table, chain, jump.handle}}
	}
	fmt.Fprintf(b, "-D %s %s\n", chain, jump.text)
	return nil
}
