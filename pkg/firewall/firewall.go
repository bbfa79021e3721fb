// Package firewall keeps the node's masquerade and forward rules in the kernel: one pure list of rules, brought there
// by one of two writers.
//
// iptables (the nft or the legacy variant, whichever the host uses): read with one iptables-save, compared as parsed
// rules, and replaced as a whole by one iptables-restore transaction. nftables: tables of our own, read and written by
// netlink alone, no program is started. Both hold the same rules. One difference lies in the kernel: an ACCEPT of our
// FLANNEL-FWD ends iptables' FORWARD chain, whereas an accept in an nftables chain overrules no other table's drop.
//
// Because of that ACCEPT, the rules of others come first. The jumps to our chains are appended to FORWARD and
// POSTROUTING, and a jump is never moved: network policy engines, kube-proxy and administrators put rules before it and
// rely on them. Only the end of FORWARD may be no place for a new jump: it stands right before a DROP or REJECT of
// everything there. A jump that is missing, doubled or has other arguments is repaired (see planJump).
//
// Cost: each resync asks the kernel directly whether anything changed (our chains and the jumps to them in nf_tables, the
// whole table in the legacy variant), a few system calls. Only then, once for each family, iptables-save is started.
// In steady state no program is.
package firewall

import (
	"net/netip"
)

// Writer says how rules come into the kernel.
type Writer string

const (
	IPTables Writer = "iptables"
	NFTables Writer = "nftables"
)

// Config is what the rules are made of; comparable.
type Config struct {
	Writer      Writer
	V4, V6      Family // a zero Family: off
	Masquerade  bool   // --ip-masq
	Forward     bool   // --iptables-forward-rules
	RandomFully bool   // pick source ports at random; left out (with a warning) where the kernel or iptables refuses it
}

// Family is one address family of the pod network.
type Family struct {
	Network netip.Prefix // the whole cluster's, masked; the zero Prefix: family off
	Subnet  netip.Prefix // this node's part of it, masked
}

// Verdict is what happens to a packet that a Rule matches.
type Verdict string

const (
	Return     Verdict = "RETURN"
	Accept     Verdict = "ACCEPT"
	Masquerade Verdict = "MASQUERADE"
)

// Rule matches packets by all of its non-zero fields.
type Rule struct {
	Mark           uint32       // set bits of the packet's mark; the mask is the same value
	Src, Dst       netip.Prefix // zero: any
	NotSrc, NotDst bool         // turn the match of Src or Dst around
	Verdict        Verdict
	RandomFully    bool // Masquerade only
}

// Chain is a list of rules and where packets come to it.
type Chain struct {
	Name    string // in iptables
	Table   string // iptables table; nftables chain type
	Parent  string // iptables chain that jumps here, after the rules of others
	Comment string // on the jump and on every rule
	NFTName string // in our nftables table
	Rules   []Rule
}

const (
	postrtg = "FLANNEL-POSTRTG"
	fwd     = "FLANNEL-FWD"

	forwardChain = "FORWARD"
)

// chains are all that the usual flanneld may ever own in a family, without rules.
func chains() []Chain {
	return []Chain{
		{Name: postrtg, Table: "nat", Parent: "POSTROUTING", Comment: "flanneld masq", NFTName: "postrtg"},
		{Name: fwd, Table: "filter", Parent: forwardChain, Comment: "flanneld forward", NFTName: "forward"},
	}
}

// instance is the name of one flanneld among several on a host (package instance); "" is the usual one, whose chains and
// tables are called as flannel's.
type instance string

func (i instance) suffix() string {
	if i == "" {
		return ""
	}
	return "-" + string(i)
}

// chains are all that this flanneld may ever own in a family, without rules.
func (i instance) chains() []Chain { return i.name(chains()) }

// name gives chains this flanneld's names. In nftables they need none, being in a table of its own.
func (i instance) name(chains []Chain) []Chain {
	for j := range chains {
		chains[j].Name += i.suffix()
	}
	return chains
}

// kubeMark is set by kube-proxy on packets that it masquerades itself.
const kubeMark = 0x4000

// Rules are the chains that c asks for in family f, nil where f is off or nothing is asked for.
func Rules(c Config, f Family) []Chain {
	if !f.Network.IsValid() {
		return nil
	}
	var want []Chain
	for _, chain := range chains() {
		switch {
		case chain.Name == postrtg && c.Masquerade:
			chain.Rules = masquerade(f, c.RandomFully)
		case chain.Name == fwd && c.Forward:
			chain.Rules = []Rule{{Src: f.Network, Verdict: Accept}, {Dst: f.Network, Verdict: Accept}}
		default:
			continue
		}
		want = append(want, chain)
	}
	return want
}

func masquerade(f Family, random bool) []Rule {
	return []Rule{
		{Mark: kubeMark, Verdict: Return},
		// Pods see each other's true addresses, wherever they run.
		{Src: f.Subnet, Dst: f.Network, Verdict: Return},
		{Src: f.Network, Dst: f.Subnet, Verdict: Return},
		// Who comes from outside to a pod of this node gets its answer through this node: no need to hide the client.
		{Src: f.Network, NotSrc: true, Dst: f.Subnet, Verdict: Return},
		{Src: f.Network, Dst: multicast(f.Network), NotDst: true, Verdict: Masquerade, RandomFully: random},
		// To a pod of another node by way of this one: the answer must come back this way too.
		{Src: f.Network, NotSrc: true, Dst: f.Network, Verdict: Masquerade, RandomFully: random},
	}
}

func multicast(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4() {
		return netip.MustParsePrefix("224.0.0.0/4")
	}
	return netip.MustParsePrefix("ff00::/8")
}

// withoutRandom is want for a kernel or an iptables that knows no --random-fully.
func withoutRandom(want []Chain) []Chain {
	plain := make([]Chain, len(want))
	for i, c := range want {
		plain[i] = c
		plain[i].Rules = make([]Rule, len(c.Rules))
		for j, r := range c.Rules {
			r.RandomFully = false
			plain[i].Rules[j] = r
		}
	}
	return plain
}

func usesRandom(want []Chain) bool {
	for _, c := range want {
		for _, r := range c.Rules {
			if r.RandomFully {
				return true
			}
		}
	}
	return false
}
