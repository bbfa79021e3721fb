package ruleset

import (
	"fmt"
	"slices"
)

const (
	// budget limits how many rules and elements of sets one evaluation looks at. It is a
	// choice, far above the rules of real hosts: chains that jump to each other many times
	// could keep an evaluation busy for hours.
	budget = 2_000_000
	// maxDepth limits jumps within jumps. It is a choice above the kernel's own limit for
	// nftables, which is 16.
	maxDepth = 64
)

// walk is one evaluation: the packets that a Packet describes, on their way through the
// chains. Evaluate makes it, and calls enter for each hook and base for each base
// chain. The steps of rules read and change it.
type walk struct {
	packet    Packet
	in, out   string // devices as the current hook sees them
	hook      string // the current one, as in hooks
	mark      mark   // of the packets
	ctMark    mark   // of their connections
	untracked answer // which packets are exempt from connection tracking
	budget    int    // what is left of it
	depth     int    // of jumps
	why       string // the first condition in the current base chain that is unknown, for Result.Reason
	result    Result
}

// mark is a packet mark or a connection mark. It starts with 0.
type mark struct {
	value, open uint64 // the bits of open are not known
}

// set clears the bits of mask, and then applies xor, for the packets that reach the
// rule. If those are not all packets, the bits in question are open afterwards.
func (m *mark) set(reached answer, mask, xor uint64) {
	if reached == yes {
		m.open &^= mask
		m.value = (m.value &^ mask) ^ xor
		return
	}
	m.open |= mask | xor
}

// allBits is the mask of a whole mark.
const allBits = 1<<32 - 1

// enter begins with the chains of the next hook.
func (w *walk) enter(hook string) {
	w.hook, w.in, w.out = hook, w.packet.In, w.packet.Out
	switch hook {
	case "ingress", "prerouting", "input":
		w.out = "" // routing has not chosen it yet
	case "egress":
		w.in = ""
	}
}

// applies reports whether the packets get into a base chain of the current hook.
func (w *walk) applies(c *chain) bool {
	switch c.family {
	case "ip":
		return w.v4()
	case "ip6":
		return !w.v4()
	}
	return true // inet and netdev
}

// enters tells which of the packets get into a base chain that applies: some
// chains are for devices.
func (w *walk) enters(c *chain) answer {
	device := w.in
	if c.hook == "egress" {
		device = w.out
	}
	switch {
	case c.hook != "ingress" && c.hook != "egress":
		return yes
	case len(c.devices) == 0: // nft before 1.0.9 does not print them as JSON
		return w.unknown("the chain's devices")
	case device == AnyDevice:
		return some
	}
	return answerOf(slices.Contains(c.devices, device))
}

// v4 reports whether the packet is of IPv4.
func (w *walk) v4() bool { return w.packet.Dst.Addr().Is4() }

// base runs the packets through a base chain.
func (w *walk) base(c *chain) {
	w.why = ""
	r := run{reach: w.enters(c)}
	r.whole = r.reach == yes
	if r.reach, _ = w.chain(c, r); c.drops {
		w.apply(yes, verdict{kind: drop}, c.place+": policy drop", &r)
	}
}

// verdictOf has the verdict if a rule or policy drops the packets that reach it.
var verdictOf = [...]Verdict{no: Passes, yes: Dropped, some: Partly, part: Partly, atMostPart: Partly, unknown: Undecided}

// dropped records the verdict of a rule or policy that drops.
func (w *walk) dropped(verdict Verdict, rule string) {
	if verdict <= w.result.Verdict {
		return
	}
	w.result = Result{Verdict: verdict, Rule: rule}
	if verdict == Undecided {
		w.result.Reason = w.why
	}
}

// unknown records why an evaluation is not possible. It returns unknown.
func (w *walk) unknown(format string, args ...any) answer {
	if w.why == "" {
		w.why = fmt.Sprintf(format, args...)
	}
	return unknown
}

// run is the state of the packets in one chain.
type run struct {
	reach answer // which packets are at the current rule
	whole bool   // the way into the chain, from the base chain on, has no condition that only some packets meet
	left  answer // which left the chain by return or goto, and continue in the caller
	ended bool   // some ended in the chain, and were not dropped
}

// chain runs the packets of r.reach through a chain, and through the chains that it jumps to.
// through tells which of them come out of it again. all is true if all others were dropped:
// dropped has recorded that, so that they can go on like those that come out.
func (w *walk) chain(c *chain, r run) (through answer, all bool) {
	if w.depth++; w.depth > maxDepth {
		w.depth--
		return w.unknown("more than %d jumps", maxDepth), false
	}
	defer func() { w.depth-- }()
	reach := r.reach
	for _, rule := range c.rules {
		if r.reach == no || w.result.Verdict == Dropped {
			break
		}
		if w.budget--; w.budget < 0 {
			w.dropped(verdictOf[w.unknown("the rules are too many")], c.describe(rule))
			break
		}
		why := w.why
		w.rule(c, rule, &r)
		if max(r.reach, r.left) < atMostPart {
			w.why = why // where the packets are does not depend on a condition of this rule
		}
	}
	if !r.ended {
		return reach, true // all are at the end of the chain, or back in the caller, or dropped
	}
	return or(r.reach, r.left), false
}

// rule runs the packets that are at a rule through its steps, and applies the verdicts
// to r.
func (w *walk) rule(c *chain, rule rule, r *run) {
	match := yes
	for _, step := range rule.steps {
		matched, verdicts := step(w, and(r.reach, match))
		for _, b := range verdicts {
			w.apply(and(match, b.match), b.verdict, c.describe(rule), r)
		}
		if match = and(match, matched); match == no {
			return
		}
	}
}

// apply applies a verdict to those packets at a rule that match it.
func (w *walk) apply(match answer, v verdict, rule string, r *run) {
	reached := and(r.reach, match)
	if reached == no {
		return
	}
	rest := and(r.reach, not(match))
	switch v.kind {
	case accept:
		r.ended, r.reach = true, rest
	case drop:
		// r.reach stays if the rule drops only some, and r.ended in any case: if a later rule, also of
		// the caller, drops everything that reaches it, then none of the packets is left, and the result
		// is Dropped.
		//
		// A network policy drops packets of single pods, or of those in a chain for them, after routing.
		// The verdict is worse if a chain that all packets pass ends with a drop, behind rules that accept
		// exceptions, or if the rule for single pods is before routing, as Docker's in the table raw.
		verdict := verdictOf[reached]
		if r.whole && match == yes && reached == some || w.hook == "prerouting" && reached == part {
			verdict = Mostly
		}
		w.dropped(verdict, rule)
		if match == yes {
			r.reach = no
		}
	case elsewhere:
		w.dropped(verdictOf[and(reached, w.unknown("where the packets go"))], rule) // this reason only if there is no other yet
		r.ended, r.reach = true, unknown
	case goBack:
		r.left, r.reach = or(r.left, reached), rest
	case jump:
		if through, all := w.chain(v.target, run{reach: reached, whole: r.whole && match == yes}); !all {
			r.ended, r.reach = true, or(rest, through)
		} // all: those that jumped are back, so r.reach is right
	case goTo: // as jump, but those that come back leave this chain, too
		through, all := w.chain(v.target, run{reach: reached, whole: r.whole && match == yes})
		r.ended = r.ended || !all
		r.left, r.reach = or(r.left, through), rest
	}
}
