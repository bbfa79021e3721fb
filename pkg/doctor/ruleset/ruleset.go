// Package ruleset evaluates the firewall rules of a Linux host for one packet,
// without sending it. It reads what nft -j list ruleset and iptables-save print,
// and runs the packet through the base chains of its hooks in the kernel's order.
//
// A condition on something that the Packet does not determine (a TTL, a rate)
// holds for some packets. What this package cannot evaluate is Undecided, never
// Passes. Its model does not include tables of the family bridge, traffic control
// and eBPF.
//
// The doctor calls it, on one goroutine (pkg/doctor/firewall.go). How the parts
// fit:
//
//	AddIPTables, AddNFT   parse rules into steps (iptables*.go, ipoption.go, nft*.go, marks.go)
//	step, verdict         one condition or statement of a rule, and what it decides (below)
//	operand, field        a part of the packets, such as the destination port, and the
//	                      values that it has for the packets of a walk (operand.go)
//	set, value, span      what a rule compares a field with (set.go, value.go)
//	walk                  one evaluation, and where its packets are (walk.go)
package ruleset

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// Path is the way of a packet through the host, and by that the hooks that see it.
type Path int

const (
	Incoming  Path = iota // from Packet.In to this host
	Outgoing              // from this host to Packet.Out
	Forwarded             // from Packet.In to Packet.Out
)

// AnyDevice stands for a device whose name is not known. No device can have this
// name.
const AnyDevice = "/"

// Packet describes the packets to evaluate: the first of a connection, unicast,
// without a mark, on a route that the host has in both directions.
type Packet struct {
	Path     Path
	Src, Dst netip.Prefix // of one family; a prefix of several addresses stands for any of them
	Protocol int          // IP protocol number; 0: any
	SrcPort  int          // 0: any
	DstPort  int          // 0: any
	In, Out  string       // devices, or AnyDevice; "": the path has none

	MayBeService bool // Dst may be an address of a Service of Kubernetes, too
}

// Verdict is what happens to the packets, the worst last.
type Verdict int

const (
	Passes    Verdict = iota
	Partly            // some of the packets are dropped, depending on what Packet leaves open
	Mostly            // as Partly, but not as by a network policy, see walk.apply
	Undecided         // the rules have conditions that this package cannot evaluate
	Dropped
)

// Result is the verdict with its reason.
type Result struct {
	Verdict Verdict
	Rule    string // the rule or policy that drops; "" with Passes
	Reason  string // with Undecided: what could not be evaluated
}

// Ruleset holds the rules of a host. The zero value has none.
type Ruleset struct {
	base     []*chain
	iptables map[string]map[string]*chain // tables of iptables-nft by "ip filter", their chains by name, as iptables prints them
}

// chain is a chain of nftables or iptables.
type chain struct {
	place    string   // "table inet filter, chain input", for a Result
	family   string   // "ip", "ip6", "inet" or "netdev"
	hook     string   // of a base chain; "" for others
	devices  []string // names; only of the hooks ingress and egress
	priority int      // chains of a hook run in ascending order
	drops    bool     // the policy is drop; false: accept
	rules    []rule
}

// rule is a list of steps, which the kernel runs until one does not match.
type rule struct {
	text  string
	steps []step
}

// step evaluates one part of a rule. reached tells which of the walk's packets
// reach it; it is never no, since walk.rule ends before. matched tells which of them
// continue with the next step: yes for a step without a condition. A verdict applies to
// those that match, and ends the rule for them; most steps have none.
type step func(w *walk, reached answer) (matched answer, verdicts []branch)

// branch is a verdict, and for which of the packets.
type branch struct {
	match answer
	verdict
}

// kind is what a verdict does with the packets. The zero kind is the cautious one.
type kind int

const (
	elsewhere kind = iota // the packet leaves the path, or may: a queue, a redirection, an unknown target
	accept
	drop
	goBack // return
	jump
	goTo
)

// verdict is what the kernel does with a packet that matches a rule.
type verdict struct {
	kind   kind
	target *chain // of jump and goTo
}

// answer tells for which of a walk's packets a condition holds. The order of the
// numbers matters to and, or.
//
// Two answers are about single addresses: as a network policy, a rule with "-d 10.5.3.7/32"
// is about one of many pods, whatever its other conditions are. By some, such as one on a
// device whose name is not known, it could also be about all.
type answer int

const (
	no answer = iota
	yes
	some       // for some of the packets, or sometimes
	part       // for those from or to single addresses, or some of these
	atMostPart // as part, but whether it holds for any cannot be evaluated
	unknown    // cannot be evaluated
)

// and, or and not combine answers. If neither of two decides alone, as no does for and, and
// yes for or, the less certain one is the result. Only and can tell that packets are at
// most a part: several parts may be all.
func and(a, b answer) answer {
	switch {
	case a == no || b == no:
		return no
	case max(a, b) == unknown && (min(a, b) == part || min(a, b) == atMostPart):
		return atMostPart
	}
	return max(a, b)
}

func or(a, b answer) answer {
	switch {
	case a == yes || b == yes:
		return yes
	case a == no || b == no:
		return max(a, b)
	}
	return max(a.orMore(), b.orMore())
}

func not(a answer) answer {
	switch a {
	case no:
		return yes
	case yes:
		return no
	}
	return a.orMore()
}

// orMore returns the answer for packets that are not known to be only those of single
// addresses.
func (a answer) orMore() answer {
	switch a {
	case part:
		return some
	case atMostPart:
		return unknown
	}
	return a
}

// answerOf returns the answer for what is known.
func answerOf(b bool) answer {
	if b {
		return yes
	}
	return no
}

// hooks lists the hooks of each Path, in order.
var hooks = map[Path][]string{
	Incoming:  {"ingress", "prerouting", "input"},
	Outgoing:  {"output", "postrouting", "egress"},
	Forwarded: {"ingress", "prerouting", "forward", "postrouting", "egress"},
}

// Evaluate returns the worst that happens to the packets on their path. It ends
// with the first rule that drops all of them.
func (r *Ruleset) Evaluate(p Packet) Result {
	w := &walk{packet: p, budget: budget}
	for _, hook := range hooks[p.Path] {
		w.enter(hook)
		for _, c := range r.chains(hook) {
			if !w.applies(c) {
				continue
			}
			w.base(c)
			if w.result.Verdict == Dropped {
				return w.result
			}
		}
	}
	return w.result
}

// chains returns the base chains of a hook in order of priority.
func (r *Ruleset) chains(hook string) (chains []*chain) {
	for _, c := range r.base {
		if c.hook == hook {
			chains = append(chains, c)
		}
	}
	slices.SortStableFunc(chains, func(a, b *chain) int { return cmp.Compare(a.priority, b.priority) })
	return chains
}

// describe returns where a rule is, and its text.
func (c *chain) describe(r rule) string { return fmt.Sprintf("%s: %s", c.place, r.text) }
