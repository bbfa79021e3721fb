package firewall

import "slices"

// The position of our jump in its parent chain. A new jump is appended, and an existing one is never moved, because
// other programs and the administrator insert rules before it on purpose. But behind a rule that drops every packet a
// jump has no effect, therefore a new one is inserted right before such a rule at the end of the chain, as in Red Hat's
// default FORWARD:
//
//	-A FORWARD -j CALICO-FORWARD
//	                                  <- position 2, where the new jump goes
//	-A FORWARD -j REJECT --reject-with icmp-host-prohibited

// planChange makes a jumpPlan for each of our chains: by planJump, or by placeJump if a jump that was just inserted is
// misplaced. writeReplace writes the commands for it. All functions of this file are pure.

// parentRule is a rule of a parent chain.
type parentRule struct {
	text   string // its arguments, to compare and to delete it by
	handle uint64 // of a jump in the nft variant: it is deleted by its handle instead; 0: by its text
	jump   bool   // it jumps to our chain
	// blocks: a DROP or REJECT of every packet. Only set in FORWARD: our other parent chains, of the table nat, do not
	// filter.
	blocks bool
}

// jumpPlan lists the changes that repair the jump in a parent chain. The zero jumpPlan changes nothing.
type jumpPlan struct {
	// remove are the jumps to delete. Those without a handle are deleted by their text before the new jump is added, in the
	// same transaction: the new one may have the same text. Those with one are deleted after that transaction, so that there
	// is a jump at any time.
	remove []parentRule
	insert bool // a new jump
	// at is the position of the new jump after the deletions by text, from 1 as iptables -I counts; 0: append it.
	at int
	// behind are the texts of the rules of others that follow the new jump, unless another program changes the chain first;
	// nil if it is appended.
	behind []string
}

// planJump compares the jumps in parent with want, the arguments of our jump. A missing jump is placed as a new one. Of
// several, one is kept and the others are deleted. One with other arguments is replaced at its position.
func planJump(parent []parentRule, want string) jumpPlan {
	// normalise: iptables may print the options in another order.
	right := func(r parentRule) bool { return r.jump && normalise(r.text) == normalise(want) }
	keep := keptJump(parent, right) // an index of parent; -1: none
	if keep < 0 {                   // none has our arguments: the one to be replaced
		keep = keptJump(parent, func(r parentRule) bool { return r.jump })
	}
	if keep < 0 {
		return placeJump(parent)
	}
	// A deletion by text removes the first rule with that text, so of equal rules only the last can be kept.
	if !right(parent[keep]) || slices.ContainsFunc(parent[keep+1:], right) {
		return replaceJumps(parent, keep)
	}
	return jumpPlan{remove: jumps(slices.Delete(slices.Clone(parent), keep, keep+1))}
}

// placeJump deletes every jump, if there is any, and adds a new one: before the rules at the end of the chain that
// block, else at the end.
func placeJump(parent []parentRule) jumpPlan {
	before := len(parent)
	for i, r := range slices.Backward(parent) {
		if r.blocks {
			before = i
		} else if !r.jump {
			break
		}
	}
	return replaceJumps(parent, before)
}

// replaceJumps deletes every jump and adds a new one at index i of parent. If no rules of others follow there, it
// appends the jump, because a position could be outdated when it is used.
func replaceJumps(parent []parentRule, i int) jumpPlan {
	p := jumpPlan{remove: jumps(parent), insert: true, behind: foreignRules(parent[i:])}
	if len(p.behind) == 0 {
		return p
	}
	p.at = 1
	for _, r := range parent[:i] {
		if !r.jump || r.handle != 0 { // it is still there when the jump is inserted
			p.at++
		}
	}
	return p
}

// keptJump returns the index of the candidate to keep, -1 if there are none. That is the last one, because the fewest
// rules of others follow it, but a candidate before the first blocking rule is preferred to those behind it.
func keptJump(parent []parentRule, candidate func(parentRule) bool) int {
	last := -1
	for i, r := range parent {
		if r.blocks && last >= 0 {
			break
		}
		if candidate(r) {
			last = i
		}
	}
	return last
}

// jumps returns the rules that jump to our chain.
func jumps(rules []parentRule) (all []parentRule) {
	for _, r := range rules {
		if r.jump {
			all = append(all, r)
		}
	}
	return all
}

// foreignRules returns the texts of the other rules.
func foreignRules(rules []parentRule) (texts []string) {
	for _, r := range rules {
		if !r.jump {
			texts = append(texts, r.text)
		}
	}
	return texts
}

// misplaced reports whether a jump that was inserted at a position is not followed by the planned rules, because
// another program added or deleted a rule between our read and write. Rules appended since do not matter. parent was
// read after the whole plan was executed, deletions included.
func misplaced(parent []parentRule, planned []string) bool {
	i := slices.IndexFunc(parent, func(r parentRule) bool { return r.jump })
	if i < 0 {
		return false // deleted since: planJump adds a new one
	}
	behind := foreignRules(parent[i:])
	return len(behind) < len(planned) || !slices.Equal(behind[:len(planned)], planned) // behind planned: appended since
}
