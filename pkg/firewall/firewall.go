// Package firewall keeps the node's masquerade and forward rules in the kernel. The rules are one list, computed by a
// pure function from a Config (Rules). One of two writers translates them for the kernel:
//
//   - IPTables uses the nft or the legacy variant of iptables, whichever the host uses. It reads chain by chain (see
//     readOnce), compares parsed rules, and replaces differing chains in one iptables-restore transaction.
//   - NFTables has tables of its own, flannel-ipv4 and flannel-ipv6. It reads and writes them by netlink and starts no
//     program.
//
// The kernel treats the two differently in one point: an ACCEPT in our FLANNEL-FWD ends iptables' FORWARD chain, while
// an accept in an nftables chain does not override a drop in another table.
//
// Because of that ACCEPT, our jumps come after the rules of others. They are appended to FORWARD and POSTROUTING, and
// an existing jump is never moved, because network policy engines, kube-proxy and administrators insert rules before it
// and rely on them. There is one exception: if FORWARD ends with a DROP or REJECT of every packet, a new jump is
// inserted right before that rule. A jump that is missing, duplicated or has other arguments is repaired (planJump).
//
// Cost: each resync asks the kernel with a few system calls whether our chains and the jumps to them changed (in the
// legacy variant: whether the whole table changed). Only if they did, the chains are read, and iptables -S is started for
// those of our own chains that changed.
package firewall

import (
	"log/slog"
	"net/netip"
	"slices"
	"time"
)

// Options are what New needs.
type Options struct {
	Log      *slog.Logger
	Instance string // see package instance
	// Resync is the interval of the checks without a notification (--iptables-resync); 0 or less: none.
	Resync time.Duration
	// Repaired is called after each repair of one place's rules that another program had changed. May be nil.
	Repaired func()
}

// Writer selects how rules are written into the kernel.
type Writer string

const (
	IPTables Writer = "iptables"
	NFTables Writer = "nftables"
)

// Config is the input of Rules. It is comparable, and Apply plans anew only when it changes.
type Config struct {
	Writer      Writer
	V4, V6      Family // a zero Family is disabled: rules of that family are removed
	Masquerade  bool   // --ip-masq
	Forward     bool   // --iptables-forward-rules
	RandomFully bool   // masquerade with random source ports; ignored (with a warning) where it is not supported
}

// Family is one address family of the pod network.
type Family struct {
	Network netip.Prefix // the whole cluster's, masked; the zero Prefix: family disabled
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
	NotSrc, NotDst bool         // invert the match of Src or Dst
	Verdict        Verdict
	RandomFully    bool // Masquerade only
}

// Chain is a list of rules, and the hook from which packets reach it.
type Chain struct {
	Name    string // of the iptables chain
	Table   string // of the iptables chain, "nat" or "filter"; also the type of the nftables chain
	Parent  string // the builtin iptables chain that jumps here, after the rules of others
	Comment string // on the jump and on every rule; "": none
	NFTName string // of the chain in our nftables table
	Rules   []Rule
}

const (
	postrtg = "FLANNEL-POSTRTG"
	fwd     = "FLANNEL-FWD"

	forwardChain = "FORWARD"
)

// chains returns all chains that the default flanneld instance can own in one family, without rules.
func chains() []Chain {
	return []Chain{
		{Name: postrtg, Table: "nat", Parent: "POSTROUTING", Comment: "flanneld masq", NFTName: "postrtg"},
		{Name: fwd, Table: "filter", Parent: forwardChain, Comment: "flanneld forward", NFTName: "forward"},
	}
}

// instance is the name of a flanneld, if several run on one host (see package instance). "" is the default instance,
// whose chains and tables have flannel's names.
type instance string

func (i instance) suffix() string {
	if i == "" {
		return ""
	}
	return "-" + string(i)
}

// chains returns all chains that this instance can own in one family, without rules.
func (i instance) chains() []Chain { return i.addSuffix(chains()) }

// addSuffix appends this instance's suffix to the chains' names. In nftables the table has the suffix instead.
func (i instance) addSuffix(chains []Chain) []Chain {
	for j := range chains {
		chains[j].Name += i.suffix()
	}
	return chains
}

// kubeMark is set by kube-proxy on packets that it masquerades itself.
const kubeMark = 0x4000

// Rules returns the chains that c asks for in family f; nil if f is disabled or c asks for no rules.
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
		// Pods see each other's own addresses, on every node.
		{Src: f.Subnet, Dst: f.Network, Verdict: Return},
		{Src: f.Network, Dst: f.Subnet, Verdict: Return},
		// From outside to a pod of this node: the answer passes this node anyway, so the pod may see the client's
		// address.
		{Src: f.Network, NotSrc: true, Dst: f.Subnet, Verdict: Return},
		{Src: f.Network, Dst: multicast(f.Network), NotDst: true, Verdict: Masquerade, RandomFully: random},
		// From outside through this node to a pod of another node: the answer must return through this node.
		{Src: f.Network, NotSrc: true, Dst: f.Network, Verdict: Masquerade, RandomFully: random},
	}
}

func multicast(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4() {
		return netip.MustParsePrefix("224.0.0.0/4")
	}
	return netip.MustParsePrefix("ff00::/8")
}

// omitted says which parts of our rules the kernel or iptables refuses, although the rules work without them.
type omitted struct {
	random  bool // masquerading with random source ports
	comment bool // a chain of ours is known by its name, and a jump by the chain it leads to
}

// from returns a copy of want without what is omitted.
func (o omitted) from(want []Chain) []Chain {
	plain := slices.Clone(want)
	for i, c := range want {
		plain[i].Rules = slices.Clone(c.Rules)
		if o.comment {
			plain[i].Comment = ""
		}
		for j := range c.Rules {
			plain[i].Rules[j].RandomFully = c.Rules[j].RandomFully && !o.random
		}
	}
	return plain
}
