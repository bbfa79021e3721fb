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

// Scripts for iptables-restore. Addresses come as netip.Prefix and comments are constants, so nothing that a peer or a
// configuration says can put a word of its own into one.

// restore is the input of iptables-restore --noflush that turns have into want, and the number of chains that it
// changes: 0, with an empty script, when nothing differs. Each table is one transaction: a chain is never seen empty.
func restore(have saved, want []Chain) (script string, changed int) {
	var b strings.Builder
	for _, own := range chains() {
		h := have.chain(own)
		i := slices.IndexFunc(want, func(c Chain) bool { return c.Name == own.Name })
		if i < 0 {
			if h.exists {
				changed++
				remove(&b, own, h)
			}
			continue
		}
		if !inStep(h, want[i]) {
			changed++
			replace(&b, want[i], h)
		}
	}
	return b.String(), changed
}

// inStep compares order and number too: a rule by another hand in our chain differs as much as a missing one.
func inStep(have savedChain, want Chain) bool {
	if !have.exists || !have.first || len(have.jumps) != 1 || normalise(have.jumps[0]) != normalise(want.jump()) {
		return false
	}
	return slices.EqualFunc(have.rules, want.Rules, func(line string, r Rule) bool {
		return normalise(line) == normalise(r.spec(want.Comment))
	})
}

// replace rewrites the chain and moves the jump to the front. A jump is deleted by the very text that iptables-save
// gave for it, whatever another hand has made of it; one that is gone meanwhile fails the transaction.
func replace(b *strings.Builder, want Chain, have savedChain) {
	fmt.Fprintf(b, "*%s\n:%s - [0:0]\n", want.Table, want.Name) // makes the chain, or empties it
	for _, jump := range have.jumps {
		fmt.Fprintf(b, "-D %s %s\n", want.Parent, jump)
	}
	for _, r := range want.Rules {
		fmt.Fprintf(b, "-A %s %s\n", want.Name, r.spec(want.Comment))
	}
	fmt.Fprintf(b, "-I %s %s\nCOMMIT\n", want.Parent, want.jump())
}

// remove takes the chain away and every rule that leads to it, also those by another hand: a chain that is still
// referred to cannot be deleted.
func remove(b *strings.Builder, own Chain, have savedChain) {
	fmt.Fprintf(b, "*%s\n:%s - [0:0]\n", own.Table, own.Name)
	for _, jump := range have.jumps {
		fmt.Fprintf(b, "-D %s %s\n", own.Parent, jump)
	}
	// These stand in other programs' chains, and only here, where our chain goes for good, are they touched.
	for _, f := range have.foreign {
		fmt.Fprintf(b, "-D %s\n", f)
	}
	fmt.Fprintf(b, "-X %s\nCOMMIT\n", own.Name)
}
