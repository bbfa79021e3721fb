package firewall

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// spec returns the rule as arguments of iptables, in the order in which iptables-save prints them. Addresses come as
// netip.Prefix and comments are constants, so no text from a peer or a configuration can add a word to a script.
func (r Rule) spec(comment string) string {
	text := addressSpec("-s ", r.NotSrc, r.Src) + addressSpec("-d ", r.NotDst, r.Dst)
	if r.Mark != 0 {
		text += fmt.Sprintf("-m mark --mark %#x/%#x ", r.Mark, r.Mark)
	}
	text += fmt.Sprintf("-m comment --comment %q -j %s", comment, r.Verdict)
	if r.RandomFully {
		text += " --random-fully"
	}
	return text
}

func addressSpec(flag string, not bool, p netip.Prefix) string {
	switch {
	case !p.IsValid():
		return ""
	case not:
		flag = "! " + flag
	}
	return flag + p.String() + " "
}

// jump returns the arguments of the rule in the parent chain.
func (c Chain) jump() string {
	return fmt.Sprintf("-m comment --comment %q -j %s", c.Comment, c.Name)
}

// change is the difference between the rules of a place and the wanted ones.
type change struct {
	script string // for iptables-restore; "" if nothing differs
	chains int    // number of chains that it writes or removes
	// numbered holds, for each chain whose jump is inserted at a position, the rules that must follow the jump.
	numbered map[string][]string
}

// planChange compares have with want. Each table is one transaction of iptables-restore, therefore packets never meet a
// half-written chain.
func planChange(have savedRules, want []Chain) change {
	var b strings.Builder
	c := change{numbered: map[string][]string{}}
	for _, own := range have.owner.chains() {
		h := have.chain(own)
		i := slices.IndexFunc(want, func(c Chain) bool { return c.Name == own.Name })
		if i < 0 {
			if h.exists {
				c.chains++
				writeRemove(&b, own, h)
			}
			continue
		}
		plan := h.plan(want[i])
		if h.exists && !plan.insert && len(plan.remove) == 0 && sameRules(h, want[i]) {
			continue
		}
		c.chains++
		writeReplace(&b, want[i], plan)
		if plan.at > 0 {
			c.numbered[own.Name] = plan.behind
		}
	}
	c.script = b.String()
	return c
}

// plan returns the changes that the jump to a chain needs.
func (h savedChain) plan(want Chain) jumpPlan {
	if h.misplaced {
		return placeJump(h.parent)
	}
	return planJump(h.parent, want.jump())
}

// sameRules reports whether the chain holds exactly the wanted rules, in their order. A foreign rule in our chain is a
// difference like a missing one.
func sameRules(have savedChain, want Chain) bool {
	return slices.EqualFunc(have.rules, want.Rules, func(line string, r Rule) bool {
		return normalise(line) == normalise(r.spec(want.Comment))
	})
}

// writeReplace writes the commands that rewrite a chain and execute the plan for its jump. A rule is deleted by the
// text that iptables-save printed for it. If it was deleted since, the transaction fails.
func writeReplace(b *strings.Builder, want Chain, plan jumpPlan) {
	fmt.Fprintf(b, "*%s\n:%s - [0:0]\n", want.Table, want.Name) // creates or flushes the chain
	for _, jump := range plan.remove {
		fmt.Fprintf(b, "-D %s %s\n", want.Parent, jump)
	}
	for _, r := range want.Rules {
		fmt.Fprintf(b, "-A %s %s\n", want.Name, r.spec(want.Comment))
	}
	switch {
	case plan.at > 0:
		fmt.Fprintf(b, "-I %s %d %s\n", want.Parent, plan.at, want.jump())
	case plan.insert:
		fmt.Fprintf(b, "-A %s %s\n", want.Parent, want.jump())
	}
	b.WriteString("COMMIT\n")
}

// writeRemove writes the commands that delete a chain and every rule that jumps to it, including rules of others,
// because a chain that is still referred to cannot be deleted.
func writeRemove(b *strings.Builder, own Chain, have savedChain) {
	fmt.Fprintf(b, "*%s\n:%s - [0:0]\n", own.Table, own.Name)
	for _, jump := range jumps(have.parent) {
		fmt.Fprintf(b, "-D %s %s\n", own.Parent, jump)
	}
	// These rules stand in chains of other programs. This is the only place where we delete such rules.
	for _, f := range have.foreignJumps {
		fmt.Fprintf(b, "-D %s\n", f)
	}
	fmt.Fprintf(b, "-X %s\nCOMMIT\n", own.Name)
}
