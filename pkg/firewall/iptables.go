package firewall

import (
	"fmt"
	"slices"
	"strings"
)

// spec is the rule as the arguments of iptables, in the order in which iptables-save prints them.
func (r Rule) spec(comment string) string {
	var b strings.Builder
	address := func(flag string, not bool, p fmt.Stringer, set bool) {
		if !set {
			return
		}
		if not {
			b.WriteString("! ")
		}
		fmt.Fprintf(&b, "%s %s ", flag, p)
	}
	address("-s", r.NotSrc, r.Src, r.Src.IsValid())
	address("-d", r.NotDst, r.Dst, r.Dst.IsValid())
	if r.Mark != 0 {
		fmt.Fprintf(&b, "-m mark --mark %#x/%#x ", r.Mark, r.Mark)
	}
	fmt.Fprintf(&b, "-m comment --comment %q -j %s", comment, r.Verdict)
	if r.RandomFully {
		b.WriteString(" --random-fully")
	}
	return b.String()
}

// jump is the rule in the parent chain.
func (c Chain) jump() string {
	return fmt.Sprintf("-m comment --comment %q -j %s", c.Comment, c.Name)
}

// change is what brings the chains of a place in order.
type change struct {
	script string // for iptables-restore; "" if nothing differs
	chains int    // that it writes or removes
	// numbered are the jumps that are inserted by number, by chain: what shall stand behind each.
	numbered map[string][]string
}

// Addresses come as netip.Prefix and comments are constants, so nothing that a peer or a configuration says can put a
// word of its own into a script.

// restore compares what there is with want. Each table is one transaction: a chain is never seen empty.
func restore(have saved, want []Chain) change {
	var b strings.Builder
	c := change{numbered: map[string][]string{}}
	for _, own := range have.owner.chains() {
		h := have.chain(own)
		i := slices.IndexFunc(want, func(c Chain) bool { return c.Name == own.Name })
		if i < 0 {
			if h.exists {
				c.chains++
				remove(&b, own, h)
			}
			continue
		}
		plan := h.plan(want[i])
		if h.exists && !plan.insert && len(plan.remove) == 0 && sameRules(h, want[i]) {
			continue
		}
		c.chains++
		replace(&b, want[i], plan)
		if plan.at > 0 {
			c.numbered[own.Name] = plan.behind
		}
	}
	c.script = b.String()
	return c
}

// plan is what has to be done about the jump to a chain.
func (h savedChain) plan(want Chain) jumpPlan {
	if h.anew {
		return placeJump(h.parent)
	}
	return planJump(h.parent, want.jump())
}

// sameRules compares order and number too: a foreign rule in our chain differs as much as a missing one.
func sameRules(have savedChain, want Chain) bool {
	return slices.EqualFunc(have.rules, want.Rules, func(line string, r Rule) bool {
		return normalise(line) == normalise(r.spec(want.Comment))
	})
}

// replace rewrites the chain and carries out the plan for its jump. A rule is deleted by the very text that
// iptables-save gave for it; one that is gone meanwhile fails the transaction.
func replace(b *strings.Builder, want Chain, plan jumpPlan) {
	fmt.Fprintf(b, "*%s\n:%s - [0:0]\n", want.Table, want.Name) // makes the chain, or empties it
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

// remove takes the chain away and every rule that leads to it, also those that others made: a chain that is still
// referred to cannot be deleted.
func remove(b *strings.Builder, own Chain, have savedChain) {
	fmt.Fprintf(b, "*%s\n:%s - [0:0]\n", own.Table, own.Name)
	for _, jump := range have.jumps() {
		fmt.Fprintf(b, "-D %s %s\n", own.Parent, jump)
	}
	// These stand in other programs' chains, and only here, where our chain goes for good, are they touched.
	for _, f := range have.foreign {
		fmt.Fprintf(b, "-D %s\n", f)
	}
	fmt.Fprintf(b, "-X %s\nCOMMIT\n", own.Name)
}
