package firewall

import (
	"slices"

	"flannel/pkg/firewall/iptsave"
)

// The place of our jump in its parent chain. A new jump is appended, and an existing one is never moved: rules that other
// programs or the administrator put before it come first, on purpose. Only behind a rule that lets no packet pass a new
// jump would do nothing, so it is placed right before that rule if the chain ends with it (Red Hat's default FORWARD).

// parentRule is a rule of a chain that jumps to one of ours.
type parentRule struct {
	text   string // its arguments; only compared, and deleted by
	jump   bool   // leads to our chain
	blocks bool   // in FORWARD: a DROP or REJECT of every packet
}

// jumpPlan is what brings the jump of a parent chain in order; the zero jumpPlan: nothing to do.
type jumpPlan struct {
	remove []string // rules that are deleted first, by their arguments; the first match of each goes
	insert bool
	// at is where the new jump goes: its number from 1 on, as iptables -I counts, after the removal; 0: the end.
	at int
	// behind are the rules of others that follow the new jump unless another program changed the chain in between.
	behind []string
}

// planJump compares the jumps in parent with want, the arguments of ours. A missing jump is placed as a new one; one of
// several stays and the others go; one with other arguments is replaced where it stands.
func planJump(parent []parentRule, want string) jumpPlan {
	right := func(r parentRule) bool { return r.jump && normalise(r.text) == normalise(want) }
	stays := kept(parent, right)
	if stays < 0 {
		stays = kept(parent, func(r parentRule) bool { return r.jump })
	}
	if stays < 0 {
		return placeJump(parent)
	}
	var p jumpPlan
	// Rules are deleted by their text, the first match each time: of equal ones only the last can stay.
	p.insert = !right(parent[stays]) || slices.ContainsFunc(parent[stays+1:], right)
	for i, r := range parent {
		if r.jump && (p.insert || i != stays) {
			p.remove = append(p.remove, r.text)
		}
	}
	if p.insert {
		p.at, p.behind = number(parent, stays)
	}
	return p
}

// placeJump deletes every jump and places a new one.
func placeJump(parent []parentRule) jumpPlan {
	before := len(parent)
	for i, r := range slices.Backward(parent) {
		if r.blocks {
			before = i
		} else if !r.jump {
			break
		}
	}
	p := jumpPlan{insert: true}
	for _, r := range parent {
		if r.jump {
			p.remove = append(p.remove, r.text)
		}
	}
	p.at, p.behind = number(parent, before)
	return p
}

// kept is the index of the candidate that stays: the last one, because it overrides the fewest rules of others, but
// not behind a rule that lets nothing pass if there is one before it. It is -1 without candidates.
func kept(parent []parentRule, candidate func(parentRule) bool) int {
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

// number is the number that a rule at index i has when all jumps are gone, and the rules of others behind it. It is 0 if
// there are none: to append needs no number, which may be outdated when it is used.
func number(parent []parentRule, i int) (at int, behind []string) {
	behind = others(parent[i:])
	if len(behind) == 0 {
		return 0, nil
	}
	return len(others(parent[:i])) + 1, behind
}

// others lists the rules that are not jumps to our chain.
func others(rules []parentRule) (texts []string) {
	for _, r := range rules {
		if !r.jump {
			texts = append(texts, r.text)
		}
	}
	return texts
}

// misplaced reports whether a jump that was inserted by number stands elsewhere than planned: another program added or
// deleted a rule between our reading and writing. What was appended meanwhile does not matter.
func misplaced(parent []parentRule, planned []string) bool {
	i := slices.IndexFunc(parent, func(r parentRule) bool { return r.jump })
	if i < 0 {
		return false
	}
	behind := others(parent[i:])
	return len(behind) < len(planned) || !slices.Equal(behind[:len(planned)], planned)
}

// blocks reports whether a rule with these arguments lets no packet pass: REJECT or DROP, and nothing that it matches.
func blocks(args string) bool {
	end := false
	for _, o := range iptsave.Options(args) {
		if o.Not || len(o.Values) != 1 {
			return false
		}
		switch o.Name {
		case "-j":
			end = o.Value() == "REJECT" || o.Value() == "DROP"
		case "-m":
			if o.Value() != "comment" {
				return false
			}
		case "--comment", "--reject-with":
		default:
			return false
		}
	}
	return end
}
